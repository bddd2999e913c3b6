"""The commands `segments`, `blocks`, `timeline` and `fragmentation`: the memory at a position and over time."""

from __future__ import annotations

import argparse

import pandas as pd

from ..analysis.free_memory.fragmentation import fragmentation_by_device
from ..analysis.free_memory.pinning import PINNER_COLUMNS
from ..reading import tables
from ..reading.positions import Position
from ..reading.tables import role_timeline, timeline
from ..reading.timeline import in_range
from ..report.fragmentation import fragmentation_data, write_fragmentation
from ..report.segments import largest_blocks, largest_segments, write_blocks, write_segments
from ..report.timeline import write_role_timeline, write_timeline
from .arguments import ALL_ROWS, CommandParser, positive
from .trace_command import Exit, Query, TraceCommand

_ROWS = 20


class Segments(TraceCommand):
    description = (
        "Shows the segments that torch's allocator holds from the driver, each with a map of its blocks. They are "
        "those that torch.cuda.memory_snapshot() would have listed at that position."
    )
    examples = (("segments run.alloctrace --at peak:reserved", "what was held from the driver when that was the most"),)
    if_cut = '"end" is where the trace breaks off, not the end of the run.'

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_at("the position (default: end)")
        parser.add_device()
        parser.add_csv()
        parser.add_top(_ROWS, "of the largest segments of each device")

    def run(self, query: Query) -> Exit:
        at, device = query.options.at, query.options.device
        segments = tables.segments(query.trace, at, device=device)
        top = query.rows(_ROWS)
        if query.options.json:
            query.print_json("segments", largest_segments(segments, top))
        elif query.options.csv:
            query.print_csv(largest_segments(segments, top))
        else:
            write_segments(segments, tables.blocks(query.trace, at, device=device), query.screen, top)
        return Exit.OK


class Blocks(TraceCommand):
    description = (
        "Shows the largest blocks that are in use at a position, with their age and the line that made each. --json "
        "and --csv have all blocks, including the free ones, unless --top is given."
    )
    examples = (("blocks run.alloctrace --at step:12 --top 50", "the 50 largest blocks when step 12 ended"),)
    if_cut = '"end" is where the trace breaks off, not the end of the run.'

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_at("the position (default: end)")
        parser.add_device()
        parser.add_csv()
        parser.add_top(_ROWS, "of the largest blocks of each device")
        parser.add_code()

    def run(self, query: Query) -> Exit:
        trace, options = query.trace, query.options
        blocks = tables.blocks(trace, options.at, device=options.device)
        top = query.rows(_ROWS)
        shown = blocks if top == ALL_ROWS else largest_blocks(blocks, top)
        if options.json:
            query.print_json("blocks", shown)
        elif options.csv:
            query.print_csv(shown)
        else:
            write_blocks(blocks, trace, query.screen, query.names, top)
        return Exit.OK


_BY = ("sum", "role")
_POINTS = 2000
_MOST_POINTS = 100_000
"""A million take minutes and gigabytes."""


class Timeline(TraceCommand):
    description = (
        "Shows each sum of a device's memory over time, with the highest of each interval, so that no peak is lost "
        "(docs/reading.md says what each means); by role, the requested bytes at the end of each interval."
    )
    examples = (
        ("timeline run.alloctrace --since step:10 --csv > timeline.csv", "the sums after step 10, to plot"),
        ("timeline run.alloctrace --by role", "how much was for parameters, gradients, activations, ... over time"),
    )
    if_cut = "The curves stop where the trace breaks off, not where the run ended."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_range(
            "from the interval of this position on (default: the beginning of the trace)",
            "up to the interval of this position (default: end)",
        )
        parser.add_argument(
            "--points",
            type=_points,
            default=_POINTS,
            metavar="N",
            help=f"divide the whole trace into N intervals (default: {_POINTS})",
        )
        parser.add_by(_BY)
        parser.add_device()
        parser.add_csv()

    def run(self, query: Query) -> Exit:
        trace, options = query.trace, query.options
        by_role = options.by == "role"
        make = role_timeline if by_role else timeline
        table = make(trace, options.points, device=options.device)
        if not query.is_whole:
            device = options.device

            def time_ns(position: Position | None) -> int | None:
                return None if position is None else trace.time_ns(position, device=device)

            parts = []
            for since, until in query.ranges:
                trace.range(since, until, device=device)  # raises where nothing happened in between
                parts.append(table[in_range(table, time_ns(since), time_ns(until))].reset_index(drop=True))
            # An interval may be in several short ranges.
            table = pd.concat(parts).drop_duplicates(["device", "time_ns"]).sort_values("time_ns", kind="stable")
            table = table.sort_values("device", kind="stable", ignore_index=True) if len(parts) > 1 else parts[0]
        if options.json:
            query.print_json("timeline", table)
        elif options.csv:
            query.print_csv(table)
        else:
            (write_role_timeline if by_role else write_timeline)(table, query.screen)
        return Exit.OK


def _points(text: str) -> int:
    value = positive(text)
    if value > _MOST_POINTS:
        raise argparse.ArgumentTypeError(f"{text} intervals are too many: at most {_MOST_POINTS}")
    return value


_DEVICE_SEGMENTS = 5


class Fragmentation(TraceCommand):
    description = (
        "Shows how the memory that torch holds but does not use is cut up, and which lines made the live blocks that "
        "keep it from being returned. Allocators that report no segments (the CPU's) have none."
    )
    examples = (("fragmentation run.alloctrace --at peak:reserved", "what was free when the most was reserved"),)
    if_cut = '"end" is where the trace breaks off, not the end of the run.'

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_at("the position (default: end)")
        parser.add_device()
        parser.add_csv()
        parser.add_top(_DEVICE_SEGMENTS)
        parser.add_code()

    def run(self, query: Query) -> Exit:
        trace, options = query.trace, query.options
        found = fragmentation_by_device(trace, options.at, device=options.device)
        top = query.rows(_DEVICE_SEGMENTS)
        if options.json:
            query.print_json("fragmentation", [fragmentation_data(one, top) for one in found])
        elif options.csv:
            parts = [one.pinners.head(top).to_frame().assign(device=one.device) for one in found]
            none = tables.no_rows((*PINNER_COLUMNS, "device"))
            query.print_csv(pd.concat(parts, ignore_index=True) if parts else none)
        elif not found:
            query.screen.text("Nothing was allocated.")
        else:
            for number, one in enumerate(found):
                if number:
                    query.screen.blank()
                blocks = tables.blocks(trace, one.at, device=one.device)
                timeline = tables.timeline(trace, device=one.device)
                write_fragmentation(one, blocks, timeline, query.screen, query.names, top)
        return Exit.OK
