"""Which traces belong to one run, and which of its ranks has none.

Traces are of one run if their launcher tells them the same (the number of ranks, its own id of the run, the address of
its store) and they were recorded together: a trace that began `LATE` after all others of the run had ended, or more
than `MOST_APART` after the one before, is of another run. A rank has one process at a time: of a second trace of a
rank, the process began while the first ran, so it is a child of it; or it began after the first had ended, and is of
another run.

Traces of processes that were told no rank make one run of their own, whenever they were recorded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from .rank_summary import Card

MOST_APART = 1800.0
"""Seconds between the beginnings of two ranks of a run: torch's own time limit for all ranks to meet."""
LATE = 10.0
"""Seconds: the processes of a launcher do not begin at once, and a rank may fail in less."""
_SECOND_NS = 1_000_000_000


@dataclass(frozen=True)
class LeftOut:
    """A trace that is not compared."""

    card: Card
    why: str
    """"unreadable", "other run", "child" (of the process of a rank) or "no rank"."""


@dataclass
class Run:
    """Traces that were recorded together, by rank."""

    world_size: int | None
    cards: list[Card]
    children: list[Card] = field(default_factory=list)

    @property
    def missing(self) -> list[int]:
        """The ranks that have no trace."""
        known = {card.rank for card in self.cards}
        return [rank for rank in range(self.world_size or 0) if rank not in known]

    @property
    def begin_ns(self) -> int:
        return min(card.begin_ns for card in self.cards)

    def _takes(self, card: Card) -> bool:
        latest, end = max(one.begin_ns for one in self.cards), max(one.end_ns for one in self.cards)
        return card.begin_ns <= min(latest + MOST_APART * _SECOND_NS, end + LATE * _SECOND_NS)

    def add(self, card: Card) -> bool:
        """False if it is of another run."""
        if not self._takes(card):
            return False
        same = next((one for one in self.cards if one.rank == card.rank), None)
        if same is None:
            self.cards.append(card)
            return True
        if card.begin_ns > same.end_ns:
            return False
        self.children.append(card)
        return True


def find_run(cards: Sequence[Card]) -> tuple[Run | None, list[LeftOut]]:
    """The run with the most ranks, of equals the latest, and the traces that are left out; None if no trace can be
    read."""
    readable = [card for card in cards if not card.unreadable]
    left_out = [LeftOut(card, "unreadable") for card in cards if card.unreadable]
    runs = _runs([card for card in readable if card.rank is not None])
    without = [card for card in readable if card.rank is None]
    if not runs:
        return (Run(None, without) if without else None), left_out
    chosen = max(runs, key=lambda run: (len(run.cards), run.begin_ns))
    chosen.cards.sort(key=lambda card: card.rank or 0)
    left_out += [LeftOut(card, "child") for card in chosen.children]
    left_out += [LeftOut(card, "no rank") for card in without]
    left_out += [
        LeftOut(card, "other run") for run in runs if run is not chosen for card in [*run.cards, *run.children]
    ]
    return chosen, left_out


def _runs(cards: Sequence[Card]) -> list[Run]:
    by_job: dict[tuple[object, ...], list[Run]] = {}
    for card in sorted(cards, key=lambda card: card.begin_ns):
        runs = by_job.setdefault((card.world_size, card.job), [])
        # The latest run is the likeliest.
        if not any(run.add(card) for run in reversed(runs)):
            runs.append(Run(card.world_size, [card]))
    return [run for runs in by_job.values() for run in runs]
