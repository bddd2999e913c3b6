"""What there was before a history began: the state at its end, less what its entries did, from the last to the first.

torch's history is a ring: it has the last entries alone, and the segments and blocks at its end. Each entry is taken
back by the rules by which the allocator works: a block that is handed out was the beginning of a free one, and what is
free behind it was split off from it; of two free neighbours the allocator always makes one.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field

from .. import _replay
from .snapshot import ALLOCATED, FREE, PENDING, Entry, Pool, Segment


@dataclass(slots=True)
class Piece:
    """A block or free piece."""

    size: int
    state: int
    requested: int = 0
    frames: list[object] | None = None


@dataclass(slots=True)
class Run:
    """A segment, or a part of an expandable one that is mapped without a gap, with its pieces by address."""

    stream: int
    pool: Pool
    is_large: bool
    is_expandable: bool
    pieces: dict[int, Piece]
    addresses: list[int] = field(default_factory=list)
    """Of the pieces, in order."""

    def __post_init__(self) -> None:
        self.addresses = sorted(self.pieces)

    @property
    def begin(self) -> int:
        return self.addresses[0]

    @property
    def end(self) -> int:
        last = self.addresses[-1]
        return last + self.pieces[last].size

    def add(self, address: int, piece: Piece) -> None:
        self.pieces[address] = piece
        self.addresses.insert(bisect_left(self.addresses, address), address)

    def remove(self, address: int) -> Piece:
        del self.addresses[bisect_left(self.addresses, address)]
        return self.pieces.pop(address)

    def holding(self, address: int) -> int:
        """The address of the piece that an address lies in."""
        return self.addresses[bisect_right(self.addresses, address) - 1]

    def before(self, address: int) -> int | None:
        """The address of the piece before the one at an address."""
        index = bisect_left(self.addresses, address)
        return self.addresses[index - 1] if index else None

    def is_like(self, other: Run) -> bool:
        return (self.stream, self.pool, self.is_large) == (other.stream, other.pool, other.is_large)


class Rewind:
    """The memory of one device, going back in time."""

    def __init__(self, segments: Iterable[Segment], settings: _replay.AllocatorSettings) -> None:
        self._settings = settings
        self._least = _replay.MINIMUM_BLOCK
        self._runs: dict[int, Run] = {}
        for segment in segments:
            pieces = {
                block.address: Piece(block.size, block.state, block.requested, block.frames) for block in segment.blocks
            }
            if pieces:
                self._runs[segment.address] = Run(
                    segment.stream, segment.pool, segment.is_large, segment.is_expandable, pieces
                )
        self._begins = sorted(self._runs)
        self.unsplit_pools = self._find_unsplit_pools()
        """The pools, with a stream of each, in which blocks are larger than any rule explains: MemPool(no_split=True)
        makes such, and no entry says so."""
        self.faults = 0
        """Entries that do not fit what came after them."""

    @property
    def runs(self) -> list[tuple[int, Run]]:
        """What there is, by address."""
        return [(begin, self._runs[begin]) for begin in self._begins]

    def take_back(self, entry: Entry) -> Pool:
        """Undoes an entry: call it for the last entry first. Returns the pool that it belongs to."""
        undo = {
            "alloc": self._take_back_alloc,
            "free_requested": self._take_back_request,
            "free_completed": self._take_back_free,
            "segment_alloc": self._take_back_segment,
            "segment_free": self._bring_back_segment,
            "segment_map": self._take_back_map,
            "segment_unmap": self._bring_back_map,
        }.get(entry.action)
        if undo is None:
            return entry.pool or (0, 0)
        run = undo(entry)
        if run is None:
            self.faults += 1
            return entry.pool or (0, 0)
        return run.pool

    def _run_at(self, address: int) -> Run | None:
        index = bisect_right(self._begins, address) - 1
        if index < 0:
            return None
        run = self._runs[self._begins[index]]
        return run if address < run.end else None

    def _add_run(self, run: Run) -> None:
        self._runs[run.begin] = run
        self._begins.insert(bisect_left(self._begins, run.begin), run.begin)

    def _remove_run(self, begin: int) -> Run:
        del self._begins[bisect_left(self._begins, begin)]
        return self._runs.pop(begin)

    def _is_split(self, run: Run, available: int, wanted: int) -> bool:
        """Whether torch makes a block of its own of what is left of `available` bytes when `wanted` are taken."""
        if run.pool in self.unsplit_pools:
            return False
        return self._settings.splits(available, wanted, run.is_large)

    def _find_unsplit_pools(self) -> dict[Pool, int]:
        found: dict[Pool, int] = {}
        self.unsplit_pools = {}
        for run in self._runs.values():
            if run.pool == (0, 0):
                continue
            for piece in run.pieces.values():
                wanted = self._settings.rounded(piece.requested)
                if piece.state != FREE and piece.size > wanted and self._is_split(run, piece.size, wanted):
                    found[run.pool] = run.stream
        return found

    def _take_back_alloc(self, entry: Entry) -> Run | None:
        run = self._run_at(entry.address)
        piece = run.pieces.get(entry.address) if run else None
        if run is None or piece is None or piece.state == FREE:
            return None
        piece.state, piece.requested, piece.frames = FREE, 0, None
        self._merge_next(run, entry.address)
        return run

    def _merge_next(self, run: Run, address: int) -> None:
        piece = run.pieces[address]
        behind = address + piece.size
        following = run.pieces.get(behind)
        if following is not None and following.state == FREE:
            piece.size += run.remove(behind).size

    def _take_back_request(self, entry: Entry) -> Run | None:
        run = self._run_at(entry.address)
        piece = run.pieces.get(entry.address) if run else None
        if run is None or piece is None or piece.state != PENDING:
            return None
        piece.state, piece.requested = ALLOCATED, min(entry.size, piece.size)
        return run

    def _take_back_free(self, entry: Entry) -> Run | None:
        run = self._run_at(entry.address)
        if run is None:
            return None
        begin = run.holding(entry.address)
        free = run.pieces[begin]
        if free.state != FREE:
            return None
        available = begin + free.size - entry.address
        wanted = self._settings.rounded(entry.size)
        if wanted > available:
            return None
        # What is left behind it was free then too, if torch would have split it off.
        size = wanted if self._is_split(run, available, wanted) else available
        if begin < entry.address:
            free.size = entry.address - begin
            before = run.before(begin)
            # Too small for torch to have split it off: it is the end of the block before it.
            is_end = not self._is_split(run, free.size + self._least, self._least)
            if is_end and before is not None:
                run.pieces[before].size += run.remove(begin).size
        else:
            run.remove(begin)
        run.add(entry.address, Piece(size, PENDING, min(entry.size, size)))
        if size < available:
            run.add(entry.address + size, Piece(available - size, FREE))
        return run

    def _take_back_segment(self, entry: Entry) -> Run | None:
        run = self._runs.get(entry.address)
        if run is None or run.is_expandable or run.end - run.begin != entry.size:
            return None
        if len(run.pieces) != 1 or run.pieces[entry.address].state != FREE:
            return None
        return self._remove_run(entry.address)

    def _bring_back_segment(self, entry: Entry) -> Run | None:
        if not entry.size or self._is_taken(entry.address, entry.address + entry.size):
            return None
        is_large = entry.size > _replay.SMALL_SEGMENT
        pieces = {entry.address: Piece(entry.size, FREE)}
        run = Run(entry.stream, entry.pool or (0, 0), is_large, False, pieces)
        self._add_run(run)
        return run

    def _is_taken(self, begin: int, end: int) -> bool:
        index = bisect_left(self._begins, end) - 1
        return index >= 0 and self._runs[self._begins[index]].end > begin

    def _take_back_map(self, entry: Entry) -> Run | None:
        run, end = self._run_at(entry.address), entry.address + entry.size
        if run is None or not run.is_expandable or not entry.size:
            return None
        begin = run.holding(entry.address)
        free = run.pieces[begin]
        if free.state != FREE or begin + free.size < end:
            return None
        self._remove_run(run.begin)
        run.remove(begin)
        if begin < entry.address:
            run.add(begin, Piece(entry.address - begin, FREE))
        if end < begin + free.size:
            run.add(end, Piece(begin + free.size - end, FREE))
        parts = (
            {address: run.pieces[address] for address in run.addresses if address < entry.address},
            {address: run.pieces[address] for address in run.addresses if address >= entry.address},
        )
        for pieces in parts:
            if pieces:
                self._add_run(Run(run.stream, run.pool, run.is_large, True, pieces))
        return run

    def _bring_back_map(self, entry: Entry) -> Run | None:
        begin, end = entry.address, entry.address + entry.size
        if not entry.size or self._is_taken(begin, end):
            return None
        before, behind = self._run_at(begin - 1) if begin else None, self._runs.get(end)
        before = before if before is not None and self._continues(before, entry) else None
        behind = behind if behind is not None and self._continues(behind, entry) else None
        if before is not None and behind is not None and not before.is_like(behind):
            behind = None
        like = before or behind
        is_large = like.is_large if like else entry.size % self._settings.large_segment_size == 0
        pool = like.pool if like else entry.pool or (0, 0)
        made = Run(entry.stream, pool, is_large, True, {begin: Piece(entry.size, FREE)})
        for other in (before, behind):
            if other is not None:
                self._remove_run(other.begin)
                made = Run(made.stream, made.pool, made.is_large, True, {**made.pieces, **other.pieces})
        self._merge_next(made, begin)
        previous = made.before(begin)
        if previous is not None and made.pieces[previous].state == FREE:
            self._merge_next(made, previous)
        self._add_run(made)
        return made

    @staticmethod
    def _continues(run: Run, entry: Entry) -> bool:
        """Whether a mapping next to a run can be of the same expandable segment."""
        return run.is_expandable and run.stream == entry.stream and entry.pool in (None, run.pool)
