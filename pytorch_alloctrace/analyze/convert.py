"""The command `convert`."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING

from ..report import units
from .arguments import CommandParser
from .trace_command import Exit, Query, TraceCommand

if TYPE_CHECKING:
    from ..converting.convert import Converted


class Convert(TraceCommand):
    description = (
        "Makes a trace of a pickle that torch.cuda.memory._dump_snapshot wrote, with or without a history, so that all "
        "other commands read it. The pickle is read as plain data: no code in it can run."
    )
    examples = (
        ("convert snapshot.pickle", "write snapshot.alloctrace next to it"),
        ("convert snapshot.pickle -o run.alloctrace --overwrite", "write another file, in place of one that is there"),
    )
    traces = "SNAPSHOT"
    reads_events = False

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_output(" (default: the snapshot's name with the ending .alloctrace)", "TRACE")

    def mistake(self, options: argparse.Namespace) -> str | None:
        if len(options.traces) > 1:
            return f"convert takes one snapshot, not {options.traces[1]!r} too"
        return super().mistake(options)

    def run(self, query: Query) -> Exit:
        from ..converting.convert import convert

        options = query.options
        source = options.traces[0]
        default = Path(os.path.splitext(source)[0] + ".alloctrace")
        # convert() refuses a trace, and a path without a name, with a sentence of its own.
        target = query.target(default) if options.output or default != Path(source) else None
        done = convert(source, target, overwrite=options.overwrite)
        if options.json:
            query.print_json("convert", done)
        else:
            for sentence in _sentences(done):
                query.screen.text(sentence)
        return Exit.OK


def _sentences(done: Converted) -> list[str]:
    devices = ", ".join(done.devices) or "no device"
    said = [f"{done.trace}: {units.counted(done.events, 'event')} of {devices}"]
    if not done.events:
        said.append("The snapshot has no history: the trace has its segments and blocks, and nothing happens in it.")
    if done.mid_run:
        said.append(
            f"On {', '.join(done.mid_run)} the history begins in mid-run, for torch keeps the last entries alone: what "
            "was there before is known, but not when it was allocated."
        )
    if not done.frames:
        said.append("It has no stacks: torch records them with _record_memory_history(stacks='python') or 'all'.")
    if done.faults:
        said.append(
            f"The history does not fit the state at its end in {units.counted(done.faults, 'event')}: it was paused or "
            "cleared. `verify` tells what is wrong in the trace."
        )
    for what, count in done.skipped.items():
        said.append(f"Left out: {units.counted(count, 'event')} of {what}.")
    return said
