"""Comparison of a CUDA recording with the simulated driver's log, and with a replay of its live blocks."""

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
    """Return the driver calls that the recorded segment events imply, by device."""
    calls: dict[int, list[DriverCall]] = {}
    segments = events[events["kind"].isin(list(SEGMENT_KINDS))]
    for kind, device, address, size in zip(
        *(segments[c] for c in ("kind", "device", "address", "requested_bytes")), strict=True
    ):
        calls.setdefault(int(device.removeprefix("cuda:")), []).append((SEGMENT_KINDS[kind], int(address), int(size)))
    return calls


def join_mappings(calls: list[DriverCall]) -> list[DriverCall]:
    """Join consecutive calls that map or unmap neighbouring memory: the driver makes several per event."""
    joined: list[DriverCall] = []
    for call, address, size in calls:
        if joined and call in ("map", "unmap") and joined[-1][0] == call and sum(joined[-1][1:]) == address:
            address, size = joined[-1][1], joined.pop()[2] + size
        joined.append((call, address, size))
    return joined


def driver_differences(logged: dict[int, list[DriverCall]], recorded: dict[int, list[DriverCall]]) -> list[str]:
    differences = []
    for device in sorted({*logged, *recorded}):
        logged_calls, recorded_calls = join_mappings(logged.get(device, [])), join_mappings(recorded.get(device, []))
        for index, (expected, actual) in enumerate(itertools.zip_longest(logged_calls, recorded_calls)):
            if expected != actual:
                differences.append(f"cuda:{device}: segment event {index} is {actual}, the driver logged {expected}")
    return differences


def replay_states(events: pd.DataFrame) -> Iterator[tuple[int, dict[Block, int], dict[Block, int]]]:
    """Replay live blocks, with requested bytes, from allocations and frees after each device's first state.

    Yields (event number, replayed live blocks, reported live blocks) of the device at each allocator state, and finally
    (-1, all live blocks, all live blocks). Asserts that no event contradicts the live blocks.
    """
    live: dict[Block, int] = {}
    started: set[int] = set()
    reported: dict[Block, int] = {}
    remaining = state_seq = state_device = 0
    columns = ("seq", "kind", "device", "address", "requested_bytes", "autograd_seq", "node_seq")
    for seq, kind, device_name, address, size, requested, state in zip(*(events[c] for c in columns), strict=True):
        # Driver memory is recorded by another thread, at any time.
        if not device_name.startswith("cuda") or kind == "memory":
            continue
        device = int(device_name.removeprefix("cuda:"))
        block = (device, int(address))
        if remaining:
            assert kind in ("state_segment", "state_block"), f"event {seq}: {kind} in the state of cuda:{state_device}"
            assert device == state_device, f"event {seq}: of cuda:{device}, in the state of cuda:{state_device}"
            remaining -= 1
            if kind == "state_block" and state == 1:
                reported[block] = int(requested)
        elif kind == "allocator_state":
            remaining, state_seq, state_device, reported = int(size), seq, device, {}
        elif kind == "alloc":
            assert block not in live, f"event {seq}: alloc at {address:#x}, which is live"
            live[block] = int(size)
        elif kind == "free_requested":
            assert live.pop(block, None) == size, f"event {seq}: free of {size} bytes at {address:#x}, not live"
        elif kind == "free_completed" and block in live:
            assert live.pop(block) == size, f"event {seq}: free of {size} bytes at {address:#x}, not live"
        if kind in ("allocator_state", "state_segment", "state_block") and not remaining:
            replayed = {key: value for key, value in live.items() if key[0] == state_device}
            if state_device not in started:
                assert not replayed, f"events of cuda:{state_device} before its first state"
                started.add(state_device)
                live.update(reported)
                replayed = dict(reported)
            yield state_seq, replayed, reported
    assert not remaining, "the last state is truncated"
    yield -1, live, dict(live)
