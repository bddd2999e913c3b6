"""Commands `segments`, `blocks`, `timeline` and `fragmentation`: the memory at a position and over time."""

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
from .arguments import ALL_ROWS, CommandParser, parse_positive
from .trace_command import Exit, Query, TraceCommand

_ROWS = 20


class Segments(TraceCommand):
    description = (
        "Shows the segments that torch's allocator holds from the driver, each with a map of its blocks: those that "
        "torch.cuda.memory_snapshot() would have listed at that position."
    )
    examples = (("segments run.alloctrace --at peak:reserved", "the segments at the peak of reserved memory"),)
    if_truncated = '"end" is where the trace breaks off, not the end of the run.'

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
        "Shows the largest blocks in use at a position, with their age and the line that allocated each. --json and "
        "--csv have all blocks, free ones included, unless --top is given."
    )
    examples = (("blocks run.alloctrace --at step:12 --top 50", "the 50 largest blocks at the end of step 12"),)
    if_truncated = '"end" is where the trace breaks off, not the end of the run.'

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
        rows = blocks if top == ALL_ROWS else largest_blocks(blocks, top)
        if options.json:
            query.print_json("blocks", rows)
        elif options.csv:
            query.print_csv(rows)
        else:
            write_blocks(blocks, trace, query.screen, query.names, top)
        return Exit.OK


_BY = ("sum", "role")
_DEFAULT_POINTS = 2000
_MAX_POINTS = 100_000
"""Maximum number of intervals. A million would take minutes and gigabytes."""


class Timeline(TraceCommand):
    description = (
        "Shows requested, allocated, active and reserved bytes over time (docs/reading.md defines them), with the "
        "maximum of each interval, so that no peak is lost; by role, the requested bytes at the end of each interval."
    )
    examples = (
        ("timeline run.alloctrace --since step:10 --csv > timeline.csv", "the memory after step 10, to plot"),
        ("timeline run.alloctrace --by role", "parameters, gradients, activations, ... over time"),
    )
    if_truncated = "The curves stop where the trace breaks off, not where the run ended."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_range(
            "from the interval of this position on (default: the beginning of the trace)",
            "up to the interval of this position (default: end)",
        )
        parser.add_argument(
            "--points",
            type=_parse_points,
            default=_DEFAULT_POINTS,
            metavar="N",
            help=f"divide the whole trace into N intervals (default: {_DEFAULT_POINTS})",
        )
        parser.add_by(_BY)
        parser.add_device()
        parser.add_csv()

    def run(self, query: Query) -> Exit:
        trace, options = query.trace, query.options
        by_role = options.by == "role"
        read_timeline = role_timeline if by_role else timeline
        table = read_timeline(trace, options.points, device=options.device)
        if not query.is_whole_run:
            device = options.device

            def time_ns(position: Position | None) -> int | None:
                return None if position is None else trace.time_ns(position, device=device)

            slices = []
            for since, until in query.ranges:
                trace.range(since, until, device=device)  # raises PositionError for an empty range
                slices.append(table[in_range(table, time_ns(since), time_ns(until))].reset_index(drop=True))
            # Short ranges may share an interval.
            table = pd.concat(slices).drop_duplicates(["device", "time_ns"]).sort_values("time_ns", kind="stable")
            table = table.sort_values("device", kind="stable", ignore_index=True) if len(slices) > 1 else slices[0]
        if options.json:
            query.print_json("timeline", table)
        elif options.csv:
            query.print_csv(table)
        else:
            (write_role_timeline if by_role else write_timeline)(table, query.screen)
        return Exit.OK


def _parse_points(text: str) -> int:
    value = parse_positive(text)
    if value > _MAX_POINTS:
        raise argparse.ArgumentTypeError(f"{text} intervals are too many: at most {_MAX_POINTS}")
    return value


_FRAGMENTATION_ROWS = 5


class Fragmentation(TraceCommand):
    description = (
        "Shows the fragmentation of memory that torch holds but does not use, and the lines whose live blocks pin it. "
        "Allocators without segments (the CPU's) have none."
    )
    examples = (("fragmentation run.alloctrace --at peak:reserved", "the free memory at the peak of reserved memory"),)
    if_truncated = '"end" is where the trace breaks off, not the end of the run.'

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_at("the position (default: end)")
        parser.add_device()
        parser.add_csv()
        parser.add_top(_FRAGMENTATION_ROWS)
        parser.add_code()

    def run(self, query: Query) -> Exit:
        trace, options = query.trace, query.options
        devices = fragmentation_by_device(trace, options.at, device=options.device)
        top = query.rows(_FRAGMENTATION_ROWS)
        if options.json:
            query.print_json("fragmentation", [fragmentation_data(fragmentation, top) for fragmentation in devices])
        elif options.csv:
            device_tables = [
                fragmentation.pinners.head(top).to_frame().assign(device=fragmentation.device)
                for fragmentation in devices
            ]
            empty = tables.no_rows((*PINNER_COLUMNS, "device"))
            query.print_csv(pd.concat(device_tables, ignore_index=True) if device_tables else empty)
        elif not devices:
            query.screen.text("Nothing was allocated.")
        else:
            for number, fragmentation in enumerate(devices):
                if number:
                    query.screen.blank()
                blocks = tables.blocks(trace, fragmentation.at, device=fragmentation.device)
                timeline = tables.timeline(trace, device=fragmentation.device)
                write_fragmentation(fragmentation, blocks, timeline, query.screen, query.names, top)
        return Exit.OK
