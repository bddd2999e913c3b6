"""The command `fragmentation`."""

from __future__ import annotations

import pandas as pd

from ..analysis.free_memory.fragmentation import fragmentation_by_device
from ..analysis.free_memory.pinning import PINNER_COLUMNS
from ..reading import tables
from ..report.fragmentation import fragmentation_data, write_fragmentation
from .arguments import CommandParser
from .trace_command import Exit, Query, TraceCommand

_ROWS = 5


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
        parser.add_top(_ROWS)
        parser.add_code()

    def run(self, query: Query) -> Exit:
        trace, options = query.trace, query.options
        found = fragmentation_by_device(trace, options.at, device=options.device)
        top = query.rows(_ROWS)
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
