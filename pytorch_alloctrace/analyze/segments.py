"""The verb `segments`."""

from __future__ import annotations

from ..report.segments import largest_segments, write_segments
from .arguments import VerbParser
from .verb import Exit, Query, Verb

_ROWS = 20


class Segments(Verb):
    name = "segments"
    summary = "what torch holds of each device, by segment"
    description = (
        "Shows the segments that torch's allocator holds from the driver, each with a map of its blocks. They are "
        "those that torch.cuda.memory_snapshot() would have listed at that position."
    )
    examples = (("segments run.alloctrace --at peak:reserved", "what was held from the driver when that was the most"),)
    if_cut = '"end" is where the trace breaks off, not the end of the run.'

    def add_arguments(self, parser: VerbParser) -> None:
        parser.add_at("the position (default: end)")
        parser.add_device()
        parser.add_csv()
        parser.add_top(_ROWS, "of the largest segments of each device")

    def run(self, query: Query) -> Exit:
        at, device = query.options.at, query.options.device
        segments = query.trace.segments(at, device=device)
        top = query.rows(_ROWS)
        if query.options.json:
            query.print_json(largest_segments(segments, top))
        elif query.options.csv:
            query.print_csv(largest_segments(segments, top))
        else:
            write_segments(segments, query.trace.blocks(at, device=device), query.screen, top)
        return Exit.OK
