"""The command `export`."""

from __future__ import annotations

import argparse
from pathlib import Path

from ..errors import PositionError
from ..reading.positions import Position
from ..report import units
from ..report.export.formats import FORMATS, Selection, export
from .arguments import CommandParser
from .trace_command import Exit, Query, TraceCommand


class Export(TraceCommand):
    description = (
        "Writes what was in memory, or what happened, for speedscope, flame graphs, Perfetto, memory_viz or pandas."
    )
    examples = (
        ("export run.alloctrace --to speedscope --at peak", "the calls that hold the peak"),
        ("export run.alloctrace --to collapsed --since step:10 --until step:20", "what ten steps allocated, by stack"),
        ("export run.alloctrace --to memory-viz -o snapshot.pickle", "for https://pytorch.org/memory_viz"),
    )

    def add_arguments(self, parser: CommandParser) -> None:
        names = ", ".join(FORMATS)
        parser.add_argument("--to", choices=[*FORMATS], metavar="FORMAT", help=f"one of {names}")
        parser.add_output(" (default: next to the trace)")
        parser.add_at("the state to export (default: end; not for perfetto and parquet)", None)
        parser.add_range(
            "export what happened after this position (default: the beginning)",
            "export what happened up to this position (default: end)",
        )
        parser.add_device("export only this device (default: all)")
        parser.notes += "".join(f"{name:12} {one.has}\n" for name, one in FORMATS.items())

    def mistake(self, options: argparse.Namespace) -> str | None:
        if options.to is None:
            return f"--to names the format: one of {', '.join(FORMATS)}"
        has_range = (options.since, options.until, options.region) != (None, None, None)
        of_ranges = options.to in ("perfetto", "parquet")
        if options.at is not None and (of_ranges or (has_range and options.to != "memory-viz")):
            return f"--at is one moment: {options.to} takes {'--since and --until' if of_ranges else 'it, or a range'}"
        return super().mistake(options)

    def run(self, query: Query) -> Exit:
        options, trace = query.options, query.trace
        since, until = _one_range(query)
        chosen = FORMATS[options.to]
        target = query.target(Path(trace.path).with_suffix(chosen.ending))
        wanted = Selection(options.at, since, until, options.device)
        written = export(trace, target, options.to, wanted)
        size = written.stat().st_size
        if options.json:
            query.print_json("export", {"path": str(written), "bytes": size, "to": options.to})
        else:
            query.screen.text(f"{written}: {units.size(size)}, for {chosen.reader}")
        return Exit.OK


def _one_range(query: Query) -> tuple[Position | None, Position | None]:
    """A file has one range. Raises PositionError for several regions of a name."""
    ranges, name = query.ranges, query.options.region
    if len(ranges) > 1:
        each = f"--in {name}#1 to {name}#{len(ranges)}"
        raise PositionError(f"a file has one range, and there are {len(ranges):,} regions {name!r}: {each}")
    return ranges[0]
