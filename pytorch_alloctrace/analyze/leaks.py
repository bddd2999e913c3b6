"""The command `leaks`."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from .. import command
from ..analysis.leaks.judge import Leak
from ..analysis.leaks.leak_report import leaks_as_table
from ..analysis.limit import Exceeded, devices_above
from ..analysis.summary import LeaksAnswer, Summary, summarize
from ..analysis.usage.ranges import ranges_between
from ..errors import PositionError
from ..reading.table import Table, texts
from ..report.leaks import exceeded_sentence
from ..report.verdict import write_leaks
from .arguments import CommandParser
from .trace_command import Exit, Query, TraceCommand

_LISTED = 5
"""Most regions that a sentence names."""
_STATUSES = {LeaksAnswer.FOUND: Exit.FOUND, LeaksAnswer.NONE: Exit.OK, LeaksAnswer.UNKNOWN: Exit.UNKNOWN}


class Leaks(TraceCommand):
    working = "judging"
    description = (
        "Shows the lines whose blocks are allocated again and again and never freed, and the buffers that are replaced "
        "by ever larger ones. The whole run is judged, or a range of its steps, most certain and fastest leaks first."
    )
    examples = (
        ("leaks run.alloctrace", "each leak with its rate, how certain it is, and when the device is full"),
        ("leaks run.alloctrace --fail", "the same; exit status 1 when there is one, 3 when this cannot be judged"),
        ("leaks run.alloctrace --since step:10", "what leaks once ten steps have gone by"),
        ("leaks run.alloctrace --in epoch", "what leaks in the regions of this name, each judged by itself"),
        (
            "leaks run.alloctrace --fail-above 1MiB/step --markdown > comment.md",
            "a comment for a pull request; exit status 1 when a device leaks more than 1 MiB per step",
        ),
    )
    if_cut = "Whether anything leaked after the break is unknown."

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
        judged = _judged(query)
        exceeded = [one for found in judged for one in _exceeded(query, found.leaks)]
        sentences = [exceeded_sentence(one, options.fail_above) for one in exceeded]
        top = query.rows(0)
        if options.json or options.csv:
            table = _table(query, judged).head(top)
            if options.json:
                query.print_json("leaks", table)
            else:
                query.print_csv(_flat(table))
        elif options.markdown:
            from ..report.markdown import leaks_markdown

            for number, found in enumerate(_leaking(judged) or [_most_pressing(judged)]):
                # What is above a limit is said once.
                query.print_text(leaks_markdown(found.summary, () if number else sentences, top, found.region))
        else:
            _write(query, judged, top)
            if sentences:
                query.screen.blank()
            for sentence in sentences:
                query.screen.text(f"FAIL  {sentence}", hanging=6, style="bold red")
        answer = _most_pressing(judged).summary.leaks_answer
        if options.fail_above is None:
            return _STATUSES[answer] if options.fail else Exit.OK
        if exceeded or (options.fail and answer is LeaksAnswer.FOUND):
            return Exit.FOUND
        return Exit.OK if all(found.summary.leaks_are_known for found in judged) else Exit.UNKNOWN


@dataclass(frozen=True, eq=False)
class _Judged:
    """The whole run, a range, or a region."""

    region: str
    """"" if it is none."""
    summary: Summary

    @property
    def leaks(self) -> list[Leak]:
        return sorted(
            (leak for device in self.summary.devices for leak in device.leaks.leaks),
            key=lambda leak: leak.weight,
            reverse=True,
        )


def _judged(query: Query) -> list[_Judged]:
    """Each region by itself: a leak is what grows from step to step, and is not a sum. Of several regions, those in
    which no whole step lies are left out; raises PositionError if that is all of them."""
    trace, options, ranges = query.trace, query.options, query.ranges
    devices = [options.device] if options.device else []
    if query.is_whole:
        return [_Judged("", summarize(trace, devices=devices, of_leaks=True))]
    within = ranges_between(trace, ranges, device=options.device)
    if len(ranges) == 1:
        return [_Judged("", summarize(trace, devices=devices, of_leaks=True, within=within[0]))]
    regions = {trace.range_of(region): region for region in trace.positions.stretches_named(options.region)}
    with_steps = [one for one in within if trace.positions.whole_steps(one).any()]
    if not with_steps:
        raise PositionError(
            f"leaks are judged by steps, and no whole step lies in any of the {len(ranges):,} regions "
            f"{options.region!r}: `{command.spelled()} diff {shlex.quote(trace.path)} --in "
            f"{shlex.quote(options.region)}` shows what all of them left behind"
        )
    return [
        _Judged(
            f"{regions[one].name}#{regions[one].number}",
            summarize(trace, devices=devices, of_leaks=True, within=one),
        )
        for one in with_steps
    ]


def _most_pressing(judged: Sequence[_Judged]) -> _Judged:
    order = (LeaksAnswer.FOUND, LeaksAnswer.UNKNOWN, LeaksAnswer.NONE)
    return min(judged, key=lambda found: order.index(found.summary.leaks_answer))


def _leaking(judged: Sequence[_Judged]) -> list[_Judged]:
    return [found for found in judged if found.summary.leaks_answer is LeaksAnswer.FOUND]


def _write(query: Query, judged: Sequence[_Judged], top: int) -> None:
    if len(judged) == 1 and not judged[0].region:
        write_leaks(judged[0].summary, query.screen, top, query.frames)
        return
    answers = {found.region: found.summary.leaks_answer for found in judged}
    for found in _leaking(judged):
        query.screen.text(f"IN {found.region}", style="bold")
        write_leaks(found.summary, query.screen, top, query.frames)
        query.screen.blank()
    total = f"of {len(query.ranges):,} regions {query.options.region!r}"
    for answer, said in ((LeaksAnswer.NONE, "No leak in"), (LeaksAnswer.UNKNOWN, "Too short to judge:")):
        regions = [region for region, own in answers.items() if own is answer]
        if regions:
            query.screen.text(f"{said} {len(regions):,} {total}: {_listed(regions)}.")
    if len(judged) < len(query.ranges):
        query.screen.text(f"No whole step lies in {len(query.ranges) - len(judged):,} {total}.")


def _listed(regions: Sequence[str]) -> str:
    shown = ", ".join(regions[:_LISTED])
    return shown if len(regions) <= _LISTED else f"{shown} and {len(regions) - _LISTED:,} more"


def _table(query: Query, judged: Sequence[_Judged]) -> Table:
    """Of several regions, with the name of each."""
    leaks = [(leak, found.region) for found in judged for leak in found.leaks]
    table = leaks_as_table(query.trace, [leak for leak, _ in leaks])
    return table.assign(region=texts(region for _, region in leaks)) if judged[0].region else table


def _exceeded(query: Query, leaks: Sequence[Leak]) -> list[Exceeded]:
    limit = query.options.fail_above
    return [] if limit is None else devices_above(query.trace, leaks, limit)


def _flat(leaks: Table) -> Table:
    """The sites of each leak in one cell: FILE:LINE BYTES, separated by semicolons."""
    sites = (
        "; ".join(f"{site['filename']}:{site['line']} {site['allocated_bytes']}" for site in row)
        for row in leaks["sites"].tolist()
    )
    return leaks.assign(sites=texts(sites))
