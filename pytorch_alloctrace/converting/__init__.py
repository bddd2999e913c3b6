"""Traces made of what others have recorded: torch's own memory snapshots."""
