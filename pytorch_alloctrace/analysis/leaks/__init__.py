"""Leaks: blocks that are allocated again and again and never freed, and buffers that keep growing."""
