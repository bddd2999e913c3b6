"""Command `holders`: the objects of the program that held the memory of a device."""

from __future__ import annotations

from ..analysis.leaks.leak import NoHolder
from ..analysis.usage.held_memory import find_held_memory
from ..report.holders import holders_data, write_holders, write_no_scan
from .arguments import CommandParser
from .trace_command import Exit, Query, TraceCommand

_ROWS = 10


class Holders(TraceCommand):
    description = (
        "Shows which objects of the program kept memory alive at an object scan of the recorder: the scan nearest to "
        "the peak, or another. A row is a variable, a container or similar objects of one variable, with the line that "
        "stores into it if known."
    )
    examples = (
        ("holders run.alloctrace", "what held the memory near the peak"),
        ("holders run.alloctrace --at end", "what held it at the last object scan"),
    )
    if_truncated = "A higher peak, and further object scans, may have come after the break."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_at("the last object scan up to this position (default: the one nearest to the peak)", None)
        parser.add_device("show this device (default: the one with the highest peak)")
        parser.add_top(_ROWS, "of the objects that held the most")

    def run(self, query: Query) -> Exit:
        options, top = query.options, query.rows(_ROWS)
        memory = find_held_memory(query.trace, options.at, options.device)
        if options.json:
            query.print_json("holders", holders_data(memory, top))
        elif isinstance(memory, NoHolder):
            write_no_scan(memory, query.trace.final_scan, query.screen)
        else:
            write_holders(memory, options.at, query.screen, query.names, top)
        return Exit.OK
