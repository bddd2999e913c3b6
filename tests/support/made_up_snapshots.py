"""Snapshots as the releases of torch write them, made up: a small program on one device or several."""

from __future__ import annotations

from typing import Any

MIB = 2**20
BASE = 0x7F00_0000_0000
BEGIN_US = 1_760_000_000_000_000

LINEAR = "/opt/env/lib/python3.12/site-packages/torch/nn/modules/linear.py"
RELEASES = ("2.9", "2.10", "2.11", "2.12", "2.13", "2.14", "2.15")


def frames(line: int, *, native: bool = False) -> list[dict[str, Any]]:
    """Return frames, innermost first, as torch lists them."""
    made = [
        {"name": "forward", "filename": LINEAR, "line": 125},
        {"name": "train", "filename": "/home/user/train.py", "line": line},
        {"name": "<module>", "filename": "/home/user/train.py", "line": 40},
    ]
    if native:
        made.insert(0, {"name": "at::empty_cuda(long)", "filename": "/pytorch/aten/src/EmptyTensor.cpp", "line": 0})
        made.insert(0, {"name": "c10::Allocator::malloc", "filename": "??", "line": 0})
    return made


class Maker:
    """What a program did on one device, in one segment of 20 MiB."""

    def __init__(self, release: str, device: int = 0, *, native: bool = False) -> None:
        self._release = tuple(int(part) for part in release.split("."))
        self._native = native
        self.device = device
        self.history: list[dict[str, Any]] = []
        self._base = BASE + device * 2**40
        free = {"address": self._base, "size": 20 * MIB, "requested_size": 0, "state": "inactive", "frames": []}
        self.blocks = [free]
        self._entry("segment_alloc", self._base, 20 * MIB, 10)

    def _entry(self, action: str, address: int, size: int, line: int, **more: Any) -> None:
        where = "device_free" if action == "oom" else "addr"
        entry = {
            "action": action,
            where: address,
            "size": size,
            "stream": 0,
            "time_us": BEGIN_US + 10 * len(self.history) + self.device,
            "compile_context": "N/A",
            "user_metadata": "",
            "frames": frames(line, native=self._native),
            **more,
        }
        if self._release >= (2, 13):
            entry["pool_id"] = (0, 0)
        if self._release >= (2, 15):
            entry["internal_metadata"] = ""
        self.history.append(entry)

    def allocate(self, size: int, line: int) -> int:
        """Take the beginning of the first free piece that is large enough, as torch does."""
        at, found = next(
            (at, one) for at, one in enumerate(self.blocks) if one["state"] == "inactive" and one["size"] >= size
        )
        self._entry("alloc", found["address"], size, line)
        rest = found["size"] - size
        if rest > MIB:
            self.blocks.insert(at + 1, {**found, "address": found["address"] + size, "size": rest})
            found["size"] = size
        found.update(state="active_allocated", requested_size=size, frames=frames(line, native=self._native))
        return int(found["address"])

    def free(self, address: int, *, awaited: bool = False) -> None:
        block = next(one for one in self.blocks if one["address"] == address)
        self._entry("free_requested", address, block["requested_size"], 20)
        block["state"] = "active_pending_free"
        if awaited:
            return
        self._entry("free_completed", address, block["requested_size"], 20)
        block.update(state="inactive", frames=[])
        merged: list[dict[str, Any]] = []
        for one in self.blocks:
            if merged and merged[-1]["state"] == one["state"] == "inactive":
                merged[-1]["size"] += one["size"]
            else:
                merged.append(one)
        self.blocks = merged

    def oom(self, size: int) -> None:
        self._entry("oom", 3 * MIB, size, 30)

    def other(self, action: str) -> None:
        """Add an entry of a kind that only newer releases have."""
        self._entry(action, self._base, 0, 20)

    @property
    def segment(self) -> dict[str, Any]:
        blocks = [dict(block) for block in self.blocks]
        sums = {
            "allocated_size": sum(one["size"] for one in blocks if one["state"] == "active_allocated"),
            "active_size": sum(one["size"] for one in blocks if one["state"] != "inactive"),
            "requested_size": sum(one["requested_size"] for one in blocks if one["state"] != "inactive"),
        }
        return {
            "device": self.device,
            "address": self._base,
            "total_size": 20 * MIB,
            **sums,
            "stream": 0,
            "segment_type": "large",
            "segment_pool_id": (0, 0),
            "is_expandable": False,
            "frames": [],
            "blocks": blocks,
        }


def snapshot(release: str, *devices: Maker, last: int = 10**9) -> dict[str, Any]:
    """Return a snapshot with at most `last` entries of each history."""
    made: dict[str, Any] = {
        "segments": [maker.segment for maker in devices],
        "device_traces": [maker.history[max(len(maker.history) - last, 0) :] for maker in devices],
        "allocator_settings": {
            "PYTORCH_CUDA_ALLOC_CONF": "",
            "max_split_size": -1,
            "garbage_collection_threshold": 0.0,
            "expandable_segments": False,
            "pinned_num_register_threads": 1,
            "release_lock_on_cudamalloc": False,
            "pinned_use_cuda_host_register": False,
            "roundup_power2_divisions": {str(2**power): 0 for power in range(16)},
        },
        "external_annotations": [],
    }
    version = tuple(int(part) for part in release.split("."))
    if version >= (2, 11):
        made["allocator_settings"]["graph_capture_record_stream_reuse"] = False
    if version >= (2, 12):
        made["host_segments"] = [{"address": 4096, "size": MIB}]
        made["host_traces"] = [[{"action": "alloc"}, {"action": "free_completed"}]]
    if version >= (2, 14):
        made["a_key_of_the_future"] = {"numbers": [1, 2.5, None, (True, b"bytes")], 7: "seven"}
    return made


def training(release: str, device: int = 0, **options: bool) -> Maker:
    """Make ten steps: a block of 1 MiB lives for a step, a line keeps another every second step."""
    maker = Maker(release, device, **options)
    maker.allocate(4 * MIB, 11)
    for step in range(10):
        temporary = maker.allocate(MIB + 512, 12)
        if step % 2:
            maker.allocate(MIB + 1024, 13)
        maker.free(temporary, awaited=step == 9)
    maker.oom(64 * MIB)
    return maker
