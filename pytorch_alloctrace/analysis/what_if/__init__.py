"""What torch's allocator would have done with the same requests: under other settings, and on other GPUs.

csrc/core/what_if is the model. What it says is exact but for two things that nobody knows before a run: the addresses
that the driver will give, which is why figures are ranges over several orders of them, and what the program would have
done after a request that is refused, which is why a run ends there.
"""
