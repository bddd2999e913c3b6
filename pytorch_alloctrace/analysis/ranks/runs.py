"""Which traces belong to one run, and which of its ranks has none.

Traces are of one run if their launcher tells them the same (the number of ranks, its own id of the run, the address of
its store) and they were recorded together: a trace that began `LATE` after all others of the run had ended, or more
than `MOST_APART` after the one before, is of another run. A rank has one process at a time: of a second trace of a
rank, the process began while the first ran, so it is a child of it; or it began after the first had ended, and is of
another run.

Of several copies of one recording, such as a trace and what `compact` made of it, the one with the most events stays.

Traces of processes that were told no rank make one run of their own, whenever they were recorded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from .rank_summary import RankSummary

MOST_APART = 1800.0
"""Seconds between the beginnings of two ranks of a run: torch's own time limit for all ranks to meet."""
LATE = 10.0
"""Seconds: the processes of a launcher do not begin at once, and a rank may fail in less."""
_SECOND_NS = 1_000_000_000


@dataclass(frozen=True)
class LeftOut:
    """A trace that is not compared."""

    summary: RankSummary
    why: str
    """"unreadable", "copy" (of another of the traces), "other run", "child" (of the process of a rank) or "no
    rank"."""


@dataclass
class Run:
    """Traces that were recorded together, by rank."""

    world_size: int | None
    summaries: list[RankSummary]
    children: list[RankSummary] = field(default_factory=list)

    @property
    def missing(self) -> list[int]:
        """The ranks that have no trace."""
        known = {summary.rank for summary in self.summaries}
        return [rank for rank in range(self.world_size or 0) if rank not in known]

    @property
    def begin_ns(self) -> int:
        return min(summary.begin_ns for summary in self.summaries)

    def _takes(self, summary: RankSummary) -> bool:
        latest, end = max(one.begin_ns for one in self.summaries), max(one.end_ns for one in self.summaries)
        return summary.begin_ns <= min(latest + MOST_APART * _SECOND_NS, end + LATE * _SECOND_NS)

    def add(self, summary: RankSummary) -> bool:
        """False if it is of another run."""
        if not self._takes(summary):
            return False
        same = next((one for one in self.summaries if one.rank == summary.rank), None)
        if same is None:
            self.summaries.append(summary)
            return True
        if summary.begin_ns > same.end_ns:
            return False
        self.children.append(summary)
        return True


def find_run(summaries: Sequence[RankSummary]) -> tuple[Run | None, list[LeftOut]]:
    """The run with the most ranks, of equals the latest, and the traces that are left out; None if no trace can be
    read."""
    left_out = [LeftOut(summary, "unreadable") for summary in summaries if summary.unreadable]
    originals: dict[object, RankSummary] = {}
    for summary in sorted(summaries, key=lambda summary: (-summary.events, summary.path)):
        # Damage may have taken the session's id.
        session = summary.session if summary.session.strip("0") else summary.path
        if not summary.unreadable and originals.setdefault((session, summary.rank), summary) is not summary:
            left_out.append(LeftOut(summary, "copy"))
    readable = [summary for summary in summaries if summary in originals.values()]
    runs = _runs([summary for summary in readable if summary.rank is not None])
    without = [summary for summary in readable if summary.rank is None]
    if not runs:
        return (Run(None, without) if without else None), left_out
    chosen = max(runs, key=lambda run: (len(run.summaries), run.begin_ns))
    chosen.summaries.sort(key=lambda summary: summary.rank or 0)
    left_out += [LeftOut(summary, "child") for summary in chosen.children]
    left_out += [LeftOut(summary, "no rank") for summary in without]
    left_out += [
        LeftOut(summary, "other run")
        for run in runs
        if run is not chosen
        for summary in [*run.summaries, *run.children]
    ]
    return chosen, left_out


def _runs(summaries: Sequence[RankSummary]) -> list[Run]:
    by_job: dict[tuple[object, ...], list[Run]] = {}
    for summary in sorted(summaries, key=lambda summary: summary.begin_ns):
        runs = by_job.setdefault((summary.world_size, summary.job), [])
        # The latest run is the likeliest.
        if not any(run.add(summary) for run in reversed(runs)):
            runs.append(Run(summary.world_size, [summary]))
    return [run for runs in by_job.values() for run in runs]
