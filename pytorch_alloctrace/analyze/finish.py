"""The command `finish`."""

from __future__ import annotations

from ..report import units
from ..trace import Finished, finish
from .arguments import CommandParser
from .trace_command import Exit, Query, TraceCommand


class Finish(TraceCommand):
    description = (
        "Writes what the spool of a killed recording has into its trace, and removes the spool: one whole file is "
        "left. The spool stays if the trace is a copy and the spool is not next to it. The other commands read both "
        "and need no finish."
    )
    examples = (("finish run.alloctrace", "one file without a spool, to keep or to move"),)
    traces = "TRACE..."
    reads_events = False

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--force", action="store_true", help="finish although nothing shows whether the recording still runs"
        )

    def run(self, query: Query) -> Exit:
        spools = [query.options.spool, *[None] * (len(query.options.traces) - 1)]
        force = query.options.force
        finished = [
            finish(path, spool=spool, force=force) for path, spool in zip(query.options.traces, spools, strict=True)
        ]
        if query.options.json:
            query.print_json("finish", finished)
        else:
            for done in finished:
                query.screen.text(_sentence(done))
        return Exit.OK


def _sentence(done: Finished) -> str:
    if done.was_ended:
        spool = f"The spool {done.spool} that was left is removed." if done.spool else "There is nothing to do."
        return f"{done.trace} has its end already. {spool if done.copied_from is None else _spool_that_stays(done)}"
    sentences = [
        f"{done.trace} is finished: {units.counted(done.events, 'event')} were taken over from its spool"
        f"{', which is removed' if done.copied_from is None else ''}, and its end says that the program was killed."
    ]
    if done.calls_in_progress:
        calls = units.counted(done.calls_in_progress, "call")
        sentences.append(f"{calls} of the allocator had not returned when it was killed.")
    if done.copied_from is not None:
        sentences.append(_spool_that_stays(done))
    return " ".join(sentences)


def _spool_that_stays(done: Finished) -> str:
    assert done.copied_from is not None
    if done.copied_from.exists():
        return f"The spool {done.spool} stays for the recorded trace {done.copied_from}, of which this is a copy."
    return (
        f"The spool {done.spool} stays, because this is not the file that was recorded ({done.copied_from}, which is "
        f"gone): if you moved it, run `alloctrace finish {done.trace} --spool {done.spool}` to remove the spool."
    )
