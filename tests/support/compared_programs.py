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
    # A statement moved to a method, and the line that calls the method is no edited version of it.
    "to_method": (
        "class Net:\n"
        "    def forward(self, x):\n"
        "        h = torch.relu(x)\n"
        "        h = h / (1e-6 + h.norm(dim=-1, keepdim=True))\n"
        "        return h * 2\n"
        "kept = [Net().forward(torch.ones(MIB))]\n",
        "class Net:\n"
        "    def normalise(self, h):\n"
        "        h = h / (1e-6 + h.norm(dim=-1, keepdim=True))\n"
        "        return h\n"
        "    def forward(self, x):\n"
        "        h = torch.relu(x).double()\n"
        "        h = self.normalise(h).float()\n"
        "        return h * 2\n"
        "kept = [Net().forward(torch.ones(MIB))]\n",
        {("same moved", 4, 3), ("near", 3, 6), ("new", 0, 7), ("same", 5, 8), ("same", 6, 9)},
    ),
    # An expression moved to a function, where it is returned, and the line that calls the function holds nothing.
    "to_returned": (
        "def forward(x, w):\n"
        "    h = torch.relu(x)\n"
        "    g = h * w\n"
        "    return [h, g, g.exp()]\n"
        "kept = forward(torch.ones(MIB), torch.ones(MIB))\n",
        "def gate(h, w):\n"
        "    return h * w\n"
        "def forward(x, w):\n"
        "    h = torch.relu(x)\n"
        "    g = gate(h, w)\n"
        "    return [h, g, g.exp()]\n"
        "kept = forward(torch.ones(MIB), torch.ones(MIB))\n",
        {("same", 2, 4), ("near moved", 3, 2), ("same", 4, 6), ("same", 5, 7)},
    ),
    # The body of main became methods, and variables became attributes.
    "to_class": (
        "def main():\n"
        "    model = torch.zeros(3 * MIB)\n"
        "    state = torch.empty(MIB).fill_(0)\n"
        "    x = torch.rand(2 * MIB)\n"
        "    return model, state, x\n"
        "kept = [main()]\n",
        "class Trainer:\n"
        "    def __init__(self):\n"
        "        self.model = torch.zeros(3 * MIB)\n"
        "        self.state = torch.empty(MIB).fill_(0)\n"
        "    def step(self):\n"
        "        x = torch.rand(2 * MIB)\n"
        "        return x\n"
        "def main():\n"
        "    trainer = Trainer()\n"
        "    return trainer, trainer.step()\n"
        "kept = [main()]\n",
        {("near moved", 2, 3), ("near moved", 3, 4), ("same moved", 4, 6)},
    ),
    # The edited line stands below a new line, which is nearer to the old line.
    "edited_below_new": (
        "def score(h, items):\n"
        "    good = h * items\n"
        "    bad_score = h + items[:8].repeat(MIB // 8)\n"
        "    return good, bad_score\n"
        "kept = [score(torch.ones(MIB), torch.ones(MIB))]\n",
        "def score(h, items):\n"
        "    good = h * items\n"
        "    # drawn for each position\n"
        "    bad = torch.randint(0, 9, (MIB,))\n"
        "    bad_score = (h * items[bad]).repeat(2)\n"
        "    return good, bad_score\n"
        "kept = [score(torch.ones(MIB), torch.ones(MIB))]\n",
        {("same", 2, 2), ("new", 0, 4), ("near", 3, 5), ("same", 5, 7)},
    ),
    "to_file": (
        "def pairwise(z):\n"
        "    sim = z * 2\n"
        "    mask = torch.zeros(MIB, dtype=torch.bool)\n"
        "    sim = sim.masked_fill(mask, -1e4)\n"
        "    return sim, mask\n"
        "kept = [pairwise(torch.ones(MIB))]\n",
        "from losses import pairwise\n"
        "kept = [pairwise(torch.ones(MIB))]\n"
        "# file losses.py\n"
        "def pairwise(z):\n"
        "    sim = z * 2\n"
        "    mask = torch.zeros(MIB).repeat(2)[:MIB] > 0\n"
        "    sim = sim.masked_fill(mask, -1e4)\n"
        "    return sim, mask\n",
        {("same moved", 2, 2), ("near moved", 3, 3), ("same moved", 4, 4), ("same", 6, 2)},
    ),
    "renamed_file": (
        "# file v1.py\n"
        "def features(n):\n"
        "    grid = torch.rand(n)\n"
        "    return torch.cat([grid, grid.cos()])\n"
        "f = features(MIB)\n"
        "kept = [f * 2]\n",
        "# file v2.py\n"
        "def features(n):\n"
        "    grid = torch.rand(2 * n)\n"
        "    return torch.cat([grid, grid.cos()])\n"
        "f = features(MIB)\n"
        "kept = [f * 2]\n"
        "best = kept[0].topk(MIB)\n",
        {("same", 3, 3), ("same", 5, 5), ("new", 0, 6)},
    ),
    # Lines that replaced others have nothing in common with them; equal lines stay in their functions.
    "rewritten": (
        "def smooth(x):\n"
        "    x = torch.relu(x)\n"
        "    return x\n"
        "def loss_of(d):\n"
        "    d = d + 1\n"
        "    hard = d.sort().values\n"
        "    worst = hard[:9].repeat(MIB // 9)\n"
        "    return d, hard, worst\n"
        "kept = [loss_of(smooth(torch.ones(MIB)))]\n",
        "def sharpen(x):\n"
        "    a = torch.exp(x)\n"
        "    x = torch.relu(x)\n"
        "    return a, x\n"
        "def smooth(x):\n"
        "    x = torch.relu(x)\n"
        "    return x\n"
        "def loss_of(d):\n"
        "    d = d + 1\n"
        "    prob = torch.softmax(-d, 0)\n"
        "    entropy = prob * prob.log()\n"
        "    total = entropy.cumsum(0)\n"
        "    return d, prob, entropy, total\n"
        "other = sharpen(torch.ones(MIB))\n"
        "kept = [loss_of(smooth(torch.ones(MIB)))]\n",
        {("new", 0, 2), ("new", 0, 3), ("same", 5, 9), ("gone", 6, 0), ("new", 0, 10), ("new", 0, 11)},
    ),
}  # fmt: skip
"""By name: the program before, the program after, and (match, line before, line after) of each row at the peak.

0: no line. The lines do not count a first line that every file has. "# file NAME" begins another file than train.py.
"""
_FIRST_LINE = "import torch; MIB = 2**18\n"
_DRIVER = """
import json, pathlib, runpy, sys
import pytorch_alloctrace as alloctrace
for name, *versions in json.loads(pathlib.Path("pairs.json").read_text()):
    for place in ("elsewhere", "in_place"):
        for version, files in zip(("before", "after"), versions):
            folder = pathlib.Path(name, place, version if place == "elsewhere" else ".").resolve()
            folder.mkdir(parents=True, exist_ok=True)
            for filename, text in files.items():
                (folder / filename).write_text(text)
            modules = {*sys.modules}
            sys.path.insert(0, str(folder))
            alloctrace.enable(f"{name}/{place}/{version}.alloctrace", devices=("cpu",))
            runpy.run_path(str(folder / next(iter(files))), run_name="__main__")
            alloctrace.disable()
            sys.path.remove(str(folder))
            for module in {*sys.modules} - modules:
                del sys.modules[module]
"""


def files_of(text: str) -> dict[str, str]:
    """Return the text of each file of a program, the main program first."""
    texts = text if text.startswith("# file ") else f"# file train.py\n{text}"
    files = (part.split("\n", 1) for part in texts.split("# file ")[1:])
    return {name: _FIRST_LINE + lines for name, lines in files}


def record(folder: Path) -> None:
    """Record each version of each pair, in folders of their own, and in one file that is edited between the runs."""
    texts = [(name, files_of(before), files_of(after)) for name, (before, after, _) in PAIRS.items()]
    (folder / "pairs.json").write_text(json.dumps(texts))
    (folder / "driver.py").write_text(_DRIVER)
    run_python(folder, [sys.executable, str(folder / "driver.py")], check=True, timeout=600, environment={})
