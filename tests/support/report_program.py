"""Program with content for every view of the report and hostile file and mark names: report_program.py TRACE."""

from __future__ import annotations

import contextlib
import sys
import time

import torch

import pytorch_alloctrace as alloctrace

MIB = 2**20
HOSTILE_FILE = "/home/somebody/</script><script>window.broken = 1</script><img src=x onerror='window.broken = 1'>.py"
HOSTILE_MARK = "<b>bold</b> & <script>window.broken = 1</script>"
STEPS = 40

alloctrace.enable(sys.argv[1], overwrite=True)
time.sleep(1)  # like slow imports: the page begins with the events that follow

SOURCE = "def allocate(size):\n    return torch.empty(size, dtype=torch.uint8, device='cuda:0')\n"
hostile = compile(SOURCE, HOSTILE_FILE, "exec")
names: dict[str, object] = {"torch": torch}
exec(hostile, names)
allocate = names["allocate"]


def train(step: int, kept: list[torch.Tensor]) -> None:
    batch = torch.empty(24 * MIB, dtype=torch.uint8, device="cuda:0")
    activation = allocate((8 + step % 5) * MIB)  # type: ignore[operator]
    kept.append(torch.empty(MIB, dtype=torch.uint8, device="cuda:0"))  # the leak
    other = torch.empty((2 + step % 3) * MIB, dtype=torch.uint8, device="cuda:1")
    del batch, activation, other


def cut_up() -> list[torch.Tensor]:
    """Keep small blocks at the beginnings of large segments."""
    small, large = [], []
    for _ in range(4):
        batch = torch.empty(600 * MIB, dtype=torch.uint8, device="cuda:0")
        del batch
        small.append(torch.empty(32 * MIB, dtype=torch.uint8, device="cuda:0"))
        large.append(torch.empty(560 * MIB, dtype=torch.uint8, device="cuda:0"))
    return small


def main() -> None:
    kept: list[torch.Tensor] = []
    weights = torch.empty(40 * MIB, dtype=torch.uint8, device="cuda:0")
    alloctrace.mark(HOSTILE_MARK)
    for step in range(STEPS):
        train(step, kept)
        alloctrace.step()
    side = torch.cuda.Stream(device="cuda:0")
    with alloctrace.region("validation"), torch.cuda.stream(side):
        held = torch.empty(64 * MIB, dtype=torch.uint8, device="cuda:0")
    small = cut_up()
    with contextlib.suppress(torch.OutOfMemoryError):
        torch.empty(3000 * MIB, dtype=torch.uint8, device="cuda:0")
    print(len(kept), len(small), weights.numel(), held.numel())


main()
