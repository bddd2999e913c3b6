"""The verb `blocks`."""

from __future__ import annotations

from ..report.segments import largest_blocks, write_blocks
from .arguments import ALL_ROWS, VerbParser
from .verb import Exit, Query, Verb

_ROWS = 20


class Blocks(Verb):
    name = "blocks"
    summary = "the largest blocks, and the line that made each"
    description = (
        "Shows the largest blocks that are in use at a position, with their age and the line that made each. --json "
        "and --csv have all blocks, including the free ones, unless --top is given."
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
        top = query.rows(_ROWS)
        shown = blocks if top == ALL_ROWS else largest_blocks(blocks, top)
        if options.json:
            query.print_json(shown)
        elif options.csv:
            query.print_csv(shown)
        else:
            write_blocks(blocks, trace, query.screen, query.names, top)
        return Exit.OK
