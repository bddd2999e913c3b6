"""System faults during a recording: the program continues as without a recording, and lost events are counted."""

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


def count_allocations(trace: alloctrace.Trace, nbytes: int) -> int:
    """Return the number of allocations of one size."""
    events = trace.events(kinds=["alloc"])
    return int((events["requested_bytes"] == nbytes).sum())


NO_ADDRESSES = """
import resource, sys, threading, torch
import pytorch_alloctrace as alloctrace

if sys.argv[1] == "recorded":
    alloctrace.enable("t.alloctrace")
go, done, outcomes = threading.Event(), threading.Barrier(5), []

def late():
    '''First allocate, and so create thread-local data, when no memory is left.'''
    go.wait()
    try:
        torch.empty(64 << 20, dtype=torch.uint8)
        outcomes.append("allocated")
    except (MemoryError, RuntimeError) as error:
        outcomes.append(type(error).__name__)
    done.wait()

for _ in range(4):
    threading.Thread(target=late, daemon=True).start()
before = [torch.empty(7777, dtype=torch.uint8) for _ in range(50)]
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
    error_name = "none"
except (MemoryError, RuntimeError) as error:
    error_name = type(error).__name__
go.set()
done.wait()
chunks.clear()
resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
after = [torch.empty(8888, dtype=torch.uint8) for _ in range(50)]
if sys.argv[1] == "recorded":
    alloctrace.disable()
print(error_name, sorted(outcomes))
"""


def test_errors_are_unchanged_when_no_addresses_are_left(run_program, tmp_path: Path) -> None:
    """Reach RLIMIT_AS, also in threads that have not allocated before."""
    alone = run_program(NO_ADDRESSES, "alone", check=False)
    recorded = run_program(NO_ADDRESSES, "recorded", check=False)

    assert alone.returncode == 0 and recorded.returncode == 0, recorded.stdout + recorded.stderr
    assert (recorded.stdout, recorded.stderr) == (alone.stdout, alone.stderr)
    trace = alloctrace.load(tmp_path / "t.alloctrace")
    assert trace.integrity.ended and trace.integrity.corrupt_blocks == 0
    assert count_allocations(trace, 7777) == 50 and count_allocations(trace, 8888) == 50
    assert trace.verify().lost == trace.integrity.lost


WRITES = """
import os, sys, time, torch
import pytorch_alloctrace as alloctrace

flag = os.environ["FAILING_WRITES"]
for fault in sys.argv[1:]:
    session = alloctrace.enable(f"{fault}.alloctrace")
    before = [torch.empty(1111, dtype=torch.uint8) for _ in range(20)]
    session.flush()
    with open(flag + ".new", "w") as file:
        file.write(fault)
    os.rename(flag + ".new", flag)
    for _ in range(20):
        torch.empty(2222, dtype=torch.uint8)
    try:
        session.flush()
        outcome = "flushed"
    except Exception as error:
        outcome = type(error).__name__
    os.remove(flag)
    for _ in range(50):  # the writer pauses before it retries
        try:
            session.flush()
            break
        except alloctrace.SessionError:
            time.sleep(0.1)
    after = [torch.empty(3333, dtype=torch.uint8) for _ in range(20)]
    alloctrace.disable()
    print(fault, outcome, "touched" if os.path.getsize(flag + ".count") else "as they were")
    os.remove(flag + ".count")
"""


def test_no_event_is_lost_when_writes_fail(run_program, tmp_path: Path) -> None:
    shim = {"LD_PRELOAD": str(core_probe.build_shim("faulty_files.c")), "FAILING_WRITES": str(tmp_path / "failing")}

    process = run_program(WRITES, "eio", "short", "eintr", **shim)

    expected = ["eio SessionError touched", "short flushed touched", "eintr flushed touched"]
    assert process.stdout.splitlines() == expected
    for fault in ("eio", "short", "eintr"):
        trace = alloctrace.load(tmp_path / f"{fault}.alloctrace")
        assert trace.integrity.state == "complete", str(trace.integrity)
        assert [count_allocations(trace, size) for size in (1111, 2222, 3333)] == [20, 20, 20]


def test_recording_continues_when_the_trace_is_removed(run_program, tmp_path: Path) -> None:
    run_program(
        """
        import os, torch
        import pytorch_alloctrace as alloctrace
        def damage(path, fault):
            if fault == "deleted":
                os.remove(path)
            elif fault == "moved":
                os.rename(path, "elsewhere.alloctrace")
            else:
                os.truncate(path, 200)
        for fault in ("deleted", "moved", "truncated"):
            session = alloctrace.enable(f"{fault}.alloctrace")
            tensors = [torch.empty(1111, dtype=torch.uint8) for _ in range(20)]
            session.flush()
            damage(f"{fault}.alloctrace", fault)
            tensors += [torch.empty(2222, dtype=torch.uint8) for _ in range(20)]
            session.flush()
            alloctrace.disable()
        """
    )

    moved, truncated = [alloctrace.load(path) for path in sorted(tmp_path.glob("*.alloctrace"))]
    assert moved.integrity.state == "complete" and count_allocations(moved, 1111) == 20
    assert truncated.integrity.state == "corrupt" and not truncated.verify().ok
    for trace in (moved, truncated):
        assert count_allocations(trace, 2222) == 20 and trace.integrity.ended


TRUNCATED = """
import mmap, os, signal, sys, time, warnings, torch
import pytorch_alloctrace as alloctrace

SIZES = {"emptied": 0, "regrown": 0, "cut": 8192, "cut, regrown": 8192, "cut to 100": 100, "cut to 300": 300}
for fault, truncated_size in SIZES.items():
    session = alloctrace.enable(f"{fault}.alloctrace", devices=("cpu",))
    for _ in range(500):
        torch.empty(1111, dtype=torch.uint8)
    session.flush()
    spool = f"{fault}.alloctrace.spool"
    size = os.path.getsize(spool)
    os.truncate(spool, truncated_size)
    if fault.endswith("regrown"):
        os.truncate(spool, size)
    for _ in range(150_000 if fault == "emptied" else 700):
        torch.empty(2222, dtype=torch.uint8)
    if os.fork() == 0:
        os._exit(0)
    try:
        session.flush()
    except alloctrace.SessionError as error:
        print(error, flush=True)
    os.truncate(spool, 0)  # again
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        alloctrace.disable()
    print([str(warning.message) for warning in caught if "spool" in str(warning.message)], flush=True)
    assert not os.path.exists(spool)

# No thread of the recorder consumes a signal that the program blocks and waits for.
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


def test_program_survives_when_the_spool_is_truncated(run_program, tmp_path: Path) -> None:
    """Count the events in the truncated part as lost. A SIGBUS of another mapping, or sent, acts as before."""
    process = run_program(TRUNCATED, check=False)

    assert process.returncode == -signal.SIGBUS, process.stdout + process.stderr
    messages = process.stdout.splitlines()
    assert len(messages) == 12 and all("was truncated by another process" in line for line in messages)
    for fault in {path.stem for path in tmp_path.glob("*.alloctrace")} - {"blocked", "other"}:
        count = 150_000 if fault == "emptied" else 700
        trace = alloctrace.load(tmp_path / f"{fault}.alloctrace")
        assert trace.integrity.state == "gaps" and trace.integrity.ended, str(trace.integrity)
        lost = trace.integrity.lost
        assert 0 <= lost - 2 * count < 100, fault  # some events are of other kinds
        assert trace.integrity.lost_by_cause["write_failed"] == lost
        assert trace.events(kinds=["lost"])["requested_bytes"].sum() == lost
        assert count_allocations(trace, 1111) == 500 and count_allocations(trace, 2222) == 0
    assert alloctrace.load(tmp_path / "other.alloctrace").integrity.state == "complete"


def test_killed_start_leaves_no_file(run_program, tmp_path: Path) -> None:
    process = run_program(
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
    assert process.returncode == -signal.SIGKILL, process.stderr
    assert list((tmp_path / "traces").iterdir()) == []


def test_ctrl_c_interrupts_disable_while_the_disk_hangs(tmp_path: Path) -> None:
    """Send two Ctrl-C: the second, at the latest, interrupts disable()."""
    flag = tmp_path / "hangs"
    source = """
        import torch, sys
        import pytorch_alloctrace as alloctrace
        alloctrace.enable("t.alloctrace")
        tensors = [torch.empty(777, dtype=torch.uint8) for _ in range(100)]
        print("ready", flush=True)
        sys.stdin.readline()
        try:
            alloctrace.disable()
        except KeyboardInterrupt:
            print("interrupted", flush=True)
        """
    shim = {"LD_PRELOAD": str(core_probe.build_shim("faulty_files.c")), "SLOW_WRITES": str(flag), "SLOW_MS": "60000"}

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


def test_unrelated_bus_errors_act_as_without_a_guard() -> None:
    """Run a probe that prints "dies", or 10 plus the number of calls of its handler of SIGBUS."""
    probe = core_probe.build("truncation_guard_probe.cpp", core_probe.RECORDING, ["-O1"])
    process = subprocess.run([probe], capture_output=True, text=True, timeout=60, check=True)
    assert dict(line.split(": ") for line in process.stdout.splitlines()) == {
        "default, fault": "dies",
        "default, sent": "dies",
        "ignored, fault": "dies",
        "ignored, sent": "10",
        "handled once and raised, fault": "dies",
        "handled once, fault": "dies",
        "handled, sent": "11",
    }
