"""The commands on trace files: `verify`, `finish`, `compact`, `convert` and `export`."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import PositionError
from ..reading.positions import Position
from ..reading.trace_files import Compacted, compact
from ..report import units
from ..report.export.formats import FORMATS, Selection, export
from ..report.integrity import write_verification
from ..report.json_output import plain
from ..trace import Finished, finish
from .arguments import POSITIONS, CommandParser, position
from .trace_command import Exit, Query, TraceCommand

if TYPE_CHECKING:
    from ..converting.convert import Converted


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
                query.screen.text(_finished_sentence(done))
        return Exit.OK


def _finished_sentence(done: Finished) -> str:
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


class Compact(TraceCommand):
    description = (
        "Writes a smaller trace. Up to a position it has only sums: what each line allocated, the peaks and what they "
        "consisted of, the leaks. After the position it has every event."
    )
    examples = (
        (
            "compact run.alloctrace --until peak -o small.alloctrace",
            "a trace of days: the last steps in full",
        ),
    )
    traces = "TRACE"
    reads_events = False

    def add_arguments(self, parser: CommandParser) -> None:
        parser.notes += POSITIONS
        parser.add_argument(
            "--until", dest="compact_until", type=position, metavar="POSITION", help="compact what happened up to here"
        )
        parser.add_output("")

    def mistake(self, options: argparse.Namespace) -> str | None:
        if options.spool is not None:
            return "compact takes a trace that has its end: end a killed one with `finish`"
        if options.compact_until is None or options.output is None:
            missing = (
                "--until says up to where" if options.compact_until is None else "--output names the smaller trace"
            )
            return f"{missing}: compact {options.traces[0]} --until POSITION --output FILE"
        return super().mistake(options)

    def run(self, query: Query) -> Exit:
        options = query.options
        done = compact(
            options.traces[0],
            query.target(Path(options.output)),
            until=options.compact_until,
            overwrite=options.overwrite,
        )
        if options.json:
            query.print_json("compact", done)
        else:
            query.screen.text(_compacted_sentence(done))
        return Exit.OK


def _compacted_sentence(done: Compacted) -> str:
    before, after = units.size(done.bytes_before), units.size(done.bytes_after)
    text = (
        f"{done.trace}: {units.counted(done.events, 'event')} up to event {done.until - 1:,} are compacted into sums; "
    )
    if done.bytes_after < done.bytes_before:
        return f"{text}{after}, where the whole trace has {before}."
    return f"{text}{after}, where the whole trace has {before}: keep that one, or compact up to a later position."


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
            f"On {', '.join(done.mid_run)} the history begins after the start of the run, since torch keeps only the "
            "last entries: which blocks there were before is known, but not when they were allocated."
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


class Export(TraceCommand):
    description = (
        "Writes what was in memory, or what happened, for speedscope, flame graphs, Perfetto, memory_viz or pandas."
    )
    examples = (
        ("export run.alloctrace --to speedscope --at peak", "the calls that hold the peak"),
        ("export run.alloctrace --to collapsed --since step:10 --until step:20", "what ten steps allocated, by stack"),
        ("export run.alloctrace --to memory-viz -o snapshot.pickle", "for https://pytorch.org/memory_viz"),
    )

    def add_arguments(self, parser: CommandParser) -> None:
        names = ", ".join(FORMATS)
        parser.add_argument("--to", choices=[*FORMATS], metavar="FORMAT", help=f"one of {names}")
        parser.add_output(" (default: next to the trace)")
        parser.add_at("the state to export (default: end; not for perfetto and parquet)", None)
        parser.add_range(
            "export what happened after this position (default: the beginning)",
            "export what happened up to this position (default: end)",
        )
        parser.add_device("export only this device (default: all)")
        parser.notes += "".join(f"{name:12} {one.has}\n" for name, one in FORMATS.items())

    def mistake(self, options: argparse.Namespace) -> str | None:
        if options.to is None:
            return f"--to names the format: one of {', '.join(FORMATS)}"
        has_range = (options.since, options.until, options.region) != (None, None, None)
        of_ranges = options.to in ("perfetto", "parquet")
        if options.at is not None and (of_ranges or (has_range and options.to != "memory-viz")):
            return f"--at is one moment: {options.to} takes {'--since and --until' if of_ranges else 'it, or a range'}"
        return super().mistake(options)

    def run(self, query: Query) -> Exit:
        options, trace = query.options, query.trace
        since, until = _one_range(query)
        chosen = FORMATS[options.to]
        target = query.target(Path(trace.path).with_suffix(chosen.ending))
        wanted = Selection(options.at, since, until, options.device)
        written = export(trace, target, options.to, wanted)
        size = written.stat().st_size
        if options.json:
            query.print_json("export", {"path": str(written), "bytes": size, "to": options.to})
        else:
            query.screen.text(f"{written}: {units.size(size)}, for {chosen.reader}")
        return Exit.OK


def _one_range(query: Query) -> tuple[Position | None, Position | None]:
    """A file has one range. Raises PositionError for several regions of a name."""
    ranges, name = query.ranges, query.options.region
    if len(ranges) > 1:
        each = f"--in {name}#1 to {name}#{len(ranges)}"
        raise PositionError(f"a file has one range, and there are {len(ranges):,} regions {name!r}: {each}")
    return ranges[0]
