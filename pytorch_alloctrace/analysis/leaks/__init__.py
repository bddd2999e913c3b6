"""Leaks: blocks that are made again and again and never freed, and buffers that keep growing."""
