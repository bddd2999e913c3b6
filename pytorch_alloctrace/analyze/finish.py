"""The verb `finish`."""

from __future__ import annotations

from ..report import units
from ..trace import Finished, finish
from .arguments import VerbParser
from .verb import Exit, Query, Verb


class Finish(Verb):
    name = "finish"
    summary = "end the trace of a recording that was killed"
    description = (
        "Writes what the spool of a killed recording has into its trace, and removes the spool: one whole file is "
        "left. The other verbs read both and need no finish."
    )
    examples = (("finish run.alloctrace", "one file without a spool, to keep or to move"),)
    traces = "TRACE..."
    reads_events = False

    def add_arguments(self, parser: VerbParser) -> None:
        """Only what every verb takes."""

    def run(self, query: Query) -> Exit:
        spools = [query.options.spool, *[None] * (len(query.options.traces) - 1)]
        found = [finish(path, spool=spool) for path, spool in zip(query.options.traces, spools, strict=True)]
        if query.options.json:
            query.print_json([_data(done) for done in found])
        else:
            for done in found:
                query.screen.text(_sentence(done))
        return Exit.OK


def _sentence(done: Finished) -> str:
    if done.was_ended:
        left = f"the spool {done.spool} that was left is removed" if done.spool else "there is nothing to do"
        return f"{done.trace} has its end already: {left}."
    calls = units.counted(done.calls_in_progress, "call")
    unfinished = f" {calls} of the allocator had not returned when it was killed." if done.calls_in_progress else ""
    events = units.counted(done.events, "event")
    return (
        f"{done.trace} is finished: {events} were taken over from its spool, which is removed, and its end says that "
        f"the program was killed.{unfinished}"
    )


def _data(done: Finished) -> dict[str, object]:
    return {
        "trace": str(done.trace),
        "was_ended": done.was_ended,
        "spool": None if done.spool is None else str(done.spool),
        "events": done.events,
        "calls_in_progress": done.calls_in_progress,
    }
