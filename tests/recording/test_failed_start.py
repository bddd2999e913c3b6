"""Failures of enable(): nothing is left behind, and a later enable() works."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import core_probe
import pytest
import torch
from torch.optim import optimizer

import pytorch_alloctrace as alloctrace
from pytorch_alloctrace.recording.loading import load_recorder
from pytorch_alloctrace.recording.steps import OptimizerSteps

THREADS = 3
"""Number of threads of a recording: the writer, the reader of thread names and the sampler of memory."""

# state() returns what a failed enable() might leave behind.
STATE = """
import ctypes, os, sys, time, torch
from torch.optim import optimizer
import pytorch_alloctrace as alloctrace

c10 = ctypes.CDLL(os.path.join(os.path.dirname(torch.__file__), "lib", "libc10.so"))
current_allocator = c10["_ZN3c1012GetAllocatorERKNS_10DeviceTypeE"]
current_allocator.restype = ctypes.c_void_p

def threads():
    names = (open(f"/proc/self/task/{thread}/comm").read().strip() for thread in os.listdir("/proc/self/task"))
    return sorted(name for name in names if name == "alloctrace")

def state():
    deadline = time.monotonic() + 10
    while threads() and time.monotonic() < deadline:  # an ended thread is listed a little longer
        time.sleep(0.01)
    return {
        "allocators": [current_allocator(ctypes.byref(ctypes.c_int8(device))) for device in (0, 1)],
        "files": sorted(os.listdir(".")),
        "descriptors": len(os.listdir("/proc/self/fd")),
        "optimizer hooks": len(optimizer._global_optimizer_post_hooks),
        "recording": alloctrace.is_enabled(),
        "spools": "spool" in open("/proc/self/maps").read(),
        "threads": threads(),
    }
"""


def test_enable_leaves_nothing_when_threads_or_files_cannot_be_created(run_program, tmp_path: Path) -> None:
    run_program(
        STATE
        + f"""
limit = ctypes.CDLL(os.environ["LD_PRELOAD"].split()[-1])
before = state()
for count in range({THREADS}):
    limit.allow_threads(count)
    try:
        alloctrace.enable("t.alloctrace")
        raise AssertionError(f"{{count}} threads were enough")
    except alloctrace.SessionError as error:
        assert "ulimit -u" in str(error) and "\\n" not in str(error), error
    assert state() == before, (count, state(), before)
limit.allow_threads({THREADS})
with alloctrace.enable("t.alloctrace"):
    tensor = torch.empty(777, dtype=torch.uint8)
assert state() == before | {{"files": sorted([*before["files"], "t.alloctrace"])}}, state()

limit.allow_threads(1 << 30)
before = state()
paths = ("/proc/self/t.alloctrace", "missing/t.alloctrace", "n\\0l.alloctrace", "x" * 300)
for path, spools in (*((path, ".") for path in paths), ("u.alloctrace", "missing")):
    try:
        alloctrace.enable(path, spool_dir=spools)
        raise AssertionError(path)
    except alloctrace.SessionError as error:
        assert "\\n" not in str(error) and (spools == "." or "missing" in str(error)), error
    assert state() == before, (path, state(), before)
os.mkdir("gone")
os.chdir("gone")
os.rmdir("../gone")
try:
    alloctrace.enable("t.alloctrace")
    raise AssertionError("there is no working directory")
except alloctrace.SessionError as error:
    assert "working directory" in str(error), error
""",
        LD_PRELOAD=str(core_probe.build_shim("thread_limit.c")),
    )

    trace = alloctrace.load(tmp_path / "t.alloctrace")
    assert list(trace.live()["requested_bytes"]) == [777] and trace.integrity.state == "complete"


def interrupt(monkeypatch: pytest.MonkeyPatch) -> tuple[type[BaseException], str]:
    def start(self: OptimizerSteps) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(OptimizerSteps, "start", start)
    return KeyboardInterrupt, "^$"


def make_warnings_errors(monkeypatch: pytest.MonkeyPatch) -> tuple[type[BaseException], str]:
    monkeypatch.setattr(load_recorder(), "stack_problem", "The frames of this Python are unknown.")
    warnings.simplefilter("error")
    return alloctrace.SessionError, "frames of this Python"


@pytest.mark.parametrize("inject_fault", [interrupt, make_warnings_errors])
def test_existing_trace_is_unchanged_when_enable_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inject_fault: Callable[[pytest.MonkeyPatch], Any]
) -> None:
    path = tmp_path / "t.alloctrace"
    with alloctrace.enable(path):
        torch.empty(10)
    content, hooks = path.read_bytes(), len(optimizer._global_optimizer_post_hooks)

    with monkeypatch.context() as patched, warnings.catch_warnings():
        error, message = inject_fault(patched)
        with pytest.raises(error, match=message):
            alloctrace.enable(path, overwrite=True)
        with pytest.raises(error, match=message):
            alloctrace.enable(tmp_path / "new.alloctrace")

    assert not alloctrace.is_enabled() and len(optimizer._global_optimizer_post_hooks) == hooks
    assert path.read_bytes() == content and os.listdir(tmp_path) == [path.name]
    with alloctrace.enable(path, overwrite=True) as session:
        torch.empty(20)
    assert session.load()._recorded.kind_counts["alloc"] == 1 and path.read_bytes() != content


def test_session_continues_when_package_is_imported_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from pytorch_alloctrace.recording import session as module

    with alloctrace.enable(tmp_path / "first.alloctrace") as session:
        with monkeypatch.context() as patched:
            patched.setattr(module, "_current", None)
            with pytest.raises(alloctrace.SessionError, match="an earlier import"):
                alloctrace.enable(tmp_path / "second.alloctrace")
        torch.empty(10)
    assert session.load()._recorded.kind_counts["alloc"] == 1 and os.listdir(tmp_path) == ["first.alloctrace"]
