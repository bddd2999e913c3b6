"""Two more accounts to compare a CUDA recording with: the simulated driver's log, and the blocks that are live."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pandas as pd

SEGMENT_KINDS = {"segment_alloc": "malloc", "segment_free": "free", "segment_map": "map", "segment_unmap": "unmap"}

DriverCall = tuple[str, int, int]  # malloc, free, map or unmap; address; bytes
Block = tuple[int, int]  # device; address


def read_driver_log(path: Path) -> dict[int, list[DriverCall]]:
    """Return the simulated driver's calls by device, in order. See tools/simcuda/README.md, "The log"."""
    calls: dict[int, list[DriverCall]] = {}
    for line in path.read_text().splitlines():
        call, *fields = line.split()
        if call in SEGMENT_KINDS.values():
            calls.setdefault(int(fields[0]), []).append((call, int(fields[1], 16), int(fields[2])))
    return calls


def segment_calls(events: pd.DataFrame) -> dict[int, list[DriverCall]]:
    """Return the driver calls that the recorded segments stand for, by device."""
    calls: dict[int, list[DriverCall]] = {}
    segments = events[events["kind"].isin(list(SEGMENT_KINDS))]
    for kind, device, address, size in zip(
        *(segments[c] for c in ("kind", "device", "address", "requested_bytes")), strict=True
    ):
        calls.setdefault(int(device.removeprefix("cuda:")), []).append((SEGMENT_KINDS[kind], int(address), int(size)))
    return calls


def joined_mappings(calls: list[DriverCall]) -> list[DriverCall]:
    """Join consecutive calls that map or unmap neighbouring memory: one event is several calls of the driver."""
    joined: list[DriverCall] = []
    for call, address, size in calls:
        if joined and call in ("map", "unmap") and joined[-1][0] == call and sum(joined[-1][1:]) == address:
            address, size = joined[-1][1], joined.pop()[2] + size
        joined.append((call, address, size))
    return joined


def driver_differences(logged: dict[int, list[DriverCall]], recorded: dict[int, list[DriverCall]]) -> list[str]:
    differences = []
    for device in sorted({*logged, *recorded}):
        theirs, ours = joined_mappings(logged.get(device, [])), joined_mappings(recorded.get(device, []))
        for index, (their, our) in enumerate(itertools.zip_longest(theirs, ours)):
            if their != our:
                differences.append(f"cuda:{device}: segment event {index} is {our}, the driver logged {their}")
    return differences


def states_and_replay(events: pd.DataFrame) -> Iterator[tuple[int, dict[Block, int], dict[Block, int]]]:
    """Replay live blocks, with requested bytes, from allocations and frees alone, from each device's first state on.

    Yields at each allocator state its event number, the device's live blocks by the replay, and by the state; at last
    (-1, all live blocks, all live blocks). Asserts that no event contradicts what is live.
    """
    live: dict[Block, int] = {}
    begun: set[int] = set()
    reported: dict[Block, int] = {}
    left = number = owner = 0
    columns = ("seq", "kind", "device", "address", "requested_bytes", "autograd_seq", "node_seq")
    for seq, kind, device_name, address, size, requested, state in zip(*(events[c] for c in columns), strict=True):
        # What the driver says is recorded by another thread, at any time.
        if not device_name.startswith("cuda") or kind == "memory":
            continue
        device = int(device_name.removeprefix("cuda:"))
        block = (device, int(address))
        if left:
            assert kind in ("state_segment", "state_block"), f"event {seq}: {kind} inside the state of cuda:{owner}"
            assert device == owner, f"event {seq}: of cuda:{device}, inside the state of cuda:{owner}"
            left -= 1
            if kind == "state_block" and state == 1:
                reported[block] = int(requested)
        elif kind == "allocator_state":
            left, number, owner, reported = int(size), seq, device, {}
        elif kind == "alloc":
            assert block not in live, f"event {seq}: alloc at {address:#x}, which is live"
            live[block] = int(size)
        elif kind == "free_requested":
            assert live.pop(block, None) == size, f"event {seq}: free of {size} bytes at {address:#x}, not live so"
        elif kind == "free_completed" and block in live:
            assert live.pop(block) == size, f"event {seq}: free of {size} bytes at {address:#x}, not live so"
        if kind in ("allocator_state", "state_segment", "state_block") and not left:
            replayed = {key: value for key, value in live.items() if key[0] == owner}
            if owner not in begun:
                assert not replayed, f"events of cuda:{owner} before its first state"
                begun.add(owner)
                live.update(reported)
                replayed = dict(reported)
            yield number, replayed, reported
    assert not left, "the last state is not whole"
    yield -1, live, dict(live)
