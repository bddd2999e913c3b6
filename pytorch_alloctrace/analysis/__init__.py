"""What happened to the memory, worked out from a trace.

Every analysis returns a small dataclass or a DataFrame; none prints.
"""
