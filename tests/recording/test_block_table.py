"""Tables of deleters after a fork: a child must be able to free the blocks that it inherits."""

from __future__ import annotations

import subprocess

import core_probe


def test_child_finds_each_block_once_when_forked_during_table_changes() -> None:
    """Fork while other threads hold the locks of the table: nearly every child waited forever."""
    probe = core_probe.build("block_table_probe.cpp", (), ["-O1"])

    process = subprocess.run([probe, "50"], capture_output=True, text=True, timeout=300, check=True)

    assert process.stdout == "0 waited, 0 missed\n"
