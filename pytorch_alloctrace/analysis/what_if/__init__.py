"""Simulations of torch's allocator with the same requests, under other settings and on other GPUs.

The model is csrc/core/what_if. It is exact except for two unknowns. The addresses that the driver will give are
unknown, so figures are ranges over several orders of addresses. What the program would do after a failed request is
unknown, so a simulation ends there.
"""
