"""Synthetic snapshots, in the form that each torch release writes, of a small program on one or more devices."""

from __future__ import annotations

from typing import Any

MIB = 2**20
BASE = 0x7F00_0000_0000
BEGIN_US = 1_760_000_000_000_000

LINEAR = "/opt/env/lib/python3.12/site-packages/torch/nn/modules/linear.py"
RELEASES = ("2.9", "2.10", "2.11", "2.12", "2.13", "2.14", "2.15")


def frames(line: int, *, native: bool = False) -> list[dict[str, Any]]:
    """Return frames, innermost first."""
    stack = [
        {"name": "forward", "filename": LINEAR, "line": 125},
        {"name": "train", "filename": "/home/user/train.py", "line": line},
        {"name": "<module>", "filename": "/home/user/train.py", "line": 40},
    ]
    if native:
        stack.insert(0, {"name": "at::empty_cuda(long)", "filename": "/pytorch/aten/src/EmptyTensor.cpp", "line": 0})
        stack.insert(0, {"name": "c10::Allocator::malloc", "filename": "??", "line": 0})
    return stack


class DeviceHistory:
    """Memory history of one device, with one segment of 20 MiB."""

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
        address_key = "device_free" if action == "oom" else "addr"
        entry = {
            "action": action,
            address_key: address,
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
        """Allocate from the first free block that is large enough, as torch does."""
        i, block = next(
            (i, block) for i, block in enumerate(self.blocks) if block["state"] == "inactive" and block["size"] >= size
        )
        self._entry("alloc", block["address"], size, line)
        remainder = block["size"] - size
        if remainder > MIB:
            self.blocks.insert(i + 1, {**block, "address": block["address"] + size, "size": remainder})
            block["size"] = size
        block.update(state="active_allocated", requested_size=size, frames=frames(line, native=self._native))
        return int(block["address"])

    def free(self, address: int, *, awaited: bool = False) -> None:
        block = next(block for block in self.blocks if block["address"] == address)
        self._entry("free_requested", address, block["requested_size"], 20)
        block["state"] = "active_pending_free"
        if awaited:
            return
        self._entry("free_completed", address, block["requested_size"], 20)
        block.update(state="inactive", frames=[])
        merged: list[dict[str, Any]] = []
        for block in self.blocks:
            if merged and merged[-1]["state"] == block["state"] == "inactive":
                merged[-1]["size"] += block["size"]
            else:
                merged.append(block)
        self.blocks = merged

    def oom(self, size: int) -> None:
        self._entry("oom", 3 * MIB, size, 30)

    def add_entry(self, action: str) -> None:
        """Add an entry of an action that only newer releases have."""
        self._entry(action, self._base, 0, 20)

    @property
    def segment(self) -> dict[str, Any]:
        blocks = [dict(block) for block in self.blocks]
        sums = {
            "allocated_size": sum(block["size"] for block in blocks if block["state"] == "active_allocated"),
            "active_size": sum(block["size"] for block in blocks if block["state"] != "inactive"),
            "requested_size": sum(block["requested_size"] for block in blocks if block["state"] != "inactive"),
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


def snapshot(release: str, *devices: DeviceHistory, last: int = 10**9) -> dict[str, Any]:
    """Return a snapshot with at most `last` entries of each history."""
    result: dict[str, Any] = {
        "segments": [device.segment for device in devices],
        "device_traces": [device.history[max(len(device.history) - last, 0) :] for device in devices],
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
        result["allocator_settings"]["graph_capture_record_stream_reuse"] = False
    if version >= (2, 12):
        result["host_segments"] = [{"address": 4096, "size": MIB}]
        result["host_traces"] = [[{"action": "alloc"}, {"action": "free_completed"}]]
    if version >= (2, 14):
        result["a_key_of_the_future"] = {"numbers": [1, 2.5, None, (True, b"bytes")], 7: "seven"}
    return result


def training(release: str, device: int = 0, **options: bool) -> DeviceHistory:
    """Return ten steps: line 12 allocates 1 MiB per step and frees it, line 13 leaks 1 MiB every second step."""
    result = DeviceHistory(release, device, **options)
    result.allocate(4 * MIB, 11)
    for step in range(10):
        temporary = result.allocate(MIB + 512, 12)
        if step % 2:
            result.allocate(MIB + 1024, 13)
        result.free(temporary, awaited=step == 9)
    result.oom(64 * MIB)
    return result
