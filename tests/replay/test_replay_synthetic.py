"""Synthetic traces with sequences of events that are recorded only after a loss, or not yet at all."""

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


def test_block_of_unknown_segment_is_removed_by_its_free(tmp_path: Path) -> None:
    """The alloc of the preceding block was lost; a later alloc splits the segment at the block."""
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
def test_alloc_at_address_of_live_block_counts_missed_free(tmp_path: Path, segments: int) -> None:
    rows = [event("segment_alloc", address=BEGIN, size=4 * MIB)] * segments
    rows += [event("alloc", address=BEGIN, size=4 * MIB, stack=stack) for stack in (1, 2)]
    trace = make_trace(tmp_path / "t.alloctrace", rows)

    assert (trace.verify().missed_frees, trace.verify().unmatched_frees) == (1, 0)
    assert trace.live()[["stack_id", "requested_bytes"]].values.tolist() == [[2, 4 * MIB]]


def test_device_is_listed_when_state_is_empty(tmp_path: Path) -> None:
    rows = [event("segment_alloc", address=BEGIN, size=20 * MIB), event("alloc", address=BEGIN, size=4 * MIB)]
    trace = make_trace(tmp_path / "t.alloctrace", [*rows, event("lost", size=3), event("allocator_state", size=0)])
    assert len(trace.devices) == 1 and trace.peak().bytes == 4 * MIB
    assert trace.live().empty and trace.diagnose() and trace.verify().resumed == 1


def test_failed_allocation_is_no_allocation_of_forward(tmp_path: Path) -> None:
    """The line of a block of backward is the same at every position."""
    of_node = {"node_type": 1, "node_sequence": 7, "node_thread": 1}
    rows = [event("segment_alloc", address=BEGIN, size=20 * MIB), event("oom", size=5 * MIB, stack=1, sequence=8)]
    rows += [event("alloc", address=BEGIN, size=MIB, stack=2, sequence=8)]
    rows += [event("alloc", address=BEGIN + MIB, size=MIB, **of_node), event("step", size=1)]
    trace = make_trace(tmp_path / "t.alloctrace", rows)

    for position in ("end", 3):
        assert trace.live(position)["stack_id"].tolist() == [2, 2]
    assert trace.events(columns=["forward_stack_id"], kinds=("alloc",))["forward_stack_id"].tolist() == [0, 2]


def test_free_of_one_event_equals_free_of_two_events(tmp_path: Path) -> None:
    """Older traces have two events; ranges may begin between the two events of a pending free."""
    second = BEGIN + 4 * MIB

    def write(name: str, *at_once: Row) -> alloctrace.Trace:
        rows = [event("segment_alloc", address=BEGIN, size=20 * MIB)]
        for number in range(2):
            rows += [event("alloc", address=address, size=4 * MIB, stack=1) for address in (BEGIN, second)]
            pending = freed(second, 0)
            rows += [*at_once, pending[0], event("mark", size=1), pending[1], event("step", size=number)]
        return make_trace(tmp_path / f"{name}.alloctrace", rows)

    two_events, one_event = write("two", *freed(BEGIN, 0)), write("one", freed(BEGIN, 0)[1])
    for trace in (one_event, two_events):
        verified = trace.verify()
        assert verified.contradictions == verified.unmatched_frees == verified.missed_frees == 0
        assert trace.live().empty and trace.blocks()["state"].tolist() == ["inactive"]
        assert trace.peak().bytes == 8 * MIB and trace.peak().seq == 2
        positions = trace.events()["seq"].tolist()
        levels = [int(trace.live(seq)["requested_bytes"].sum()) for seq in positions]
        for first in positions[1:]:
            for last in {first, positions[-1]}:
                if highest := max(levels[first - 1 : last + 1]):
                    assert trace.peak(since=first - 1, until=last).bytes == highest, (first, last)
    columns = ["stack_id", "allocations", "total_bytes", "live_bytes", "live_blocks", "largest_bytes"]
    assert one_event.usage(by="stack")[columns].equals(two_events.usage(by="stack")[columns])
    of_two, of_one = (memory_viz_actions(trace) for trace in (two_events, one_event))
    assert of_two == of_one and [action for action, _ in of_one].count("free_requested") == 4
    for first in range(1, 8):  # also between the request and the completion of a pending free
        part = memory_viz_actions(one_event, since=first)
        assert part and part == of_one[-len(part) :]


def memory_viz_actions(trace: alloctrace.Trace, since: int | None = None) -> list[tuple[str, int]]:
    data = pickle.loads(memory_viz(trace._recorded, None, since, None, None))
    return [(event["action"], event["addr"]) for event in data["device_traces"][-1]]


@pytest.mark.parametrize(
    "rows",
    [
        freed(BEGIN, 4),
        [event("free_completed", address=BEGIN, size=4)],
        [event("segment_alloc", address=BEGIN + MIB, size=MIB), event("lost", size=2), *freed(BEGIN, 4)],
        [event("segment_alloc", address=BEGIN + MIB, size=MIB), event("lost", size=2), freed(BEGIN, 4)[1]],
    ],
)
def test_free_of_unknown_block_is_counted_once(tmp_path: Path, rows: list[Row]) -> None:
    assert make_trace(tmp_path / "t.alloctrace", rows).verify().unmatched_frees == 1


def state_of_blocks(*blocks: tuple[int, int]) -> list[Row]:
    """Return the state of a segment of 1-MiB blocks, given by requested bytes and state."""
    size = len(blocks) * MIB
    rows = [event("allocator_state", size=1 + len(blocks)), event("state_segment", address=BEGIN, size=size)]
    for part, (requested, state) in enumerate(blocks):
        rows.append(event("state_block", address=BEGIN + part * MIB, size=MIB, sequence=requested, node_sequence=state))
    return rows


def test_blocks_of_state_have_unique_numbers(tmp_path: Path) -> None:
    """The numbers identify the block that was freed between two positions."""
    trace = make_trace(tmp_path / "t.alloctrace", [*state_of_blocks((MIB, 1), (MIB, 1)), *freed(BEGIN, MIB)])
    [device] = trace.devices
    before, after = ({*trace._recorded.replay.live(end, device)["alloc_seq"]} for end in (4, len(trace.events())))

    assert len(before) == 2 and before - after == {min(before)}
    assert trace.live()["alloc_seq"].isna().all()  # older than the recording
    assert trace.usage()["allocations"].sum() == 0 and trace.usage()["live_blocks"].sum() == 1


def test_free_has_size_of_its_block_in_state(tmp_path: Path) -> None:
    frees = [*freed(BEGIN, 0), event("free_completed", address=BEGIN + MIB)]
    trace = make_trace(tmp_path / "t.alloctrace", [*state_of_blocks((MIB - 7, 1), (MIB - 8, 2)), *frees])
    sizes = trace.events(kinds=("free_requested", "free_completed"))["requested_bytes"]
    assert sizes.tolist() == [MIB - 7, MIB - 7, MIB - 8]


def test_events_and_live_blocks_are_same_from_every_checkpoint(tmp_path: Path) -> None:
    """Sizes of frees and lines of forward do not depend on the checkpoint from which a position is reached."""
    count = 1_700_000  # several checkpoints
    number = np.arange(count // 2)
    events = core_probe.make_events(count)
    events["time"], events["location"] = np.arange(count), CUDA
    # Every other allocation is of backward; each is freed after 500 others.
    rows, ends = events[0::2], events[1::2]
    rows["kind"], ends["kind"] = KINDS.index("alloc"), KINDS.index("free_completed")
    rows["address"], ends["address"] = 64 * (number % 1000), 64 * ((number + 500) % 1000)
    rows["size"] = 1 + number % 64
    is_backward = number % 2 == 1
    node, thread = number // 2 % 300_000, 1 + number // 4 % 3
    rows["thread"] = np.where(is_backward, 4, thread)
    rows["stack"], rows["sequence"] = np.where(is_backward, 0, 1 + number % 3), np.where(is_backward, 0, node + 1)
    rows["node_type"], rows["node_thread"] = is_backward, np.where(is_backward, thread, 0)
    rows["node_sequence"] = np.where(is_backward, node, 0)
    with core_probe.Recorder(tmp_path / "t.alloctrace", ring_events=1 << 16, wait_ns=10**10) as recorder:
        assert recorder.push(events) == count

    trace = alloctrace.load(tmp_path / "t.alloctrace")
    events_of_all = trace.events(columns=["seq", "kind", "requested_bytes", "stack_id", "forward_stack_id"])
    allocs = events_of_all[events_of_all["kind"] == "alloc"].set_index("seq")
    frees = events_of_all.loc[events_of_all["kind"] == "free_completed", "requested_bytes"]
    assert frees.tolist()[500:] == rows["size"][:-500].tolist()
    for since, until in ((1_699_000, None), (760_000, 770_000), (740_000, 800_000), (1_600_001, 1_600_010)):
        in_range = trace.events(since=since, until=until, columns=list(events_of_all.columns))
        expected = events_of_all[(events_of_all["seq"] > since) & (events_of_all["seq"] <= (until or count))]
        assert in_range.equals(expected.reset_index(drop=True)), (since, until)
    for position in (1_699_000, 790_000, 1_600_001, 30):
        live = trace.live(at=position)
        births = live["alloc_seq"].to_numpy(np.int64)
        stack, forward = (allocs.loc[births, name].to_numpy() for name in ("stack_id", "forward_stack_id"))
        stacks = np.maximum(stack, forward)
        assert live["stack_id"].to_numpy()[stacks > 0].tolist() == stacks[stacks > 0].tolist()
        assert live["function"][stacks == 0].str.endswith("line of forward unknown").all()
        assert live["backward"].tolist() == (forward != 0).tolist() and live["backward"].any()
