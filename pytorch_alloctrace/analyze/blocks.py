"""The verb `blocks`."""

from __future__ import annotations

from ..report.segments import write_blocks
from .arguments import VerbParser
from .verb import Exit, Query, Verb

_ROWS = 20


class Blocks(Verb):
    name = "blocks"
    summary = "the largest blocks, and the line that made each"
    description = (
        "Shows the largest blocks that are in use at a position, with their age and the line that made each. --json "
        "and --csv have all blocks, including the free ones."
    )
    examples = (("blocks run.alloctrace --at step:12 --top 50", "the 50 largest blocks when step 12 ended"),)
    if_cut = '"end" is where the trace breaks off, not the end of the run.'

    def add_arguments(self, parser: VerbParser) -> None:
        parser.add_at("the position (default: end)")
        parser.add_device()
        parser.add_csv()
        parser.add_top(_ROWS, "of the largest blocks of each device")
        parser.add_code()

    def run(self, query: Query) -> Exit:
        trace, options = query.trace, query.options
        blocks = trace.blocks(options.at, device=options.device)
        if options.json:
            query.print_json(blocks)
        elif options.csv:
            query.print_csv(blocks)
        else:
            write_blocks(blocks, trace, query.screen, query.names, query.rows(_ROWS))
        return Exit.OK
