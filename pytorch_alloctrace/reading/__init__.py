"""Traces as recorded: events, stacks and sites, segments, blocks, sums over time, positions."""
