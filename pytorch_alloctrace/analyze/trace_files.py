"""Commands on trace files: `verify`, `finish`, `compact`, `convert` and `export`."""

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
from .arguments import POSITIONS, CommandParser, parse_position
from .trace_command import Exit, Query, TraceCommand

if TYPE_CHECKING:
    from ..converting.convert import Converted


class Verify(TraceCommand):
    progress_label = "comparing"
    description = (
        "Compares the replay with every allocator state in the trace, and lists each event that contradicts earlier "
        "ones. Exit status 1 when there is a difference or an event was lost."
    )
    examples = (("verify run.alloctrace", "whether the other commands' answers on this trace are reliable"),)
    if_truncated = "What came after the break cannot be verified."

    def add_arguments(self, parser: CommandParser) -> None:
        """Add no arguments."""

    def run(self, query: Query) -> Exit:
        verification = query.trace.replay.verification(query.trace.integrity)
        if query.options.json:
            query.print_json("verify", {"ok": verification.ok, **plain(verification)})
        else:
            write_verification(verification, query.screen)
        return Exit.OK if verification.ok else Exit.FOUND


class Finish(TraceCommand):
    description = (
        "Copies the last events of a killed recording from its spool into its trace, and removes the spool. The spool "
        "is kept if the trace is a copy and the spool is not next to it. The other commands read both and "
        "need no finish."
    )
    examples = (("finish run.alloctrace", "one file without a spool, to keep or to move"),)
    traces = "TRACE..."
    reads_events = False

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--force", action="store_true", help="finish even if it is unknown whether the recording is still running"
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
            for result in finished:
                query.screen.text(_describe_finished(result))
        return Exit.OK


def _describe_finished(result: Finished) -> str:
    if result.was_ended:
        spool = f"The leftover spool {result.spool} was removed." if result.spool else "There is nothing to do."
        remark = spool if result.copied_from is None else _describe_kept_spool(result)
        return f"{result.trace} is already finished. {remark}"
    sentences = [
        f"{result.trace} is finished: {units.counted(result.events, 'event')} were copied from its spool"
        f"{', which was removed' if result.copied_from is None else ''}, and it records that the program was killed."
    ]
    if result.calls_in_progress:
        calls = units.counted(result.calls_in_progress, "call")
        sentences.append(f"{calls} of the allocator had not returned when the program was killed.")
    if result.copied_from is not None:
        sentences.append(_describe_kept_spool(result))
    return " ".join(sentences)


def _describe_kept_spool(result: Finished) -> str:
    assert result.copied_from is not None
    if result.copied_from.exists():
        return f"The spool {result.spool} was kept: it belongs to {result.copied_from}, of which this trace is a copy."
    return (
        f"The spool {result.spool} was kept: it belongs to {result.copied_from}, which no longer exists. If you moved "
        f"that file here, run `alloctrace finish {result.trace} --spool {result.spool}` to remove the spool."
    )


class Compact(TraceCommand):
    description = (
        "Writes a trace in which the events up to a position are compacted into sums: what each line allocated, the "
        "peaks and their composition, the leaks. Later events are copied one by one."
    )
    examples = (
        (
            "compact run.alloctrace --until peak -o small.alloctrace",
            "a smaller trace of a long run, with the last steps in full",
        ),
    )
    traces = "TRACE"
    reads_events = False

    def add_arguments(self, parser: CommandParser) -> None:
        parser.notes += POSITIONS
        parser.add_argument(
            "--until",
            dest="compact_until",
            type=parse_position,
            metavar="POSITION",
            help="compact the events up to this position",
        )
        parser.add_output("")

    def find_mistake(self, options: argparse.Namespace) -> str | None:
        if options.spool is not None:
            return "compact needs a finished trace: run `finish` on the trace of a killed program first"
        if options.compact_until is None or options.output is None:
            missing = "--until" if options.compact_until is None else "--output"
            return f"{missing} is missing: compact {options.traces[0]} --until POSITION --output FILE"
        return super().find_mistake(options)

    def run(self, query: Query) -> Exit:
        options = query.options
        compacted = compact(
            options.traces[0],
            query.target_path(Path(options.output)),
            until=options.compact_until,
            overwrite=options.overwrite,
        )
        if options.json:
            query.print_json("compact", compacted)
        else:
            query.screen.text(_describe_compacted(compacted))
        return Exit.OK


def _describe_compacted(result: Compacted) -> str:
    before, after = units.size(result.bytes_before), units.size(result.bytes_after)
    events = units.counted(result.events, "event")
    text = f"{result.trace}: {events} up to event {result.until - 1:,} are compacted into sums; "
    text += f"{after} instead of {before}"
    if result.bytes_after < result.bytes_before:
        return f"{text}."
    return f"{text}: keep the original trace, or compact up to a later position."


class Convert(TraceCommand):
    description = (
        "Converts a pickle of torch.cuda.memory._dump_snapshot, with or without a history, to a trace that all other "
        "commands read. The pickle is read as plain data: no code in it can run."
    )
    examples = (
        ("convert snapshot.pickle", "write snapshot.alloctrace next to it"),
        ("convert snapshot.pickle -o run.alloctrace --overwrite", "write another file, and replace it if it exists"),
    )
    traces = "SNAPSHOT"
    traces_help = "the pickle that torch wrote"
    reads_events = False

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_output(" (default: the snapshot's name with the ending .alloctrace)", "TRACE")

    def find_mistake(self, options: argparse.Namespace) -> str | None:
        if len(options.traces) > 1:
            return f"convert takes one snapshot, not {options.traces[1]!r} too"
        return super().find_mistake(options)

    def run(self, query: Query) -> Exit:
        from ..converting.convert import convert

        options = query.options
        source = options.traces[0]
        default = Path(os.path.splitext(source)[0] + ".alloctrace")
        # Without a target, convert() raises its own error for a trace, and for a path without a name.
        target = query.target_path(default) if options.output or default != Path(source) else None
        converted = convert(source, target, overwrite=options.overwrite)
        if options.json:
            query.print_json("convert", converted)
        else:
            for sentence in _describe_converted(converted):
                query.screen.text(sentence)
        return Exit.OK


def _describe_converted(result: Converted) -> list[str]:
    devices = ", ".join(result.devices) or "no device"
    sentences = [f"{result.trace}: {units.counted(result.events, 'event')} of {devices}"]
    if not result.events:
        sentences.append("The snapshot has no history: the trace has its segments and blocks, but no events.")
    if result.mid_run:
        sentences.append(
            f"On {', '.join(result.mid_run)} the history begins after the start of the run, since torch keeps only the "
            "last entries: earlier blocks are known, but not when they were allocated."
        )
    if not result.frames:
        sentences.append("It has no stacks: torch records them with _record_memory_history(stacks='python') or 'all'.")
    if result.faults:
        sentences.append(
            f"The history contradicts the state at its end in {units.counted(result.faults, 'event')}: it was paused "
            "or cleared. For details, run `verify` on the trace."
        )
    sentences.extend(f"Left out: {units.counted(count, 'event')} of {what}." for what, count in result.skipped.items())
    return sentences


class Export(TraceCommand):
    description = (
        "Writes the memory at a position, or the events of a range, for speedscope, flame graphs, Perfetto, memory_viz "
        "or pandas."
    )
    examples = (
        ("export run.alloctrace --to speedscope --at peak", "the calls that hold memory at the peak"),
        ("export run.alloctrace --to collapsed --since step:10 --until step:20", "what ten steps allocated, by stack"),
        ("export run.alloctrace --to memory-viz -o snapshot.pickle", "for https://pytorch.org/memory_viz"),
    )

    def add_arguments(self, parser: CommandParser) -> None:
        names = ", ".join(FORMATS)
        parser.add_argument("--to", choices=[*FORMATS], metavar="FORMAT", help=f"one of {names}")
        parser.add_output(" (default: next to the trace)")
        without_at = " and ".join(name for name, entry in FORMATS.items() if not entry.takes_at)
        parser.add_at(
            f"the state to export (default: peak for speedscope and collapsed, else end; not for {without_at})", None
        )
        parser.add_range(
            "export the events after this position (default: the beginning)",
            "export the events up to this position (default: end)",
        )
        parser.add_device("export only this device (default: all)")
        parser.notes += "".join(f"{name:12} {entry.contents}\n" for name, entry in FORMATS.items())

    def find_mistake(self, options: argparse.Namespace) -> str | None:
        if options.to is None:
            return f"--to is missing: use one of {', '.join(FORMATS)}"
        has_range = (options.since, options.until, options.region) != (None, None, None)
        takes_at = FORMATS[options.to].takes_at
        if options.at is not None and (not takes_at or (has_range and options.to != "memory-viz")):
            alternative = "--at or a range, not both" if takes_at else "--since and --until"
            return f"--at is one position: {options.to} takes {alternative}"
        return super().find_mistake(options)

    def run(self, query: Query) -> Exit:
        options, trace = query.options, query.trace
        since, until = _single_range(query)
        export_format = FORMATS[options.to]
        target = query.target_path(Path(trace.path).with_suffix(export_format.suffix))
        selection = Selection(options.at, since, until, options.device)
        written = export(trace, target, options.to, selection)
        size = written.stat().st_size
        if options.json:
            query.print_json("export", {"path": str(written), "bytes": size, "to": options.to})
        else:
            query.screen.text(f"{written}: {units.size(size)}, for {export_format.reader}")
        return Exit.OK


def _single_range(query: Query) -> tuple[Position | None, Position | None]:
    """Return the only range of the query. Raises PositionError for several regions of a name."""
    ranges, name = query.ranges, query.options.region
    if len(ranges) > 1:
        choices = f"--in {name}#1 to {name}#{len(ranges)}"
        raise PositionError(f"a file has one range, but there are {len(ranges):,} regions {name!r}: use {choices}")
    return ranges[0]
