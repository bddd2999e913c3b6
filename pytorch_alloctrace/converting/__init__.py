"""Traces converted from torch's memory snapshots."""
