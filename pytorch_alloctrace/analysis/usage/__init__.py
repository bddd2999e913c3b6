"""Composition of the memory by site, phase and age: at a position, over a range, and between two runs."""
