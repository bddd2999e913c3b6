"""The verb `verify`."""

from __future__ import annotations

import dataclasses

from ..report.verification import write_verification
from .arguments import VerbParser
from .verb import Exit, Query, Verb


class Verify(Verb):
    name = "verify"
    working = "comparing"
    summary = "whether the trace agrees with the allocator's own states"
    description = (
        "Compares the replay with every allocator state in the trace, and names each event that does not fit what came "
        "before. Exit status 1 when something does not agree or was lost."
    )
    examples = (("verify run.alloctrace", "whether what the other verbs show of this trace can be relied on"),)
    if_cut = "What came after the break cannot be verified."

    def add_arguments(self, parser: VerbParser) -> None:
        """Only what every verb takes."""

    def run(self, query: Query) -> Exit:
        found = query.trace.verify()
        if query.options.json:
            query.print_json({"ok": found.ok, **dataclasses.asdict(found)})
        else:
            write_verification(found, query.screen)
        return Exit.OK if found.ok else Exit.FOUND
