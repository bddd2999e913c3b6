"""The command `cost`."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence

from rich.console import Console

from ..parser import Parser
from ..recording import loading
from ..report.screen import Screen
from ..report.units import duration
from . import ALLOCTRACE, PLAIN, RECORDERS
from .measuring import DEPTH, CostError, Costs, Rounds, measure

_SECONDS = 120.0
_BUSY = 0.15


class Cost:
    """The command `cost`."""

    def parse(self, prog: str, arguments: Sequence[str]) -> argparse.Namespace:
        """Return the options. Raises SystemExit for wrong options, and after the help."""
        parser = Parser(
            prog=prog,
            description="Measures what recording costs on this machine with this torch, next to what else can be used: "
            "of an allocation and its free, by the depth of the stack, and of a training step. Takes two minutes, in "
            "which the machine should have nothing else to do.",
        )
        parser.add_argument(
            "--device", choices=sorted(RECORDERS), help="whose allocator to record (default: cuda if there is one)"
        )
        parser.add_argument(
            "--seconds", type=_positive, default=_SECONDS, help="how long to measure (default: %(default).0f)"
        )
        parser.add_argument("--json", action="store_true", help="print JSON; times are in nanoseconds")
        return parser.parse_args(arguments)

    def execute(self, options: argparse.Namespace) -> int:
        """Measure and print. Raises AlloctraceError if nothing could be measured."""
        loading.load_recorder()  # built, if need be, before anything is timed
        costs = measure(_device(options.device), options.seconds)
        if options.json:
            from ..report.json_output import document

            print(document("cost", costs.data()), end="")
        else:
            write_costs(costs, Screen(Console()))
        return 0


def _positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0
    if not (math.isfinite(value) and value > 0):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0")
    return value


def _device(asked: str | None) -> str:
    import torch

    if asked == "cuda" and not torch.cuda.is_available():
        raise CostError("torch finds no CUDA device here: measure --device cpu")
    return asked or ("cuda" if torch.cuda.is_available() else "cpu")


def write_costs(found: Costs, screen: Screen) -> None:
    """The tables."""
    machine = found.machine
    where = machine["device"] if found.device == "cuda" else f"{machine['cores']} cores"
    screen.text(f"COST on {found.device}: {where}, torch {machine['torch']}, Python {machine['python']}", style="bold")
    if found.pairs.spread() > _BUSY:
        screen.text(
            f"The machine was busy: half of the rounds of the program alone took {found.pairs.spread():.0%} more than "
            "the quickest. The figures are those of the quickest rounds.",
            style="yellow",
        )
    screen.blank()
    screen.text(f"A tensor made and freed, {DEPTH} Python frames deep")
    _write_rounds(screen, found.pairs, lambda nanoseconds: f"{nanoseconds:,.0f} ns")
    screen.blank()
    screen.text("The same by the depth of the stack: what alloctrace adds")
    for depth, rounds in found.by_depth.items():
        screen.text(f"{depth:4} frames  {rounds.added(ALLOCTRACE, 'wall'):+9,.0f} ns", 2)
    screen.blank()
    screen.text("A training step of a transformer of 8 layers")
    _write_rounds(screen, found.steps, lambda nanoseconds: duration(nanoseconds / 1e9))
    writer = found.steps.added(ALLOCTRACE, "process_cpu") / found.steps.least(PLAIN, "process_cpu")
    screen.text(
        f"With the thread that writes, alloctrace takes {writer:.1%} more processor time. An event takes "
        f"{found.bytes_per_event:.1f} bytes on disk.",
        2,
    )


def _write_rounds(screen: Screen, rounds: Rounds, shown: Callable[[float], str]) -> None:
    plain = rounds.least(PLAIN, "wall")
    for name in rounds.of:
        line = f"{name:30}  {shown(rounds.least(name, 'wall')):>9}"
        if name != PLAIN:
            added = rounds.added(name, "wall")
            line += f"  {'+' if added >= 0 else '-'}{shown(abs(added)):<9}  {added / plain:+.0%}"
        screen.text(line, 2)
