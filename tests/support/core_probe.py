"""Compiles programs with csrc/core, and drives it through core_probe.cpp."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import json
import os
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from running import ROOT, hold_lock, run_compiler

CORE = ROOT / "csrc" / "core"
BUILT = ROOT / "build" / "probes"
SHARED = ("base", "format")
READING = (*SHARED, "reading", "replay", "compaction", "what_if")
"""The folders of csrc/core that read a trace, and what runs over what was read."""
RECORDING = (*SHARED, "recording")
"""Those that write one."""

EVENT = np.dtype(
    [
        ("commit", "<u4"),
        ("stack", "<u4"),
        ("time", "<u8"),
        ("address", "<u8"),
        ("size", "<u8"),
        ("thread", "<u4"),
        ("location", "<u4"),
        ("sequence", "<u8"),
        ("node_sequence", "<u8"),
        ("node_thread", "<u4"),
        ("node_type", "<u2"),
        ("kind", "u1"),
        ("reserved", "u1"),
    ]
)
"""csrc/core/event.h's Event."""
FIELDS = [name for name in EVENT.names or () if name not in ("commit", "reserved")]
"""Its fields that reach the trace."""

Events = npt.NDArray[np.void]


def build(probe: str, core: Sequence[str], options: Sequence[str], linker_options: Sequence[str] = ()) -> Path:
    """Compile tests/support/`probe` and folders of csrc/core, as one source, unless build/ has the result already."""
    folder = ROOT / "tests/support"
    headers = [*sorted(CORE.rglob("*.h")), *sorted((ROOT / "csrc/torch").glob("block_table.*"))]
    flags = ["-std=c++20", "-Wall", "-Wextra", "-Werror", "-Wno-subobject-linkage", *options, "-c"]

    def compiled(name: str, sources: list[Path], words: list[str]) -> Path:
        return _made(name, "".join(path.read_text() for path in [*headers, *sources]), [*flags, *words])

    core_sources = [path for folder in core for path in sorted((CORE / folder).glob("*.cpp"))]
    whole_core = BUILT / f"core-of-{'-'.join(core)}.cpp"
    text = "".join(f'#include "../../{path.relative_to(ROOT)}"\n' for path in core_sources)
    with hold_lock(BUILT / f"{whole_core.name}.lock"):
        if not whole_core.exists() or whole_core.read_text() != text:  # another process may be compiling it
            whole_core.write_text(text)
    objects = [
        compiled("core", core_sources, [str(whole_core)]),
        compiled(Path(probe).stem, [folder / probe], [str(folder / probe)]),
    ]
    return _made(f"{Path(probe).stem}-linked", "", [*options, *linker_options, *map(str, objects), "-lpthread"])


def preloaded(source: str) -> Path:
    """Build tests/support/`source`, in C or C++, as a library for LD_PRELOAD."""
    path = ROOT / "tests/support" / source
    language = ["-x", "c"] if path.suffix == ".c" else ["-std=c++20"]
    return _made(path.stem, path.read_text(), [*language, "-O1", "-Wall", "-fPIC", "-shared", str(path), "-ldl"])


def _made(name: str, sources: str, arguments: list[str]) -> Path:
    """Return the compiler's output for these arguments, made again when they or the sources have changed."""
    compiler = os.environ.get("CXX", "c++")
    digest = hashlib.sha256(repr((compiler, arguments, sources)).encode()).hexdigest()[:16]
    made = BUILT / f"{name}-{digest}"
    if made.exists():
        return made
    with hold_lock(BUILT / f"{made.name}.lock"):
        if not made.exists():
            # Under its name only when it is complete: others look for it without the lock.
            unfinished = BUILT / f"{made.name}.unfinished"
            run_compiler([compiler, *arguments, "-o", str(unfinished)])
            unfinished.rename(made)
    return made


@functools.cache
def library() -> ctypes.CDLL:
    loaded = ctypes.CDLL(str(build("core_probe.cpp", RECORDING, ["-O1", "-fPIC"], ["-shared"])))
    number, handle, text, data = ctypes.c_uint64, ctypes.c_int32, ctypes.c_char_p, ctypes.c_void_p
    for name, result, arguments in (
        ("probe_last_error", text, []),
        ("probe_encode", number, [data, number, number, number, data, number]),
        ("probe_decode", handle, [data, number, number, number, data]),
        ("recorder_open", handle, [text, text, text, number, number, number, text]),
        ("probe_cancel_waiting", handle, [text]),
        ("probe_stop_while_compacting", handle, [text, text]),
        ("recorder_push", number, [handle, data, number]),
        ("recorder_push_from_threads", number, [handle, ctypes.c_uint32, number]),
        ("recorder_flush", handle, [handle]),
        ("recorder_stop", handle, [handle]),
        ("probe_killed", handle, [text, text, text, number, number, text, data, number]),
    ):
        function = getattr(loaded, name)
        function.restype, function.argtypes = result, arguments
    return loaded


def make_events(rows: Sequence[dict[str, int]] | int) -> Events:
    """Return events with these field values; for a number n, n empty events."""
    if isinstance(rows, int):
        return np.zeros(rows, dtype=EVENT)
    events = np.zeros(len(rows), dtype=EVENT)
    for index, row in enumerate(rows):
        for name, value in row.items():
            events[index][name] = value
    return events


def fields_of(events: Events) -> list[tuple[int, ...]]:
    """Return the fields of events that reach the trace, as plain tuples in the order of FIELDS."""
    columns = [events[name].tolist() for name in FIELDS]
    return list(zip(*columns, strict=True))


def encode(events: Events, split: int, begin_time: int) -> bytes:
    """Return one block's payload; the first `split` events are in the ring before its wrap."""
    events = np.ascontiguousarray(events)
    out = ctypes.create_string_buffer(200 * len(events) + 200)
    size = library().probe_encode(events.ctypes.data, len(events), split, begin_time, out, len(out))
    assert size <= len(out), "no event takes 200 bytes"
    return out.raw[:size]


def decode(payload: bytes, count: int, begin_time: int) -> Events | None:
    """Return the events of one block's payload, or None if it is refused."""
    out = make_events(max(count, 1))
    refused = library().probe_decode(payload, len(payload), count, begin_time, out.ctypes.data)
    return None if refused else out[:count]


def killed(path: Path, events: Events, *, ring_events: int, definitions_bytes: int = 4096, **header: Any) -> Path:
    """Write the trace and the spool of a killed recording; return the spool's path. See probe_killed()."""
    spool = path.with_name(path.name + ".spool")
    failed = library().probe_killed(
        os.fsencode(path), os.fsencode(spool), secrets.token_bytes(16), ring_events, definitions_bytes,
        json.dumps({"spool": str(spool), **header}).encode(), np.ascontiguousarray(events).ctypes.data, len(events),
    )  # fmt: skip
    assert not failed, library().probe_last_error()
    return spool


class Recorder:
    """A recording through csrc/core's Recorder; a context manager that stops it."""

    def __init__(
        self, path: Path, *, ring_events: int = 1024, wait_ns: int = 60_000_000_000, spool: Path | None = None
    ) -> None:
        spool = spool or path.with_name(path.name + ".spool")
        paths, header = map(os.fsencode, (path, spool)), json.dumps({"spool": str(spool)}).encode()
        self._handle = library().recorder_open(*paths, secrets.token_bytes(16), ring_events, 65536, wait_ns, header)
        assert self._handle, library().probe_last_error()

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, *_: object) -> None:
        if self._handle:
            self.stop()

    def push(self, events: Events) -> int:
        """Return the number of events that were accepted."""
        events = np.ascontiguousarray(events)
        return int(library().recorder_push(self._handle, events.ctypes.data, len(events)))

    def push_from_threads(self, threads: int, per_thread: int) -> int:
        """Push events with thread=t and address=1, 2, ... from each thread t; return how many were accepted."""
        return int(library().recorder_push_from_threads(self._handle, threads, per_thread))

    def flush(self) -> bool:
        return bool(library().recorder_flush(self._handle))

    def stop(self) -> bool:
        """Return whether all events are in the trace."""
        handle, self._handle = self._handle, 0
        return bool(library().recorder_stop(handle))
