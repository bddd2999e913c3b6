"""Simulations of torch's allocator with the same requests, under other settings and on other GPUs.

The model (csrc/core/what_if) is exact except for two unknowns: the driver's addresses, so figures are ranges over
several orders of addresses; and what the program does after a failed request, so a simulation ends there.
"""
