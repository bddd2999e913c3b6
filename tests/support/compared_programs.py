"""Pairs of programs, before and after a change, with the statements that a comparison of their lines must make."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from running import run_python

PAIRS: dict[str, tuple[str, str, set[tuple[str, int, int]]]] = {
    # x is freed before the peak.
    "freed_earlier": (
        "x = torch.ones(MIB)\n"
        "a = torch.relu(x)\n"
        "b = torch.relu(a)\n",
        "x = torch.ones(MIB)\n"
        "a = torch.relu(x)\n"
        "del x\n"
        "b = torch.relu(a)\n"
        "c = torch.ones(8 * MIB)\n",
        {("same", 1, 1), ("same", 2, 2), ("same", 3, 4), ("new", 0, 5)},
    ),
    # Lines 2 and 3 stand unchanged, and hold nothing at the new peak.
    "peak_elsewhere": (
        "def f(x):\n"
        "    h = x.repeat(4)\n"
        "    h = torch.relu(h)\n"
        "    y = h.sum().reshape(1)\n"
        "    return y\n"
        "out = f(torch.ones(MIB))\n",
        "def f(x):\n"
        "    h = x.repeat(4)\n"
        "    h = torch.relu(h)\n"
        "    big = h.repeat(3)\n"
        "    y = h.sum().reshape(1)\n"
        "    del h\n"
        "    w = big + 1\n"
        "    return y\n"
        "out = f(torch.ones(MIB))\n",
        {("same", 2, 2), ("same", 3, 3), ("new", 0, 4), ("same", 4, 5), ("new", 0, 7), ("same", 6, 9)},
    ),
    # Line 4 stands unchanged, and is never executed.
    "switched_off": (
        "def f(flag):\n"
        "    a = torch.ones(MIB)\n"
        "    if flag:\n"
        "        b = torch.zeros(MIB)\n"
        "    c = torch.full((MIB,), 2.0)\n"
        "    return locals()\n"
        "kept = f(True)\n",
        "def f(flag):\n"
        "    a = torch.ones(MIB)\n"
        "    if flag:\n"
        "        b = torch.zeros(MIB)\n"
        "    d = torch.arange(2 * MIB)\n"
        "    c = torch.full((MIB,), 2.0)\n"
        "    return locals()\n"
        "kept = f(False)\n",
        {("same", 2, 2), ("same", 4, 4), ("new", 0, 5), ("same", 5, 6)},
    ),
    "moved": (
        "kept = []\n"
        "kept.append(torch.ones(1 * MIB))\n"
        "kept.append(torch.ones(2 * MIB))\n"
        "kept.append(torch.ones(3 * MIB))\n"
        "kept.append(torch.ones(1 * MIB))\n",
        "kept = []\n"
        "kept.append(torch.ones(3 * MIB))\n"
        "kept.append(torch.ones(1 * MIB))\n"
        "kept.append(torch.ones(2 * MIB))\n"
        "kept.append(torch.ones(1 * MIB))\n",
        {("same", 2, 3), ("same", 3, 4), ("same", 4, 2), ("same", 5, 5)},
    ),
    # Of the two equal lines, that between b and c stands, and the other moved to the end.
    "equal_texts": (
        "x = torch.ones(MIB)\n"
        "a = [x]\n"
        "a.append(x + 1)\n"
        "b = x * 2\n"
        "a.append(x + 1)\n"
        "c = x * 3\n",
        "x = torch.ones(MIB)\n"
        "a = [x]\n"
        "b = x * 2\n"
        "a.append(x + 1)\n"
        "c = x * 3\n"
        "a.append(x + 1)\n",
        {("same", 1, 1), ("same", 3, 6), ("same", 4, 3), ("same", 5, 4), ("same", 6, 5)},
    ),
    "duplicated": (
        "a = [torch.ones(MIB)]\n"
        "a.append(a[0] + 1)\n"
        "b = a[0] * 2\n",
        "a = [torch.ones(MIB)]\n"
        "a.append(a[0] + 1)\n"
        "a.append(a[0] + 1)\n"
        "b = a[0] * 2\n",
        {("same", 1, 1), ("same", 2, 2), ("new", 0, 3), ("same", 3, 4)},
    ),
    "edited": (
        "n = MIB\n"
        "a = torch.ones(n)\n"
        "b = torch.zeros(n)\n"
        "c = torch.full((n,), 2.0)\n",
        "n = MIB\n"
        "a = torch.ones(n)\n"
        "n = 2 * n\n"
        "b = torch.empty(n).fill_(0)\n"
        "c = torch.full((n,), 2.0)\n",
        {("same", 2, 2), ("near", 3, 4), ("same", 4, 5)},
    ),
    # In place, the file of the first run has line 2 only since the second.
    "appended": (
        "x = torch.ones(MIB)\n",
        "x = torch.ones(MIB)\n"
        "y = torch.zeros(MIB)\n",
        {("same", 1, 1), ("new", 0, 2)},
    ),
    "removed": (
        "a = torch.ones(MIB)\n"
        "b = torch.zeros(2 * MIB)\n"
        "c = torch.full((MIB,), 2.0)\n",
        "a = torch.ones(MIB)\n"
        "c = torch.full((MIB,), 2.0)\n"
        "e = c + 1\n",
        {("same", 1, 1), ("gone", 2, 0), ("same", 3, 2), ("new", 0, 3)},
    ),
}  # fmt: skip
"""By name: the program before, the program after, and (match, line before, line after) of each row at the peak.

0: no line. The lines do not count a first line that every program has.
"""
_FIRST_LINE = "import torch; MIB = 2**18\n"
_DRIVER = """
import json, pathlib, runpy, sys
import pytorch_alloctrace as alloctrace
for name, before, after in json.loads(pathlib.Path("pairs.json").read_text()):
    for place in ("elsewhere", "in_place"):
        for version, text in (("before", before), ("after", after)):
            folder = pathlib.Path(name, place, version if place == "elsewhere" else ".")
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "train.py").write_text(text)
            alloctrace.enable(f"{name}/{place}/{version}.alloctrace", devices=("cpu",))
            runpy.run_path(str((folder / "train.py").resolve()), run_name="__main__")
            alloctrace.disable()
"""


def record(folder: Path) -> None:
    """Record each version of each pair, in folders of their own, and in one file that is edited between the runs."""
    texts = [(name, _FIRST_LINE + before, _FIRST_LINE + after) for name, (before, after, _) in PAIRS.items()]
    (folder / "pairs.json").write_text(json.dumps(texts))
    (folder / "driver.py").write_text(_DRIVER)
    run_python(folder, [sys.executable, str(folder / "driver.py")], check=True, timeout=600, environment={})
