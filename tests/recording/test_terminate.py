"""SIGTERM: the trace ends, its spool is removed, and the program dies of the signal as without a recording."""

from __future__ import annotations

import signal
import sys
import textwrap
import time
from pathlib import Path

import core_probe
import pytest
from running import how_it_ended, run_python, start_python, with_cuda

import pytorch_alloctrace as alloctrace

BEGIN = """
import ctypes, os, signal, subprocess, sys, threading, time
import torch
import pytorch_alloctrace as alloctrace
def ready():
    subprocess.Popen(["sh", "-c", f"kill -TERM {os.getpid()}; touch sent"])
"""


def terminated(folder: Path, source: str, *launcher: str, cuda: bool = False) -> tuple[int, str, str]:
    """Return the exit status and output of BEGIN and `source`, in which `ready()` has another process send SIGTERM."""
    (folder / "program.py").write_text(BEGIN + textwrap.dedent(source))
    command = [sys.executable, *launcher, "program.py"]
    done = run_python(folder, with_cuda(command) if cuda else command, False, 600, {})
    return done.returncode, done.stdout, done.stderr


def ended(path: Path) -> alloctrace.Trace:
    """Load a trace that must have ended by SIGTERM, without a spool."""
    trace = alloctrace.load(path)
    assert trace.integrity.ended and trace.integrity.state == "complete" and not trace.integrity.spool_read
    assert trace._recorded.ending == {"reason": "SIGTERM"}
    assert not path.with_name(path.name + ".spool").exists()
    return trace


RUN = ("-m", "pytorch_alloctrace", "run", "--output", "t.alloctrace")
CALLS = {
    "sleep": "time.sleep(1000)",
    "C call": "ctypes.PyDLL(None).sleep(1000)",  # with the GIL held, so that no Python code runs
    "malloc": "\nwhile True: sum(len(bytes(n)) for n in range(513, 4096))",
    "thread": "\nthreading.Thread(target=lambda: time.sleep(1000)).start()",
}


@pytest.mark.parametrize(("call", "launcher"), [(call, RUN if call == "sleep" else ()) for call in CALLS])
def test_program_dies_by_the_signal_and_its_trace_is_complete(
    tmp_path: Path, call: str, launcher: tuple[str, ...]
) -> None:
    enable = "" if launcher else 'alloctrace.enable("t.alloctrace")'
    source = f"""
        {enable}
        held = [torch.empty(777) for _ in range(1000)]
        ready()
        """
    status, out, error = terminated(tmp_path, textwrap.dedent(source) + CALLS[call], *launcher)
    assert (status, out, error) == (-signal.SIGTERM, "", "")
    trace = ended(tmp_path / "t.alloctrace")
    live = trace.live()
    mine = live[live["requested_bytes"] == 777 * 4]
    assert len(mine) == 1000 and set(mine["line"]) == {9}
    assert trace.frames(int(mine["stack_id"].iloc[0]))[0].source == "held = [torch.empty(777) for _ in range(1000)]"


def test_wait_for_the_device_ends_by_the_signal(tmp_path: Path) -> None:
    source = """
        alloctrace.enable("t.alloctrace")
        held = torch.empty(1 << 20, device="cuda")
        ready()
        while True:
            torch.cuda.synchronize()
            torch.empty(12345, device="cuda")
        """
    assert terminated(tmp_path, source, cuda=True) == (-signal.SIGTERM, "", "")
    assert (ended(tmp_path / "t.alloctrace").live(device="cuda:0")["requested_bytes"] == 4 << 20).sum() == 1


@pytest.mark.parametrize(
    ("handler", "expected"),
    [("handler", (3, "handled 15\n", "")), ("signal.SIG_IGN", (0, "", ""))],
    ids=["handled", "ignored"],
)
def test_a_program_that_handles_the_signal_is_not_disturbed(
    tmp_path: Path, handler: str, expected: tuple[int, str, str]
) -> None:
    source = f"""
        def handler(number, frame):
            print("handled", number, flush=True)
            sys.exit(3)
        signal.signal(signal.SIGTERM, {handler})
        alloctrace.enable("t.alloctrace")
        ready()
        while not os.path.exists("sent"):
            time.sleep(0.02)
        time.sleep(0.3)
        """
    assert terminated(tmp_path, source) == expected
    trace = alloctrace.load(tmp_path / "t.alloctrace")
    assert how_it_ended(trace._recorded.ending) == {"reason": "exit"} and trace.integrity.state == "complete"


def test_handler_is_invisible_to_python_and_our_threads_block_signals(run_program) -> None:
    """Check also that the handler is removed, and that no thread of ours takes a signal that the program blocks."""
    done = run_program(
        """
        import os, signal, time, torch, pytorch_alloctrace as alloctrace
        def action():
            lines = open("/proc/self/status").read().splitlines()
            caught = int(next(line.split()[1] for line in lines if line.startswith("SigCgt:")), 16)
            term, bus = (bool(caught >> (number - 1) & 1) for number in (signal.SIGTERM, signal.SIGBUS))
            assert term == bus or signal.getsignal(signal.SIGTERM) is print
            return term
        before, others = action(), os.listdir("/proc/self/task")
        for number in range(3):
            alloctrace.enable(f"{number}.alloctrace")
            assert signal.getsignal(signal.SIGTERM) is signal.getsignal(signal.SIGBUS) is signal.SIG_DFL
            print(before, action(), end=" ")
            alloctrace.disable()
            print(action())
        alloctrace.enable("own.alloctrace")
        time.sleep(0.3)
        new = {*os.listdir("/proc/self/task")} - {*others}
        ours = [open(f"/proc/self/task/{thread}/status").read() for thread in new]
        assert len(ours) >= 3, ours
        for status in ours:
            fields = dict(line.split(":", 1) for line in status.splitlines())
            assert fields["Name"].strip() == "alloctrace", status
            # A fault whose signal is blocked ends the process.
            catchable = {*signal.valid_signals()} - {signal.SIGKILL, signal.SIGSTOP, signal.SIGBUS}
            blocked = int(fields["SigBlk"], 16)
            assert all(blocked >> (number - 1) & 1 for number in catchable), status
        signal.signal(signal.SIGTERM, print)
        alloctrace.disable()
        assert action() and signal.getsignal(signal.SIGTERM) is print
        """
    )
    assert done.stdout == "False True False\n" * 3


CHILDREN = {
    "fork": """
        child = os.fork()
        if child == 0:
            signal.pause()
            os._exit(7)
        """,
    "vfork": """
        # What a child of vfork is until it becomes another program: a process with our memory and our handlers.
        libc = ctypes.CDLL(None)
        CLONE_VM, stack = 0x100, ctypes.create_string_buffer(1 << 20)
        body, top = ctypes.cast(libc.pause, ctypes.c_void_p), ctypes.c_void_p(ctypes.addressof(stack) + (1 << 20) - 64)
        child = libc.clone(body, top, CLONE_VM | signal.SIGCHLD, None)
        """,
}


@pytest.mark.parametrize("kind", CHILDREN)
def test_children_die_at_once_and_leave_their_parents_trace_alone(run_program, tmp_path: Path, kind: str) -> None:
    source = f"""
        alloctrace.enable("t.alloctrace")
        held = [torch.empty(777) for _ in range(100)]
{CHILDREN[kind]}
        time.sleep(0.3)
        begin = time.monotonic()
        os.kill(child, signal.SIGTERM)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert status == -signal.SIGTERM, status
        took = time.monotonic() - begin
        after = [torch.empty(778) for _ in range(100)]
        time.sleep(0.5)
        print("took", took < 1.5, took)  # the parent would have waited for two seconds
        alloctrace.disable()
        """
    done = run_program(BEGIN + textwrap.dedent(source))
    assert done.stdout.startswith("took True"), done.stdout + done.stderr
    trace = alloctrace.load(tmp_path / "t.alloctrace")
    assert how_it_ended(trace._recorded.ending) == {"reason": "disable"} and len(trace.live()) == 200


@pytest.mark.parametrize("signals", [1, 2])
def test_hung_disk_delays_the_end_by_two_seconds_unless_a_second_signal_comes(tmp_path: Path, signals: int) -> None:
    flag = tmp_path / "hangs"
    slow = {"LD_PRELOAD": str(core_probe.preloaded("faulty_files.c")), "SLOW_WRITES": str(flag), "SLOW_MS": "60000"}
    source = """
        alloctrace.enable("t.alloctrace")
        held = [torch.empty(777) for _ in range(100)]
        print("ready", flush=True)
        signal.pause()
        """
    (tmp_path / "program.py").write_text(BEGIN + textwrap.dedent(source))
    with start_python(tmp_path, "program.py", **slow) as process:
        assert process.stdout.readline() == "ready\n"
        flag.touch()
        begin = time.monotonic()
        process.terminate()
        if signals == 2:
            time.sleep(0.2)
            assert process.poll() is None
            process.terminate()
        process.wait(timeout=600)
        took = time.monotonic() - begin
    assert process.returncode == -signal.SIGTERM
    assert 1.9 < took < 30 if signals == 1 else took < 1.5
    # Nothing is lost: the spool is still there.
    trace = alloctrace.load(tmp_path / "t.alloctrace")
    assert len(trace.live()) == 100 and trace.integrity.spool_read and not trace.integrity.ended


def test_children_that_are_followed_end_their_own_traces(tmp_path: Path) -> None:
    """Terminate a worker process, as torchrun does, and the forked workers of a DataLoader."""
    source = """
        if sys.argv[1:]:
            held = torch.empty(4321)
            print("ready", flush=True)
            time.sleep(1000)
        class Data(torch.utils.data.Dataset):
            def __len__(self): return 40
            def __getitem__(self, index): return torch.empty(12345)
        worker = subprocess.Popen([sys.executable, "program.py", "worker"], stdout=subprocess.PIPE)
        worker.stdout.readline()
        batches = iter(torch.utils.data.DataLoader(Data(), batch_size=4, num_workers=1))
        next(batches)
        worker.terminate()
        print("worker", worker.wait())
        for process in batches._workers: process.terminate()
        for process in batches._workers: process.join()
        """
    (tmp_path / "program.py").write_text(BEGIN + textwrap.dedent(source))
    words = ["-m", "pytorch_alloctrace", "run", "--output", "run.alloctrace", "--follow", "program.py"]
    done = run_python(tmp_path, [sys.executable, *words], False, 600, {}, fresh=True)
    assert "worker -15" in done.stdout, done.stdout + done.stderr
    traces = [alloctrace.load(path) for path in tmp_path.glob("run-*.alloctrace")]
    mine = [trace for trace in traces if 4321 * 4 in set(trace.live()["requested_bytes"])]
    assert [trace._recorded.ending for trace in mine] == [{"reason": "SIGTERM"}]
    assert how_it_ended(alloctrace.load(tmp_path / "run.alloctrace")._recorded.ending) == {"reason": "exit"}
