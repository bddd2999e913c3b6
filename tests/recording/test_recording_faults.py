"""Faults of the machine during a recording: the program goes on as it would alone, and lost events are counted."""

from __future__ import annotations

import os
import signal
import subprocess
import textwrap
import time
from pathlib import Path

import core_probe
from running import start_python

import pytorch_alloctrace as alloctrace


def allocations(trace: alloctrace.Trace, nbytes: int) -> int:
    """Return the number of allocations of one size."""
    events = trace.events(kinds=["alloc"])
    return int((events["requested_bytes"] == nbytes).sum())


NO_ADDRESSES = """
import resource, sys, threading, torch
import pytorch_alloctrace as alloctrace

if sys.argv[1] == "recorded":
    alloctrace.enable("t.alloctrace")
go, done, seen = threading.Event(), threading.Barrier(5), []

def late():
    '''A thread that meets our thread-local data when there is no memory.'''
    go.wait()
    try:
        torch.empty(64 << 20, dtype=torch.uint8)
        seen.append("got")
    except (MemoryError, RuntimeError) as error:
        seen.append(type(error).__name__)
    done.wait()

for _ in range(4):
    threading.Thread(target=late, daemon=True).start()
held = [torch.empty(7777, dtype=torch.uint8) for _ in range(50)]
virtual = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
soft, hard = resource.getrlimit(resource.RLIMIT_AS)
resource.setrlimit(resource.RLIMIT_AS, (virtual, hard))
chunks = []
for size in (1 << 26, 1 << 20, 1 << 16, 1 << 12, 256, 32):
    try:
        while True:
            chunks.append(bytearray(size))
    except MemoryError:
        pass
try:
    torch.empty(256 << 20, dtype=torch.uint8)
    refused = "none"
except (MemoryError, RuntimeError) as error:
    refused = type(error).__name__
go.set()
done.wait()
chunks.clear()
resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
more = [torch.empty(8888, dtype=torch.uint8) for _ in range(50)]
if sys.argv[1] == "recorded":
    alloctrace.disable()
print(refused, sorted(seen))
"""


def test_errors_are_unchanged_when_no_addresses_are_left(run_program, tmp_path: Path) -> None:
    """Reach RLIMIT_AS, also for threads that first allocate then: the program gets the same errors as alone."""
    alone = run_program(NO_ADDRESSES, "alone", check=False)
    recorded = run_program(NO_ADDRESSES, "recorded", check=False)
    assert alone.returncode == 0 and recorded.returncode == 0, recorded.stdout + recorded.stderr
    assert (recorded.stdout, recorded.stderr) == (alone.stdout, alone.stderr)
    trace = alloctrace.load(tmp_path / "t.alloctrace")
    assert trace.integrity.ended and trace.integrity.corrupt_blocks == 0
    assert allocations(trace, 7777) == 50 and allocations(trace, 8888) == 50
    assert trace.verify().lost == trace.integrity.lost


WRITES = """
import os, sys, time, torch
import pytorch_alloctrace as alloctrace

flag = os.environ["FAILING_WRITES"]
for how in sys.argv[1:]:
    session = alloctrace.enable(f"{how}.alloctrace")
    before = [torch.empty(1111, dtype=torch.uint8) for _ in range(20)]
    session.flush()
    with open(flag + ".new", "w") as file:
        file.write(how)
    os.rename(flag + ".new", flag)
    for _ in range(20):
        torch.empty(2222, dtype=torch.uint8)
    try:
        session.flush()
        said = "flushed"
    except Exception as error:
        said = type(error).__name__
    os.remove(flag)
    for _ in range(50):  # the writer waits a little before it tries again
        try:
            session.flush()
            break
        except alloctrace.SessionError:
            time.sleep(0.1)
    after = [torch.empty(3333, dtype=torch.uint8) for _ in range(20)]
    alloctrace.disable()
    print(how, said, "touched" if os.path.getsize(flag + ".count") else "as they were")
    os.remove(flag + ".count")
"""


def test_no_event_is_lost_when_writes_fail(run_program, tmp_path: Path) -> None:
    """Check that nothing in the spool is lost, and that no torn block stays in the file."""
    shim = {"LD_PRELOAD": str(core_probe.preloaded("faulty_files.c")), "FAILING_WRITES": str(tmp_path / "failing")}
    done = run_program(WRITES, "eio", "short", "eintr", **shim)
    outcomes = ["eio SessionError touched", "short flushed touched", "eintr flushed touched"]
    assert done.stdout.splitlines() == outcomes
    for how in ("eio", "short", "eintr"):
        trace = alloctrace.load(tmp_path / f"{how}.alloctrace")
        assert trace.integrity.state == "complete", str(trace.integrity)
        assert [allocations(trace, size) for size in (1111, 2222, 3333)] == [20, 20, 20]


def test_recording_goes_on_when_the_trace_is_removed(run_program, tmp_path: Path) -> None:
    """Delete, move or truncate the trace: the program continues, and the rest is read."""
    run_program(
        """
        import os, torch
        import pytorch_alloctrace as alloctrace
        def take_away(path, fault):
            if fault == "deleted":
                os.remove(path)
            elif fault == "moved":
                os.rename(path, "elsewhere.alloctrace")
            else:
                os.truncate(path, 200)
        for fault in ("deleted", "moved", "truncated"):
            session = alloctrace.enable(f"{fault}.alloctrace")
            held = [torch.empty(1111, dtype=torch.uint8) for _ in range(20)]
            session.flush()
            take_away(f"{fault}.alloctrace", fault)
            held += [torch.empty(2222, dtype=torch.uint8) for _ in range(20)]
            session.flush()
            alloctrace.disable()
        """
    )
    moved, truncated = [alloctrace.load(path) for path in sorted(tmp_path.glob("*.alloctrace"))]
    assert moved.integrity.state == "complete" and allocations(moved, 1111) == 20
    assert truncated.integrity.state == "corrupt" and not truncated.verify().ok
    for trace in (moved, truncated):
        assert allocations(trace, 2222) == 20 and trace.integrity.ended


TRUNCATED = """
import mmap, os, signal, sys, time, warnings, torch
import pytorch_alloctrace as alloctrace

SIZES = {"emptied": 0, "regrown": 0, "cut": 8192, "cut, regrown": 8192, "cut to 100": 100, "cut to 300": 300}
for how, cut in SIZES.items():
    session = alloctrace.enable(f"{how}.alloctrace", devices=("cpu",))
    for _ in range(500):
        torch.empty(1111, dtype=torch.uint8)
    session.flush()
    spool = f"{how}.alloctrace.spool"
    size = os.path.getsize(spool)
    os.truncate(spool, cut)
    if how.endswith("regrown"):
        os.truncate(spool, size)
    for _ in range(150_000 if how == "emptied" else 700):
        torch.empty(2222, dtype=torch.uint8)
    if os.fork() == 0:
        os._exit(0)
    try:
        session.flush()
    except alloctrace.SessionError as error:
        print(error, flush=True)
    os.truncate(spool, 0)  # again
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        alloctrace.disable()
    print([str(warning.message) for warning in warned if "spool" in str(warning.message)], flush=True)
    assert not os.path.exists(spool)

# A signal that the program blocks and waits for does not reach it through a thread of ours.
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGBUS})
session = alloctrace.enable("blocked.alloctrace", devices=("cpu",))
os.kill(os.getpid(), signal.SIGBUS)
time.sleep(0.3)
assert signal.sigwait({signal.SIGBUS}) == signal.SIGBUS
alloctrace.disable()
signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGBUS})

session = alloctrace.enable("other.alloctrace", devices=("cpu",))
with open("file", "w+b") as file:
    file.truncate(4096)
    memory = mmap.mmap(file.fileno(), 4096)
    file.truncate(0)
    session.flush()
    print(memory[0])
"""


def test_program_outlives_a_truncated_spool(run_program, tmp_path: Path) -> None:
    """Truncate the mapped spool: the rest is counted as lost. A SIGBUS of another mapping, or sent, acts as before."""
    done = run_program(TRUNCATED, check=False)
    assert done.returncode == -signal.SIGBUS, done.stdout + done.stderr
    messages = done.stdout.splitlines()
    assert len(messages) == 12 and all("was truncated by another process" in line for line in messages)
    for how in {path.stem for path in tmp_path.glob("*.alloctrace")} - {"blocked", "other"}:
        count = 150_000 if how == "emptied" else 700
        trace = alloctrace.load(tmp_path / f"{how}.alloctrace")
        assert trace.integrity.state == "gaps" and trace.integrity.ended, str(trace.integrity)
        lost = trace.integrity.lost
        assert 0 <= lost - 2 * count < 100, how  # a few events of other kinds
        assert trace.integrity.lost_by_cause["write_failed"] == lost
        assert trace.events(kinds=["lost"])["requested_bytes"].sum() == lost
        assert allocations(trace, 1111) == 500 and allocations(trace, 2222) == 0
    assert alloctrace.load(tmp_path / "other.alloctrace").integrity.state == "complete"


def test_killed_start_leaves_no_file(run_program, tmp_path: Path) -> None:
    """Kill the program inside enable(): neither a spool nor a trace without events stays behind."""
    done = run_program(
        """
        import os, signal
        import pytorch_alloctrace as alloctrace
        from pytorch_alloctrace.recording import session
        session.RoleNotes.start = lambda self: os.kill(os.getpid(), signal.SIGKILL)
        os.mkdir("traces")
        alloctrace.enable("traces/")
        """,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert list((tmp_path / "traces").iterdir()) == []


def test_ctrl_c_interrupts_disable_while_the_disk_hangs(tmp_path: Path) -> None:
    """Interrupt disable() while it waits for a disk: the second Ctrl-C at the latest reaches the program."""
    flag = tmp_path / "hangs"
    source = """
        import torch, sys
        import pytorch_alloctrace as alloctrace
        alloctrace.enable("t.alloctrace")
        held = [torch.empty(777, dtype=torch.uint8) for _ in range(100)]
        print("ready", flush=True)
        sys.stdin.readline()
        try:
            alloctrace.disable()
        except KeyboardInterrupt:
            print("interrupted", flush=True)
        """
    shim = {"LD_PRELOAD": str(core_probe.preloaded("faulty_files.c")), "SLOW_WRITES": str(flag), "SLOW_MS": "60000"}
    with start_python(tmp_path, "-c", textwrap.dedent(source), **shim) as process:
        assert process.stdout.readline() == "ready\n"
        flag.touch()
        print(file=process.stdin, flush=True)
        time.sleep(1)
        for _ in range(2):
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
                time.sleep(0.5)
        assert process.communicate(timeout=50)[0] == "interrupted\n"
    trace = alloctrace.load(tmp_path / "t.alloctrace")
    assert len(trace.live()) == 100 and os.path.exists(tmp_path / "t.alloctrace")


def test_other_bus_errors_have_the_effect_that_they_have_without_a_guard() -> None:
    """Handle SIGBUS in each way beside a guarded mapping: death, or 10 and the number of calls of the handler."""
    probe = core_probe.build("truncation_guard_probe.cpp", core_probe.RECORDING, ["-O1"])
    done = subprocess.run([probe], capture_output=True, text=True, timeout=60, check=True)
    assert dict(line.split(": ") for line in done.stdout.splitlines()) == {
        "default, fault": "dies",
        "default, sent": "dies",
        "ignored, fault": "dies",
        "ignored, sent": "10",
        "handled once and raised, fault": "dies",
        "handled once, fault": "dies",
        "handled, sent": "11",
    }
