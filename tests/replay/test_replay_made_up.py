"""Traces made up event by event: what recorders of torch's allocators write only after a loss, or never yet."""

from __future__ import annotations

import pickle
from pathlib import Path

import core_probe
import numpy as np
import pytest
from made_up_events import BEGIN, CUDA, MIB, Row, event, freed, make_trace

import pytorch_alloctrace as alloctrace
from pytorch_alloctrace.reading.names import KINDS
from pytorch_alloctrace.report.export.memory_viz import memory_viz


def test_a_block_of_unknown_segment_does_not_stay_for_ever(tmp_path: Path) -> None:
    """The alloc before it was lost, so it seemed to stand alone; then the segment is cut where it begins."""
    rows = [event("segment_alloc", address=BEGIN, size=20 * MIB), event("lost", size=1)]
    rows += [event("alloc", address=BEGIN + 4 * MIB, size=4 * MIB, stack=1), *freed(BEGIN, 4 * MIB)]
    rows += [event("alloc", address=BEGIN, size=4 * MIB, stack=2)]
    rows += [*freed(BEGIN + 4 * MIB, 4 * MIB), *freed(BEGIN, 4 * MIB)]
    trace = make_trace(tmp_path / "t.alloctrace", rows)
    assert trace.live().empty and trace.verify().missed_frees == 1
    [block] = trace.blocks().to_dict("records")
    assert (block["address"], block["block_bytes"], block["state"]) == (BEGIN, 20 * MIB, "inactive")
    assert trace.timeline(points=1)["allocated_bytes"].tolist() == [0]


@pytest.mark.parametrize("segments", [1, 0], ids=["in a segment", "alone"])
def test_an_allocation_where_a_block_lives_tells_that_its_free_was_missed(tmp_path: Path, segments: int) -> None:
    rows = [event("segment_alloc", address=BEGIN, size=4 * MIB)] * segments
    rows += [event("alloc", address=BEGIN, size=4 * MIB, stack=stack) for stack in (1, 2)]
    trace = make_trace(tmp_path / "t.alloctrace", rows)
    assert (trace.verify().missed_frees, trace.verify().unmatched_frees) == (1, 0)
    assert trace.live()[["stack_id", "requested_bytes"]].values.tolist() == [[2, 4 * MIB]]


def test_a_device_that_was_emptied_is_still_there(tmp_path: Path) -> None:
    rows = [event("segment_alloc", address=BEGIN, size=20 * MIB), event("alloc", address=BEGIN, size=4 * MIB)]
    trace = make_trace(tmp_path / "t.alloctrace", [*rows, event("lost", size=3), event("allocator_state", size=0)])
    assert len(trace.devices) == 1 and trace.peak().bytes == 4 * MIB
    assert trace.live().empty and trace.diagnose() and trace.verify().resumed == 1


def test_a_refused_request_is_no_allocation_of_forward(tmp_path: Path) -> None:
    """The line of a block of backward is the same at every position that is asked for."""
    of_node = {"node_type": 1, "node_sequence": 7, "node_thread": 1}
    rows = [event("segment_alloc", address=BEGIN, size=20 * MIB), event("oom", size=5 * MIB, stack=1, sequence=8)]
    rows += [event("alloc", address=BEGIN, size=MIB, stack=2, sequence=8)]
    rows += [event("alloc", address=BEGIN + MIB, size=MIB, **of_node), event("step", size=1)]
    trace = make_trace(tmp_path / "t.alloctrace", rows)
    for position in ("end", 3):
        assert trace.live(position)["stack_id"].tolist() == [2, 2]
    assert trace.events(columns=["forward_stack_id"], kinds=("alloc",))["forward_stack_id"].tolist() == [0, 2]


def test_a_free_that_completes_at_once_is_one_event(tmp_path: Path) -> None:
    """As good as the two of older traces; a free that waits is two. Also in ranges that begin in between."""
    other = BEGIN + 4 * MIB

    def made(name: str, *at_once: Row) -> alloctrace.Trace:
        rows = [event("segment_alloc", address=BEGIN, size=20 * MIB)]
        for number in range(2):
            rows += [event("alloc", address=address, size=4 * MIB, stack=1) for address in (BEGIN, other)]
            waits = freed(other, 0)
            rows += [*at_once, waits[0], event("mark", size=1), waits[1], event("step", size=number)]
        return make_trace(tmp_path / f"{name}.alloctrace", rows)

    two, one = made("two", *freed(BEGIN, 0)), made("one", freed(BEGIN, 0)[1])
    for trace in (one, two):
        verified = trace.verify()
        assert verified.contradictions == verified.unmatched_frees == verified.missed_frees == 0
        assert trace.live().empty and trace.blocks()["state"].tolist() == ["inactive"]
        assert trace.peak().bytes == 8 * MIB and trace.peak().seq == 2
        at = trace.events()["seq"].tolist()
        levels = [int(trace.live(seq)["requested_bytes"].sum()) for seq in at]
        for first in at[1:]:
            for last in {first, at[-1]}:
                if highest := max(levels[first - 1 : last + 1]):
                    assert trace.peak(since=first - 1, until=last).bytes == highest, (first, last)
    assert one.usage(by="stack").equals(two.usage(by="stack"))
    whole, half = (events_of_pickle(trace) for trace in (two, one))
    assert whole == half and [action for action, _ in half].count("free_requested") == 4
    for first in range(1, 8):  # also between the request of a free that waits and its completion
        part = events_of_pickle(one, since=first)
        assert part and part == half[-len(part) :]


def events_of_pickle(trace: alloctrace.Trace, since: int | None = None) -> list[tuple[str, int]]:
    data = pickle.loads(memory_viz(trace._recorded, None, since, None, None))
    return [(one["action"], one["addr"]) for one in data["device_traces"][-1]]


@pytest.mark.parametrize(
    "rows",
    [
        freed(BEGIN, 4),
        [event("free_completed", address=BEGIN, size=4)],
        [event("segment_alloc", address=BEGIN + MIB, size=MIB), event("lost", size=2), *freed(BEGIN, 4)],
        [event("segment_alloc", address=BEGIN + MIB, size=MIB), event("lost", size=2), freed(BEGIN, 4)[1]],
    ],
)
def test_a_free_of_an_unknown_block_counts_once(tmp_path: Path, rows: list[Row]) -> None:
    assert make_trace(tmp_path / "t.alloctrace", rows).verify().unmatched_frees == 1


def state_of_blocks(*blocks: tuple[int, int]) -> list[Row]:
    """Return the state of a segment of blocks of 1 MiB, given by requested bytes and state."""
    size = len(blocks) * MIB
    rows = [event("allocator_state", size=1 + len(blocks)), event("state_segment", address=BEGIN, size=size)]
    for part, (requested, state) in enumerate(blocks):
        rows.append(event("state_block", address=BEGIN + part * MIB, size=MIB, sequence=requested, node_sequence=state))
    return rows


def test_blocks_of_a_state_have_numbers_of_their_own(tmp_path: Path) -> None:
    """What died between two positions is found by them."""
    trace = make_trace(tmp_path / "t.alloctrace", [*state_of_blocks((MIB, 1), (MIB, 1)), *freed(BEGIN, MIB)])
    [device] = trace.devices
    before, after = ({*trace._recorded.replay.live(end, device)["alloc_seq"]} for end in (4, len(trace.events())))
    assert len(before) == 2 and before - after == {min(before)}
    assert trace.live()["alloc_seq"].isna().all()  # older than the recording
    assert trace.usage()["allocations"].sum() == 0 and trace.usage()["live_blocks"].sum() == 1


def test_a_free_has_the_size_of_its_block_in_a_state(tmp_path: Path) -> None:
    frees = [*freed(BEGIN, 0), event("free_completed", address=BEGIN + MIB)]
    trace = make_trace(tmp_path / "t.alloctrace", [*state_of_blocks((MIB - 7, 1), (MIB - 8, 2)), *frees])
    sizes = trace.events(kinds=("free_requested", "free_completed"))["requested_bytes"]
    assert sizes.tolist() == [MIB - 7, MIB - 7, MIB - 8]


def test_checkpoints_know_what_came_before(tmp_path: Path) -> None:
    """The sizes of frees and what forward caused: the same for each position, whichever way it is reached."""
    count = 1_700_000  # some checkpoints
    number = np.arange(count // 2)
    events = core_probe.make_events(count)
    events["time"], events["location"] = np.arange(count), CUDA
    # Every other allocation is of backward; each lives until 500 others have been made.
    made, ended = events[0::2], events[1::2]
    made["kind"], ended["kind"] = KINDS.index("alloc"), KINDS.index("free_completed")
    made["address"], ended["address"] = 64 * (number % 1000), 64 * ((number + 500) % 1000)
    made["size"] = 1 + number % 64
    is_backward = number % 2 == 1
    node, thread = number // 2 % 300_000, 1 + number // 4 % 3
    made["thread"] = np.where(is_backward, 4, thread)
    made["stack"], made["sequence"] = np.where(is_backward, 0, 1 + number % 3), np.where(is_backward, 0, node + 1)
    made["node_type"], made["node_thread"] = is_backward, np.where(is_backward, thread, 0)
    made["node_sequence"] = np.where(is_backward, node, 0)
    with core_probe.Recorder(tmp_path / "t.alloctrace", ring_events=1 << 16, wait_ns=10**10) as recorder:
        assert recorder.push(events) == count
    trace = alloctrace.load(tmp_path / "t.alloctrace")
    events_of_all = trace.events(columns=["seq", "kind", "requested_bytes", "stack_id", "forward_stack_id"])
    allocs = events_of_all[events_of_all["kind"] == "alloc"].set_index("seq")
    frees = events_of_all.loc[events_of_all["kind"] == "free_completed", "requested_bytes"]
    assert frees.tolist()[500:] == made["size"][:-500].tolist()
    for since, until in ((1_699_000, None), (760_000, 770_000), (740_000, 800_000), (1_600_001, 1_600_010)):
        part = trace.events(since=since, until=until, columns=list(events_of_all.columns))
        expected = events_of_all[(events_of_all["seq"] > since) & (events_of_all["seq"] <= (until or count))]
        assert part.equals(expected.reset_index(drop=True)), (since, until)
    for position in (1_699_000, 790_000, 1_600_001, 30):
        live = trace.live(at=position)
        births = live["alloc_seq"].to_numpy(np.int64)
        own, forward = (allocs.loc[births, name].to_numpy() for name in ("stack_id", "forward_stack_id"))
        made = np.maximum(own, forward)
        assert live["stack_id"].to_numpy()[made > 0].tolist() == made[made > 0].tolist()
        assert live["function"][made == 0].str.endswith("line of forward unknown").all()
        assert live["backward"].tolist() == (forward != 0).tolist() and live["backward"].any()
