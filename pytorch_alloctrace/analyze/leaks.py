"""Command `leaks`: the leaks of a run, a range or regions."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console

from .. import command
from ..analysis.leaks.judge import Leak
from ..analysis.leaks.leak_report import leaks_as_table
from ..analysis.limit import Exceeded, children_above, devices_above
from ..analysis.summary import LeaksAnswer, Summary, summarize
from ..analysis.usage.ranges import ranges_between
from ..errors import PositionError
from ..reading.table import Table, texts
from ..report.children import write_children
from ..report.leaks import exceeded_sentence
from ..report.screen import Screen
from ..report.verdict import write_leaks
from .arguments import CommandParser
from .trace_command import Exit, Query, TraceCommand

_MAX_NAMED_REGIONS = 5
_EXIT_BY_ANSWER = {LeaksAnswer.FOUND: Exit.FOUND, LeaksAnswer.NONE: Exit.OK, LeaksAnswer.UNKNOWN: Exit.UNKNOWN}


class Leaks(TraceCommand):
    progress_label = "judging"
    description = (
        "Shows the lines that allocate blocks again and again and never free them, and the buffers that grow with each "
        "replacement. It judges the whole run or a range of its steps, most certain and fastest leaks first."
    )
    examples = (
        ("leaks run.alloctrace", "each leak with its rate, how certain it is, and when the device is full"),
        ("leaks run.alloctrace --fail", "the same; exit status 1 when there is one, 3 when this cannot be judged"),
        ("leaks run.alloctrace --since step:10", "what leaks after the first ten steps"),
        ("leaks run.alloctrace --in epoch", "what leaks in the regions of this name, each judged by itself"),
        (
            "leaks run.alloctrace --fail-above 1MiB/step --markdown > comment.md",
            "a comment for a pull request; exit status 1 when a device leaks more than 1 MiB per step",
        ),
    )
    if_truncated = "Whether anything leaked after the break is unknown."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_range(
            "judge the steps that lie wholly after this position; what came before is warm-up",
            "judge the steps that lie wholly before this position (default: end)",
        )
        parser.add_device()
        parser.add_argument(
            "--fail",
            action="store_true",
            help="for CI: exit with status 1 when there is a leak, 3 when this cannot be judged",
        )
        parser.add_fail_above("the leaks of a device hold", "its peak")
        parser.add_csv()
        parser.add_markdown()
        parser.add_top(0, "leaks")
        parser.add_code()

    def run(self, query: Query) -> Exit:
        options = query.options
        judged = _judge_ranges(query)
        exceeded, is_undecided = _devices_above_limit(query, judged)
        sentences = [exceeded_sentence(device, options.fail_above) for device in exceeded]
        top = query.rows(0)
        if options.json or options.csv:
            table = _make_table(query, judged).head(top)
            if options.json:
                query.print_json("leaks", table)
            else:
                query.print_csv(_flatten_sites(table))
        elif options.markdown:
            from ..report.markdown import leaks_markdown

            for number, part in enumerate(_select_leaking(judged) or [_most_pressing(judged)]):
                # Exceeded limits are printed once, with the first part.
                query.print_text(leaks_markdown(part.summary, () if number else sentences, top, part.region))
        else:
            _write_text(query, judged, top)
            if sentences:
                query.screen.blank()
            for sentence in sentences:
                query.screen.text(f"FAIL  {sentence}", hanging=6, style="bold red")
        if options.json or options.csv:
            _write_children_to_stderr(query, judged)
        answer = _most_pressing(judged).summary.leaks_answer
        if options.fail_above is None:
            return _EXIT_BY_ANSWER[answer] if options.fail else Exit.OK
        if exceeded or (options.fail and answer is LeaksAnswer.FOUND):
            return Exit.FOUND
        is_known = not is_undecided and all(part.summary.leaks_are_known for part in judged)
        return Exit.OK if is_known else Exit.UNKNOWN


@dataclass(frozen=True, eq=False)
class _JudgedPart:
    """Summary of the whole run, a range, or a region."""

    region: str
    """Region as name#number, or "" for the run or a range."""
    summary: Summary

    @property
    def leaks(self) -> list[Leak]:
        return sorted(
            (leak for device in self.summary.devices for leak in device.leaks.leaks),
            key=lambda leak: leak.weight,
            reverse=True,
        )


def _judge_ranges(query: Query) -> list[_JudgedPart]:
    """Judge the run, the range, or each region with a whole step: growth per step cannot be added up."""
    trace, options, ranges = query.trace, query.options, query.ranges
    devices = [options.device] if options.device else []
    if query.is_whole_run:
        return [_JudgedPart("", summarize(trace, devices=devices, of_leaks=True, with_children=True))]
    within = ranges_between(trace, ranges, device=options.device)
    if len(ranges) == 1:
        return [_JudgedPart("", summarize(trace, devices=devices, of_leaks=True, within=within[0]))]
    regions = {trace.range_of(region): region for region in trace.positions.stretches_named(options.region)}
    with_steps = [part for part in within if trace.positions.whole_steps(part).any()]
    if not with_steps:
        raise PositionError(
            f"leaks are judged by steps, but no whole step lies in any of the {len(ranges):,} regions "
            f"{options.region!r}: `{command.spelled()} diff {shlex.quote(trace.path)} --in "
            f"{shlex.quote(options.region)}` shows what all of them left behind"
        )
    return [
        _JudgedPart(
            f"{regions[part].name}#{regions[part].number}",
            summarize(trace, devices=devices, of_leaks=True, within=part),
        )
        for part in with_steps
    ]


def _most_pressing(judged: Sequence[_JudgedPart]) -> _JudgedPart:
    order = (LeaksAnswer.FOUND, LeaksAnswer.UNKNOWN, LeaksAnswer.NONE)
    return min(judged, key=lambda part: order.index(part.summary.leaks_answer))


def _select_leaking(judged: Sequence[_JudgedPart]) -> list[_JudgedPart]:
    return [part for part in judged if part.summary.leaks_answer is LeaksAnswer.FOUND]


def _write_text(query: Query, judged: Sequence[_JudgedPart], top: int) -> None:
    if len(judged) == 1 and not judged[0].region:
        write_leaks(judged[0].summary, query.screen, top, query.frames)
        return
    answers = {part.region: part.summary.leaks_answer for part in judged}
    for part in _select_leaking(judged):
        query.screen.text(f"IN {part.region}", style="bold")
        write_leaks(part.summary, query.screen, top, query.frames)
        query.screen.blank()
    total = f"of {len(query.ranges):,} regions {query.options.region!r}"
    for answer, prefix in ((LeaksAnswer.NONE, "No leak in"), (LeaksAnswer.UNKNOWN, "Too short to judge:")):
        regions = [region for region, own in answers.items() if own is answer]
        if regions:
            query.screen.text(f"{prefix} {len(regions):,} {total}: {_join_regions(regions)}.")
    if len(judged) < len(query.ranges):
        query.screen.text(f"No whole step lies in {len(query.ranges) - len(judged):,} {total}.")


def _join_regions(regions: Sequence[str]) -> str:
    listed = ", ".join(regions[:_MAX_NAMED_REGIONS])
    return listed if len(regions) <= _MAX_NAMED_REGIONS else f"{listed} and {len(regions) - _MAX_NAMED_REGIONS:,} more"


def _make_table(query: Query, judged: Sequence[_JudgedPart]) -> Table:
    leaks = [(leak, part.region) for part in judged for leak in part.leaks]
    table = leaks_as_table(query.trace, [leak for leak, _ in leaks])
    return table.assign(region=texts(region for _, region in leaks)) if judged[0].region else table


def _devices_above_limit(query: Query, judged: Sequence[_JudgedPart]) -> tuple[list[Exceeded], bool]:
    """Return the devices above --fail-above, also of children, and whether leaks of children cannot be judged by it."""
    limit = query.options.fail_above
    if limit is None:
        return [], False
    children = judged[0].summary.children
    if children is None or not children.runs:
        return [device for part in judged for device in devices_above(query.trace, part.leaks, limit)], False
    exceeded, is_undecided = children_above(children, limit)
    # A launcher that leaks nothing may have no steps, which a limit per step would refuse.
    own = devices_above(query.trace, judged[0].leaks, limit) if judged[0].leaks else []
    return own + exceeded, is_undecided


def _write_children_to_stderr(query: Query, judged: Sequence[_JudgedPart]) -> None:
    """Write what children did, which a table of this trace's leaks has no place for, if it decides the exit status."""
    children = judged[0].summary.children
    if children is not None and (children.runs or children.unjudged) and query.options.fail:
        write_children(children, Screen(Console(stderr=True), query.options.width), query.names)


def _flatten_sites(leaks: Table) -> Table:
    """Return the table with the sites of a leak in one cell: FILE:LINE BYTES, separated by semicolons."""
    sites = (
        "; ".join(f"{site['filename']}:{site['line']} {site['allocated_bytes']}" for site in row)
        for row in leaks["sites"].tolist()
    )
    return leaks.assign(sites=texts(sites))
