"""The command `verify`."""

from __future__ import annotations

from ..report.json_output import plain
from ..report.verification import write_verification
from .arguments import CommandParser
from .trace_command import Exit, Query, TraceCommand


class Verify(TraceCommand):
    working = "comparing"
    description = (
        "Compares the replay with every allocator state in the trace, and names each event that does not fit what came "
        "before. Exit status 1 when something does not agree or was lost."
    )
    examples = (("verify run.alloctrace", "whether what the other commands show of this trace can be relied on"),)
    if_cut = "What came after the break cannot be verified."

    def add_arguments(self, parser: CommandParser) -> None:
        """Add nothing to the arguments of all commands."""

    def run(self, query: Query) -> Exit:
        found = query.trace.replay.verification(query.trace.integrity)
        if query.options.json:
            query.print_json("verify", {"ok": found.ok, **plain(found)})
        else:
            write_verification(found, query.screen)
        return Exit.OK if found.ok else Exit.FOUND
