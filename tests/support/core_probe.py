"""Compilation of programs with csrc/core, and calls into csrc/core through core_probe.cpp."""

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
PROBES = ROOT / "build" / "probes"
SHARED = ("base", "format")
READING = (*SHARED, "reading", "replay", "compaction", "follow", "what_if")
"""Folders of csrc/core that read, replay and compact a trace."""
RECORDING = (*SHARED, "recording")
"""Folders of csrc/core that write a trace."""

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
"""Layout of Event in csrc/core/format/event.h."""
FIELDS = [name for name in EVENT.names or () if name not in ("commit", "reserved")]
"""Fields of Event that reach the trace."""

Events = npt.NDArray[np.void]


def build(
    probe: str,
    core: Sequence[str],
    options: Sequence[str],
    linker_options: Sequence[str] = (),
    more_core: Sequence[str] = (),
) -> Path:
    """Compile tests/support/`probe`, and folders of csrc/core as one source, or reuse the result in build/.

    `more_core`: folders compiled as a second source, since names in anonymous namespaces may equal those of `core`.
    """
    folder = ROOT / "tests/support"
    headers = [*sorted(CORE.rglob("*.h")), *sorted((ROOT / "csrc/torch").glob("block_table.*"))]
    flags = ["-std=c++20", "-Wall", "-Wextra", "-Werror", "-Wno-subobject-linkage", *options, "-c"]

    def compile_object(name: str, sources: list[Path], inputs: list[str]) -> Path:
        return _compile(name, "".join(path.read_text() for path in [*headers, *sources]), [*flags, *inputs])

    def compile_core(folders: Sequence[str]) -> Path:
        core_sources = [path for folder in folders for path in sorted((CORE / folder).glob("*.cpp"))]
        combined_core = PROBES / f"core-of-{'-'.join(folders)}.cpp"
        text = "".join(f'#include "../../{path.relative_to(ROOT)}"\n' for path in core_sources)
        with hold_lock(PROBES / f"{combined_core.name}.lock"):
            if not combined_core.exists() or combined_core.read_text() != text:  # another process may be compiling it
                combined_core.write_text(text)
        return compile_object("core", core_sources, [str(combined_core)])

    objects = [
        *(compile_core(folders) for folders in (core, more_core) if folders),
        compile_object(Path(probe).stem, [folder / probe], [str(folder / probe)]),
    ]
    return _compile(f"{Path(probe).stem}-linked", "", [*options, *linker_options, *map(str, objects), "-lpthread"])


def build_shim(source: str) -> Path:
    """Build tests/support/`source`, in C or C++, as a library for LD_PRELOAD."""
    path = ROOT / "tests/support" / source
    language = ["-x", "c"] if path.suffix == ".c" else ["-std=c++20"]
    return _compile(path.stem, path.read_text(), [*language, "-O1", "-Wall", "-fPIC", "-shared", str(path), "-ldl"])


def _compile(name: str, sources: str, arguments: list[str]) -> Path:
    """Return the compiler's output for these arguments and sources, which is reused until either changes."""
    compiler = os.environ.get("CXX", "c++")
    digest = hashlib.sha256(repr((compiler, arguments, sources)).encode()).hexdigest()[:16]
    output = PROBES / f"{name}-{digest}"
    if output.exists():
        return output
    with hold_lock(PROBES / f"{output.name}.lock"):
        if not output.exists():
            # Renamed only when complete: other processes look for the file without the lock.
            unfinished = PROBES / f"{output.name}.unfinished"
            run_compiler([compiler, *arguments, "-o", str(unfinished)])
            unfinished.rename(output)
    return output


@functools.cache
def library() -> ctypes.CDLL:
    options = ["-O1", "-fPIC", "-DALLOCTRACE_CHECKS"]  # random events are checked: csrc/core/base/check.h
    probe = ctypes.CDLL(str(build("core_probe.cpp", RECORDING, options, ["-shared"])))
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
        function = getattr(probe, name)
        function.restype, function.argtypes = result, arguments
    return probe


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
    """Return the fields of events that reach the trace, as tuples in the order of FIELDS."""
    columns = [events[name].tolist() for name in FIELDS]
    return list(zip(*columns, strict=True))


def encode(events: Events, split: int, begin_time: int) -> bytes:
    """Return one block's payload; the first `split` events are in the ring before its wrap."""
    events = np.ascontiguousarray(events)
    out = ctypes.create_string_buffer(200 * len(events) + 200)
    size = library().probe_encode(events.ctypes.data, len(events), split, begin_time, out, len(out))
    assert size <= len(out), "an event takes more than 200 bytes"
    return out.raw[:size]


def decode(payload: bytes, count: int, begin_time: int) -> Events | None:
    """Return the events of one block's payload, or None if the payload is invalid."""
    out = make_events(max(count, 1))
    is_invalid = library().probe_decode(payload, len(payload), count, begin_time, out.ctypes.data)
    return None if is_invalid else out[:count]


def write_killed(path: Path, events: Events, *, ring_events: int, definitions_bytes: int = 4096, **header: Any) -> Path:
    """Write the trace and spool of a killed recording; return the spool's path. See probe_killed()."""
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
        """Push events; return the number of accepted events."""
        events = np.ascontiguousarray(events)
        return int(library().recorder_push(self._handle, events.ctypes.data, len(events)))

    def push_from_threads(self, threads: int, per_thread: int) -> int:
        """Push events with thread=t and address=1, 2, ... from each thread t; return the number accepted."""
        return int(library().recorder_push_from_threads(self._handle, threads, per_thread))

    def flush(self) -> bool:
        return bool(library().recorder_flush(self._handle))

    def stop(self) -> bool:
        """Stop the recording; return whether all events are in the trace."""
        handle, self._handle = self._handle, 0
        return bool(library().recorder_stop(handle))
