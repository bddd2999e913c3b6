"""Memory before a history began: its state at the end, minus the effects of its entries, from the last to the first.

torch's history is a ring: it contains the last entries, and the segments and blocks at its end. Each entry is undone by
the allocator's rules: an allocated block was the beginning of a free one, the free piece behind it was split off from
it, and two free neighbours are always merged.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field

from .. import _replay
from .snapshot import ALLOCATED, FREE, PENDING, Entry, Pool, Segment


@dataclass(slots=True)
class Piece:
    """Block of a run: in use, awaited by a stream, or free."""

    size: int
    state: int
    requested: int = 0
    frames: list[object] | None = None


@dataclass(slots=True)
class Run:
    """Segment, or gapless mapped part of an expandable one, with its pieces by address."""

    stream: int
    pool: Pool
    is_large: bool
    is_expandable: bool
    pieces: dict[int, Piece]
    addresses: list[int] = field(default_factory=list)
    """Addresses of the pieces, ascending."""

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

    def find_piece(self, address: int) -> int:
        return self.addresses[bisect_right(self.addresses, address) - 1]

    def find_previous(self, address: int) -> int | None:
        """Return the address of the preceding piece, or None."""
        index = bisect_left(self.addresses, address)
        return self.addresses[index - 1] if index else None

    def has_same_kind(self, other: Run) -> bool:
        return (self.stream, self.pool, self.is_large) == (other.stream, other.pool, other.is_large)


class Rewind:
    """Memory of one device, going back in time."""

    def __init__(self, segments: Iterable[Segment], settings: _replay.AllocatorSettings) -> None:
        self._settings = settings
        self._min_block = _replay.MIN_BLOCK_SIZE
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
        """Pools that do not split blocks, with a stream of each. No entry records MemPool(no_split=True): such a pool
        is recognised by blocks that are larger than the rules allow."""
        self.faults = 0
        """Number of entries that contradict later ones."""

    @property
    def runs(self) -> list[tuple[int, Run]]:
        """Address and run of each segment, by address."""
        return [(begin, self._runs[begin]) for begin in self._begins]

    def undo_entry(self, entry: Entry) -> Pool:
        """Undo an entry, and return its pool. Entries must be undone from the last to the first."""
        undo = {
            "alloc": self._undo_alloc,
            "free_requested": self._undo_free_request,
            "free_completed": self._undo_free,
            "segment_alloc": self._undo_segment_alloc,
            "segment_free": self._undo_segment_free,
            "segment_map": self._undo_map,
            "segment_unmap": self._undo_unmap,
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

    def _is_split(self, run: Run, available: int, requested: int) -> bool:
        """Return whether torch splits off the remainder if `requested` of `available` bytes are allocated."""
        if run.pool in self.unsplit_pools:
            return False
        return self._settings.splits(available, requested, run.is_large)

    def _find_unsplit_pools(self) -> dict[Pool, int]:
        unsplit_pools: dict[Pool, int] = {}
        self.unsplit_pools = {}
        for run in self._runs.values():
            if run.pool == (0, 0):
                continue
            for piece in run.pieces.values():
                rounded = self._settings.rounded(piece.requested)
                if piece.state != FREE and piece.size > rounded and self._is_split(run, piece.size, rounded):
                    unsplit_pools[run.pool] = run.stream
        return unsplit_pools

    def _undo_alloc(self, entry: Entry) -> Run | None:
        run = self._run_at(entry.address)
        piece = run.pieces.get(entry.address) if run else None
        if run is None or piece is None or piece.state == FREE:
            return None
        piece.state, piece.requested, piece.frames = FREE, 0, None
        self._merge_next(run, entry.address)
        return run

    def _merge_next(self, run: Run, address: int) -> None:
        piece = run.pieces[address]
        next_address = address + piece.size
        following = run.pieces.get(next_address)
        if following is not None and following.state == FREE:
            piece.size += run.remove(next_address).size

    def _undo_free_request(self, entry: Entry) -> Run | None:
        run = self._run_at(entry.address)
        piece = run.pieces.get(entry.address) if run else None
        if run is None or piece is None or piece.state != PENDING:
            return None
        piece.state, piece.requested = ALLOCATED, min(entry.size, piece.size)
        return run

    def _undo_free(self, entry: Entry) -> Run | None:
        run = self._run_at(entry.address)
        if run is None:
            return None
        begin = run.find_piece(entry.address)
        free = run.pieces[begin]
        if free.state != FREE:
            return None
        available = begin + free.size - entry.address
        rounded = self._settings.rounded(entry.size)
        if rounded > available:
            return None
        # The bytes behind the block were a free piece if torch would have split them off.
        size = rounded if self._is_split(run, available, rounded) else available
        if begin < entry.address:
            free.size = entry.address - begin
            before = run.find_previous(begin)
            # A piece too small for torch to split off is the end of the block before it.
            is_end_of_previous = not self._is_split(run, free.size + self._min_block, self._min_block)
            if is_end_of_previous and before is not None:
                run.pieces[before].size += run.remove(begin).size
        else:
            run.remove(begin)
        run.add(entry.address, Piece(size, PENDING, min(entry.size, size)))
        if size < available:
            run.add(entry.address + size, Piece(available - size, FREE))
        return run

    def _undo_segment_alloc(self, entry: Entry) -> Run | None:
        run = self._runs.get(entry.address)
        if run is None or run.is_expandable or run.end - run.begin != entry.size:
            return None
        if len(run.pieces) != 1 or run.pieces[entry.address].state != FREE:
            return None
        return self._remove_run(entry.address)

    def _undo_segment_free(self, entry: Entry) -> Run | None:
        if not entry.size or self._is_occupied(entry.address, entry.address + entry.size):
            return None
        is_large = entry.size > _replay.SMALL_SEGMENT
        pieces = {entry.address: Piece(entry.size, FREE)}
        run = Run(entry.stream, entry.pool or (0, 0), is_large, False, pieces)
        self._add_run(run)
        return run

    def _is_occupied(self, begin: int, end: int) -> bool:
        index = bisect_left(self._begins, end) - 1
        return index >= 0 and self._runs[self._begins[index]].end > begin

    def _undo_map(self, entry: Entry) -> Run | None:
        run, end = self._run_at(entry.address), entry.address + entry.size
        if run is None or not run.is_expandable or not entry.size:
            return None
        begin = run.find_piece(entry.address)
        free = run.pieces[begin]
        if free.state != FREE or begin + free.size < end:
            return None
        self._remove_run(run.begin)
        run.remove(begin)
        if begin < entry.address:
            run.add(begin, Piece(entry.address - begin, FREE))
        if end < begin + free.size:
            run.add(end, Piece(begin + free.size - end, FREE))
        remaining_pieces = (
            {address: run.pieces[address] for address in run.addresses if address < entry.address},
            {address: run.pieces[address] for address in run.addresses if address >= entry.address},
        )
        for pieces in remaining_pieces:
            if pieces:
                self._add_run(Run(run.stream, run.pool, run.is_large, True, pieces))
        return run

    def _undo_unmap(self, entry: Entry) -> Run | None:
        begin, end = entry.address, entry.address + entry.size
        if not entry.size or self._is_occupied(begin, end):
            return None
        before, following = self._run_at(begin - 1) if begin else None, self._runs.get(end)
        before = before if before is not None and self._can_extend(before, entry) else None
        following = following if following is not None and self._can_extend(following, entry) else None
        if before is not None and following is not None and not before.has_same_kind(following):
            following = None
        neighbour = before or following
        is_large = neighbour.is_large if neighbour else entry.size % self._settings.large_segment_size == 0
        pool = neighbour.pool if neighbour else entry.pool or (0, 0)
        mapped = Run(entry.stream, pool, is_large, True, {begin: Piece(entry.size, FREE)})
        for run in (before, following):
            if run is not None:
                self._remove_run(run.begin)
                mapped = Run(mapped.stream, mapped.pool, mapped.is_large, True, {**mapped.pieces, **run.pieces})
        self._merge_next(mapped, begin)
        previous = mapped.find_previous(begin)
        if previous is not None and mapped.pieces[previous].state == FREE:
            self._merge_next(mapped, previous)
        self._add_run(mapped)
        return mapped

    @staticmethod
    def _can_extend(run: Run, entry: Entry) -> bool:
        """Return whether a mapping next to a run can belong to the same expandable segment."""
        return run.is_expandable and run.stream == entry.stream and entry.pool in (None, run.pool)
