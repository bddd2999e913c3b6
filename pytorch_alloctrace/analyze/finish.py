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
        "left. The spool stays if the trace is a copy and the spool is not next to it. The other verbs read both and "
        "need no finish."
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
    is_removed = done.copied_from is None
    kept = f"The spool {done.spool} stays for the recorded trace {done.copied_from}, of which this is a copy."
    if done.was_ended:
        removed = f"The spool {done.spool} that was left is removed." if done.spool else "There is nothing to do."
        return f"{done.trace} has its end already. {removed if is_removed else kept}"
    calls = units.counted(done.calls_in_progress, "call")
    sentences = [
        f"{done.trace} is finished: {units.counted(done.events, 'event')} were taken over from its spool"
        f"{', which is removed' if is_removed else ''}, and its end says that the program was killed."
    ]
    if done.calls_in_progress:
        sentences.append(f"{calls} of the allocator had not returned when it was killed.")
    if not is_removed:
        sentences.append(kept)
    return " ".join(sentences)


def _data(done: Finished) -> dict[str, object]:
    return {
        "trace": str(done.trace),
        "was_ended": done.was_ended,
        "spool": None if done.spool is None else str(done.spool),
        "copied_from": None if done.copied_from is None else str(done.copied_from),
        "events": done.events,
        "calls_in_progress": done.calls_in_progress,
    }
