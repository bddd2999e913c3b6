"""Options and output of the command `cost`."""

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

_DEFAULT_SECONDS = 120.0
_MAX_SPREAD = 0.15


class Cost:
    def parse(self, prog: str, arguments: Sequence[str]) -> argparse.Namespace:
        parser = Parser(
            prog=prog,
            description="Measures the cost of recording on this machine with this torch, compared with other tools: "
            "for an allocation and its free, by stack depth, and for a training step. Takes two minutes, during which "
            "the machine should be idle.",
        )
        parser.add_argument(
            "--device", choices=sorted(RECORDERS), help="allocator to record (default: cuda if available)"
        )
        parser.add_argument(
            "--seconds",
            type=_parse_positive,
            default=_DEFAULT_SECONDS,
            help="duration of the measurement (default: %(default).0f)",
        )
        parser.add_argument("--json", action="store_true", help="print JSON; times are in nanoseconds")
        return parser.parse_args(arguments)

    def execute(self, options: argparse.Namespace) -> int:
        """Measure and print the costs. Raises AlloctraceError if nothing could be measured."""
        loading.load_recorder()  # may build the recorder, which must not be timed
        costs = measure(_choose_device(options.device), options.seconds)
        if options.json:
            from ..report.json_output import document

            print(document("cost", costs.data()), end="")
        else:
            write_costs(costs, Screen(Console()))
        return 0


def _parse_positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0
    if not (math.isfinite(value) and value > 0):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0")
    return value


def _choose_device(requested: str | None) -> str:
    import torch

    if requested == "cuda" and not torch.cuda.is_available():
        raise CostError("torch finds no CUDA device here: measure --device cpu")
    return requested or ("cuda" if torch.cuda.is_available() else "cpu")


def write_costs(costs: Costs, screen: Screen) -> None:
    machine = costs.machine
    hardware = machine["device"] if costs.device == "cuda" else f"{machine['cores']} cores"
    screen.text(
        f"COST on {costs.device}: {hardware}, torch {machine['torch']}, Python {machine['python']}", style="bold"
    )
    if costs.pairs.spread() > _MAX_SPREAD:
        screen.text(
            f"The machine was busy: the median round of the program alone took {costs.pairs.spread():.0%} longer than "
            "the quickest. The figures are those of the quickest rounds.",
            style="yellow",
        )
    screen.blank()
    screen.text(f"A tensor allocated and freed, {DEPTH} Python frames deep")
    _write_rounds(screen, costs.pairs, lambda nanoseconds: f"{nanoseconds:,.0f} ns")
    screen.blank()
    screen.text("The same by stack depth: time that alloctrace adds")
    for depth, rounds in costs.by_depth.items():
        screen.text(f"{depth:4} frames  {rounds.added(ALLOCTRACE, 'wall'):+9,.0f} ns", 2)
    screen.blank()
    screen.text("A training step of a transformer of 8 layers")
    _write_rounds(screen, costs.steps, lambda nanoseconds: duration(nanoseconds / 1e9))
    cpu_share = costs.steps.added(ALLOCTRACE, "process_cpu") / costs.steps.minimum(PLAIN, "process_cpu")
    screen.text(
        f"With its writer thread, alloctrace takes {cpu_share:.1%} more processor time. An event takes "
        f"{costs.bytes_per_event:.1f} bytes on disk.",
        2,
    )


def _write_rounds(screen: Screen, rounds: Rounds, format_time: Callable[[float], str]) -> None:
    plain_wall_ns = rounds.minimum(PLAIN, "wall")
    for name in rounds.of:
        line = f"{name:30}  {format_time(rounds.minimum(name, 'wall')):>9}"
        if name != PLAIN:
            added_ns = rounds.added(name, "wall")
            line += f"  {'+' if added_ns >= 0 else '-'}{format_time(abs(added_ns)):<9}  {added_ns / plain_wall_ns:+.0%}"
        screen.text(line, 2)
