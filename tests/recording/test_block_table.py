"""The tables of deleters over a fork: a child must be able to free what it inherits."""

from __future__ import annotations

import subprocess

import core_probe


def test_a_child_finds_every_block_once_while_other_threads_change_the_table() -> None:
    """A lock that another thread held at the fork was never given back: nearly every child waited for ever."""
    probe = core_probe.build("block_table_probe.cpp", (), ["-O1"])
    done = subprocess.run([probe, "50"], capture_output=True, text=True, timeout=300, check=True)
    assert done.stdout == "0 waited, 0 missed\n"
