"""Analyses of a trace. Each returns dataclasses or DataFrames; none prints."""
