"""Comparison of the traces of all ranks. Each trace is reduced to a rank summary of at most 1 MB."""
