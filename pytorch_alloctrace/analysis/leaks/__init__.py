"""Leaks: blocks that are allocated again and again and never freed, backlogs, and buffers that keep growing."""
