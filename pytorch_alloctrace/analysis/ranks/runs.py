"""Runs: sets of traces that were recorded together, and the ranks without a trace.

Traces belong to one run if their launcher's settings are equal (number of ranks, id of the run, address of the store)
and they were recorded together. A trace belongs to another run if it began more than `MAX_DELAY_S` after all others had
ended, more than `MAX_APART_S` after the previous trace, or after another trace of its rank had ended. A second trace of
a rank that began while the first was recorded is of a child process.

Of several copies of one recording, such as a trace and its compacted copy, the copy with the most events is used.
Traces of processes without a rank form one run, whenever they were recorded. A process that started others of them and
allocated nothing is their launcher.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from .rank_summary import RankSummary

MAX_APART_S = 1800.0
"""Maximum seconds between the starts of two ranks: torch's time limit for the rendezvous of all ranks."""
MAX_DELAY_S = 10.0
"""Maximum seconds from the end of a failed rank to the start of another rank of the run."""
_SECOND_NS = 1_000_000_000


@dataclass(frozen=True)
class LeftOut:
    summary: RankSummary
    why: str
    """"unreadable", "copy" (of another trace), "other run", "child" (of the process of a rank), "launcher" or "no
    rank"."""


@dataclass
class Run:
    world_size: int | None
    summaries: list[RankSummary]
    children: list[RankSummary] = field(default_factory=list)

    @property
    def missing(self) -> list[int]:
        recorded = {summary.rank for summary in self.summaries}
        return [rank for rank in range(self.world_size or 0) if rank not in recorded]

    @property
    def begin_ns(self) -> int:
        return min(summary.begin_ns for summary in self.summaries)

    def _is_concurrent(self, summary: RankSummary) -> bool:
        latest, end = max(other.begin_ns for other in self.summaries), max(other.end_ns for other in self.summaries)
        return summary.begin_ns <= min(latest + MAX_APART_S * _SECOND_NS, end + MAX_DELAY_S * _SECOND_NS)

    def add(self, summary: RankSummary) -> bool:
        """Add a trace. Return False if it belongs to another run."""
        if not self._is_concurrent(summary):
            return False
        same_rank = next((other for other in self.summaries if other.rank == summary.rank), None)
        if same_rank is None:
            self.summaries.append(summary)
            return True
        if summary.begin_ns > same_rank.end_ns:
            return False
        self.children.append(summary)
        return True


def find_run(summaries: Sequence[RankSummary]) -> tuple[Run | None, list[LeftOut]]:
    """Return the run with the most ranks, the latest of several (None if there is none), and the other traces."""
    left_out = [LeftOut(summary, "unreadable") for summary in summaries if summary.unreadable]
    originals: dict[object, RankSummary] = {}
    for summary in sorted(summaries, key=lambda summary: (-summary.events, summary.path)):
        # A corrupt trace may have no session id.
        session = summary.session if summary.session.strip("0") else summary.path
        if not summary.unreadable and originals.setdefault((session, summary.rank), summary) is not summary:
            left_out.append(LeftOut(summary, "copy"))
    readable = [summary for summary in summaries if summary in originals.values()]
    runs = _find_runs([summary for summary in readable if summary.rank is not None])
    unranked = [summary for summary in readable if summary.rank is None]
    if not runs:
        starters = {(summary.host, summary.parent_process) for summary in unranked}
        ranks = []
        for summary in unranked:
            if summary.process > 0 and not summary.devices and (summary.host, summary.process) in starters:
                left_out.append(LeftOut(summary, "launcher"))
            else:
                ranks.append(summary)
        return (Run(None, ranks) if ranks else None), left_out
    chosen = max(runs, key=lambda run: (len(run.summaries), run.begin_ns))
    chosen.summaries.sort(key=lambda summary: summary.rank or 0)
    left_out += [LeftOut(summary, "child") for summary in chosen.children]
    left_out += [LeftOut(summary, "no rank") for summary in unranked]
    left_out += [
        LeftOut(summary, "other run")
        for run in runs
        if run is not chosen
        for summary in [*run.summaries, *run.children]
    ]
    return chosen, left_out


def _find_runs(summaries: Sequence[RankSummary]) -> list[Run]:
    by_job: dict[tuple[object, ...], list[Run]] = {}
    for summary in sorted(summaries, key=lambda summary: summary.begin_ns):
        runs = by_job.setdefault((summary.world_size, summary.job), [])
        # Try the latest run first: most traces belong to it.
        if not any(run.add(summary) for run in reversed(runs)):
            runs.append(Run(summary.world_size, [summary]))
    return [run for runs in by_job.values() for run in runs]
