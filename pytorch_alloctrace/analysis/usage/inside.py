"""What a line of the user's code that holds much of the memory calls inside an installed package.

A program that trains a model of a library has one line, `model(batch)`, under which nearly everything is allocated. The
lines of that package are then what the user wants to see. torch is below every line and is not looked into.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from ...reading.sites import Frame, StackIndex

WORTH_OPENING = 0.3
"""Least share of all memory that a line holds, and of the line that a package does."""
_LINES = 3


@dataclass(frozen=True)
class PackageLine:
    """The innermost line of a package, and what it holds. Bytes are requested bytes."""

    frame: Frame
    bytes: int
    blocks: int
    stack_id: int
    """The stack through it that holds the most."""


@dataclass(frozen=True)
class Inside:
    """The package under a line of the user's code that holds the most of its bytes."""

    package: str
    """As `user_paths` takes it."""
    bytes: int
    """All that is allocated inside it for the line."""
    lines: tuple[PackageLine, ...]
    """The lines that hold the most, most bytes first."""


def look_inside(stacks: StackIndex, held: pd.DataFrame, stack_id: int, total: int) -> Inside | None:
    """Inside the line of a stack; None if it holds little of `total` bytes, or does not call a package that does.

    held: what each stack holds, with stack_id, live_bytes, live_blocks.
    """
    held = held[held["live_bytes"] > 0]
    sites = stacks.site[held["stack_id"].to_numpy(np.int64)]
    held = held[(sites > 0) & (stacks.lines[sites] == stacks.lines[stacks.site[stack_id]])]
    size = int(held["live_bytes"].sum())
    if size < WORTH_OPENING * total or not stacks.is_user[stacks.representative(stack_id)]:
        return None
    held = held.assign(frame=stacks.opened[held["stack_id"].to_numpy(np.int64)])
    held = held[held["frame"] > 0].sort_values("live_bytes", ascending=False, kind="stable")
    held = held.assign(package=[stacks.package(int(frame)) for frame in held["frame"]])
    packages = held.groupby("package")["live_bytes"].sum()
    if packages.empty or packages.max() < WORTH_OPENING * size:
        return None
    package = str(packages.idxmax())
    held = held[held["package"] == package]
    lines = held.assign(line=stacks.lines[held["frame"].to_numpy(np.int64)]).groupby("line", sort=False)
    summed = lines.agg(
        frame=("frame", "first"),
        bytes=("live_bytes", "sum"),
        blocks=("live_blocks", "sum"),
        stack=("stack_id", "first"),
    )
    most = summed.sort_values("bytes", ascending=False, kind="stable").head(_LINES).to_numpy(np.int64).tolist()
    found = [PackageLine(stacks.frame(frame), size, blocks, stack) for frame, size, blocks, stack in most]
    return Inside(package, int(packages.max()), tuple(found))
