"""Recordings that several test files read, made once for all test processes."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from running import only_one


def record_once(factory: pytest.TempPathFactory, name: str, record: Callable[[Path], None]) -> Path:
    """Return the folder that `record` has filled, in this process of pytest-xdist or in another. Tests only read it."""
    base = factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / f"shared_{name}"
    with only_one(folder.with_suffix(".lock")):
        if not (folder / "complete").exists():
            folder.mkdir()
            record(folder)
            (folder / "complete").touch()
    return folder
