"""Command `peak`: the memory at its peak, or at another position."""

from __future__ import annotations

import argparse

from ..analysis.free_memory.failed_allocations import ENDED, find_failed_allocations
from ..analysis.usage.composition import COMPOSITION_BY
from ..analysis.usage.differing_frames import differing_frames
from ..analysis.usage.live_memory import LiveMemory, highest_of_ranges
from ..analysis.usage.module_folding import folded_memory
from ..reading.modules import MODULE
from ..reading.positions import PEAKS
from ..report.composition import (
    composition_data,
    peak_above_sentence,
    position_data,
    unknown_peak_sentence,
    write_composition,
    write_position,
)
from .arguments import CommandParser, parse_byte_count, parse_gpu
from .trace_command import Exit, Query, TraceCommand

_ROWS = 10
_BY_SEVERITY = (Exit.OK, Exit.UNKNOWN, Exit.FOUND)
_STATUS_BY_FIT = {True: Exit.OK, False: Exit.FOUND, None: Exit.UNKNOWN}


class Peak(TraceCommand):
    description = (
        "Shows what was live at the peak of allocated memory (or reserved, or at another position). Rows are lines of "
        "your code, each with its share; below them the same memory by role (parameters, activations, ...), by phase "
        "of the step and by age."
    )
    examples = (
        ("peak run.alloctrace --by function", "which functions hold the peak"),
        ("peak run.alloctrace --by role", "how much is for parameters, gradients, activations, ..."),
        ("peak run.alloctrace --tree", "the call tree: from the outermost call down, each with all that it called"),
        ("peak run.alloctrace --by module", "which parts of the model hold it"),
        ("peak run.alloctrace --at step:10", "what was live when step 10 ended"),
        ("peak run.alloctrace --since step:10 --until step:20", "the peak within ten steps"),
        ("peak run.alloctrace --in validation", "the highest peak of all regions of this name"),
        ("peak run.alloctrace --fail-above 64MiB", "exit with status 1 if more was allocated"),
        ("peak run.alloctrace --top 3 --all-frames", "the three lines that hold most, each with its whole stack"),
    )
    if_truncated = "A higher peak may have come after the break."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_at("what to show: peak (default), peak:reserved, or any other position", "peak")
        parser.add_range(
            "the peak after this position (default: the beginning of the trace)",
            "the peak up to this position (default: end)",
        )
        parser.add_by(COMPOSITION_BY)
        parser.add_argument(
            "--tree",
            action="store_true",
            help="show the calls that led to it, from the outermost down, each with all that it called (with "
            "--all-frames also those inside libraries)",
        )
        parser.add_argument(
            "--fits",
            type=parse_gpu,
            metavar="GPU",
            help="also show whether the run fits on this GPU: a name such as A10G, or a size such as 24GB; exit with "
            "status 1 if it does not fit, 3 if this cannot be predicted",
        )
        parser.add_argument(
            "--fail-above",
            type=parse_byte_count,
            metavar="SIZE",
            help="exit with status 1 when the peak of allocated bytes is more, such as 20GiB",
        )
        parser.add_device("show only this device (default: the one with the highest peak)")
        parser.add_csv()
        parser.add_top(_ROWS, "rows of the table")
        parser.add_code()

    def find_mistake(self, options: argparse.Namespace) -> str | None:
        has_range = (options.since, options.until, options.region) != (None, None, None)
        if options.fail_above is not None and options.at != PEAKS[0]:
            return f"--fail-above limits the peak of allocated bytes: omit --at {options.at}"
        if has_range and options.at not in PEAKS:
            return f"--since, --until and --in look for a peak: use --at peak or peak:reserved, not {options.at}"
        if options.tree and options.by != COMPOSITION_BY[0]:
            return f"--tree shows calls: omit --by {options.by}"
        if options.fits is not None and (options.json or options.csv):
            return "--fits is a line of the text: with --json or --csv use the command what-if with --memory"
        return super().find_mistake(options)

    def run(self, query: Query) -> Exit:
        trace, options = query.trace, query.options
        if query.by == MODULE and not (options.json or options.csv):
            memory = folded_memory(trace, query.ranges, options.at, device=options.device)
        else:
            memory = highest_of_ranges(trace, query.ranges, options.at, by=query.by, device=options.device)
        top = query.rows(_ROWS)
        status = Exit.OK
        if options.fits is not None:
            from ..report.what_if import write_fits

            status = _STATUS_BY_FIT[write_fits(trace, options.fits, memory.device, query.screen)]
        if options.tree:
            self._write_tree(query, memory)
        elif options.json:
            query.print_json("peak", composition_data(memory, top))
        elif options.csv:
            query.print_csv(memory.composition.head(top))
        else:
            stack_ids = memory.composition["stack_id"][:top].tolist() if options.by == "stack" else ()
            differing = differing_frames(trace.stacks, stack_ids)
            write_composition(memory, trace.begin_ns, query.screen, query.names, top, differing, asked_by=query.by)
        if options.fail_above is not None:
            status = max(status, self._judge(query, memory), key=_BY_SEVERITY.index)
        return status

    def _judge(self, query: Query, memory: LiveMemory) -> Exit:
        limit, peak, integrity = query.options.fail_above, memory.peak, query.trace.integrity
        is_exceeded = peak is not None and peak.bytes > limit
        failures = find_failed_allocations(query.trace, device=memory.device, last=1)
        ranges = [query.trace.unchecked_range(since, until, memory.device) for since, until in query.ranges]
        has_ended = any(
            failure.outcome == ENDED and within.first <= failure.seq < within.end
            for failure in failures
            for within in ranges
        )
        is_certain = not integrity.has_gaps if is_exceeded else query.trace.covers_run and not has_ended
        if not (query.options.json or query.options.csv):
            if not is_certain:
                query.screen.blank()
                query.screen.text(f"UNKNOWN  {unknown_peak_sentence(query.trace, has_ended)}", hanging=9, style="bold")
            elif peak is not None and is_exceeded:
                query.screen.blank()
                query.screen.text(f"FAIL  {peak_above_sentence(peak, limit)}", hanging=6, style="bold red")
        return Exit.UNKNOWN if not is_certain else Exit.FOUND if is_exceeded else Exit.OK

    def _write_tree(self, query: Query, memory: LiveMemory) -> None:
        from ..analysis.usage.tree import tree_at
        from ..report.tree import calls_data, write_tree

        trace, options = query.trace, query.options
        at = "end" if memory.seq is None else memory.seq
        tree = tree_at(trace, at, device=memory.device, all_frames=options.all_frames)
        if options.json:
            data = {**position_data(memory), "calls": calls_data(tree.head(query.rows(0)).calls)}
            query.print_json("peak-tree", data, indent=None)  # indentation would be most of the output
        elif options.csv:
            query.print_csv(tree.head(query.rows(0)).table)
        else:
            write_position(memory, trace.begin_ns, query.screen)
            write_tree(tree, query.screen, query.names, options.top, all_frames=options.all_frames)
