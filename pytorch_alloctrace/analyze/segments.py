"""The commands `segments` and `blocks`: tables of the memory at a position."""

from __future__ import annotations

from ..reading import tables
from ..report.segments import largest_blocks, largest_segments, write_blocks, write_segments
from .arguments import ALL_ROWS, CommandParser
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
