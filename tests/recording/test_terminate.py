"""SIGTERM: the trace is completed, its spool removed, and the program ends as without a recording."""

from __future__ import annotations

import signal
import sys
import textwrap
import time
from pathlib import Path

import core_probe
import pytest
from running import ending_without_scan, run_python, start_python, with_cuda

import pytorch_alloctrace as alloctrace

BEGIN = """
import ctypes, os, signal, subprocess, sys, threading, time
import torch
import pytorch_alloctrace as alloctrace
def send_sigterm():
    subprocess.Popen(["sh", "-c", f"kill -TERM {os.getpid()}; touch sent"])
"""


def run_until_sigterm(folder: Path, source: str, *launcher: str, cuda: bool = False) -> tuple[int, str, str]:
    """Return status and output of BEGIN and `source`, whose `send_sigterm()` makes a child process send SIGTERM."""
    (folder / "program.py").write_text(BEGIN + textwrap.dedent(source))
    command = [sys.executable, *launcher, "program.py"]
    process = run_python(folder, with_cuda(command) if cuda else command, False, 600, {})
    return process.returncode, process.stdout, process.stderr


def load_ended_trace(path: Path) -> alloctrace.Trace:
    """Load a trace that must have ended by SIGTERM, without a spool."""
    trace = alloctrace.load(path)
    assert trace.integrity.ended and trace.integrity.state == "complete" and not trace.integrity.spool_read
    assert trace._recorded.ending == {"reason": "SIGTERM"}
    assert not path.with_name(path.name + ".spool").exists()
    return trace


RUN = ("-m", "pytorch_alloctrace", "run", "--output", "t.alloctrace")
CALLS = {
    "sleep": "time.sleep(1000)",
    "C call": "ctypes.PyDLL(None).sleep(1000)",  # holds the GIL, so that no Python code runs
    "malloc": "\nwhile True: sum(len(bytes(n)) for n in range(513, 4096))",
    "thread": "\nthreading.Thread(target=lambda: time.sleep(1000)).start()",
}


@pytest.mark.parametrize(("call", "launcher"), [(call, RUN if call == "sleep" else ()) for call in CALLS])
def test_sigterm_ends_the_program_and_completes_its_trace(tmp_path: Path, call: str, launcher: tuple[str, ...]) -> None:
    enable = "" if launcher else 'alloctrace.enable("t.alloctrace")'
    source = f"""
        {enable}
        held = [torch.empty(777) for _ in range(1000)]
        send_sigterm()
        """

    status, out, error = run_until_sigterm(tmp_path, textwrap.dedent(source) + CALLS[call], *launcher)

    assert (status, out, error) == (-signal.SIGTERM, "", "")
    trace = load_ended_trace(tmp_path / "t.alloctrace")
    live = trace.live()
    blocks = live[live["requested_bytes"] == 777 * 4]
    assert len(blocks) == 1000 and set(blocks["line"]) == {9}
    assert trace.frames(int(blocks["stack_id"].iloc[0]))[0].source == "held = [torch.empty(777) for _ in range(1000)]"


def test_sigterm_ends_a_program_that_waits_for_the_device(tmp_path: Path) -> None:
    source = """
        alloctrace.enable("t.alloctrace")
        tensor = torch.empty(1 << 20, device="cuda")
        send_sigterm()
        while True:
            torch.cuda.synchronize()
            torch.empty(12345, device="cuda")
        """
    assert run_until_sigterm(tmp_path, source, cuda=True) == (-signal.SIGTERM, "", "")
    assert (load_ended_trace(tmp_path / "t.alloctrace").live(device="cuda:0")["requested_bytes"] == 4 << 20).sum() == 1


@pytest.mark.parametrize(
    ("handler", "expected"),
    [("handler", (3, "handled 15\n", "")), ("signal.SIG_IGN", (0, "", ""))],
    ids=["handled", "ignored"],
)
def test_sigterm_is_left_to_programs_that_handle_or_ignore_it(
    tmp_path: Path, handler: str, expected: tuple[int, str, str]
) -> None:
    source = f"""
        def handler(number, frame):
            print("handled", number, flush=True)
            sys.exit(3)
        signal.signal(signal.SIGTERM, {handler})
        alloctrace.enable("t.alloctrace")
        send_sigterm()
        while not os.path.exists("sent"):
            time.sleep(0.02)
        time.sleep(0.3)
        """

    assert run_until_sigterm(tmp_path, source) == expected

    trace = alloctrace.load(tmp_path / "t.alloctrace")
    assert ending_without_scan(trace._recorded.ending) == {"reason": "exit"} and trace.integrity.state == "complete"


def test_handler_is_invisible_to_python_and_our_threads_block_signals(run_program) -> None:
    """Check also that the handler is removed, and that the recorder's threads block the program's signals."""
    process = run_program(
        """
        import os, signal, time, torch, pytorch_alloctrace as alloctrace
        def action():
            lines = open("/proc/self/status").read().splitlines()
            caught_mask = int(next(line.split()[1] for line in lines if line.startswith("SigCgt:")), 16)
            term, bus = (bool(caught_mask >> (number - 1) & 1) for number in (signal.SIGTERM, signal.SIGBUS))
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
        statuses = [open(f"/proc/self/task/{thread}/status").read() for thread in new]
        assert len(statuses) >= 3, statuses
        for status in statuses:
            fields = dict(line.split(":", 1) for line in status.splitlines())
            assert fields["Name"].strip() == "alloctrace", status
            # SIGBUS is not blocked: a fault whose signal is blocked ends the process.
            catchable = {*signal.valid_signals()} - {signal.SIGKILL, signal.SIGSTOP, signal.SIGBUS}
            blocked = int(fields["SigBlk"], 16)
            assert all(blocked >> (number - 1) & 1 for number in catchable), status
        signal.signal(signal.SIGTERM, print)
        alloctrace.disable()
        assert action() and signal.getsignal(signal.SIGTERM) is print
        """
    )
    assert process.stdout == "False True False\n" * 3


CHILDREN = {
    "fork": """
        child = os.fork()
        if child == 0:
            signal.pause()
            os._exit(7)
        """,
    "vfork": """
        # Like a child of vfork before exec: a process that shares the memory and the signal handlers.
        libc = ctypes.CDLL(None)
        CLONE_VM, stack = 0x100, ctypes.create_string_buffer(1 << 20)
        body, top = ctypes.cast(libc.pause, ctypes.c_void_p), ctypes.c_void_p(ctypes.addressof(stack) + (1 << 20) - 64)
        child = libc.clone(body, top, CLONE_VM | signal.SIGCHLD, None)
        """,
}


@pytest.mark.parametrize("kind", CHILDREN)
def test_sigterm_ends_children_at_once_but_not_their_parents_trace(run_program, tmp_path: Path, kind: str) -> None:
    source = f"""
        alloctrace.enable("t.alloctrace")
        tensors = [torch.empty(777) for _ in range(100)]
{CHILDREN[kind]}
        time.sleep(0.3)
        begin = time.monotonic()
        os.kill(child, signal.SIGTERM)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert status == -signal.SIGTERM, status
        duration_s = time.monotonic() - begin
        after = [torch.empty(778) for _ in range(100)]
        time.sleep(0.5)
        print("duration_s", duration_s < 1.5, duration_s)  # the parent would have waited for two seconds
        alloctrace.disable()
        """

    process = run_program(BEGIN + textwrap.dedent(source))

    assert process.stdout.startswith("duration_s True"), process.stdout + process.stderr
    trace = alloctrace.load(tmp_path / "t.alloctrace")
    assert ending_without_scan(trace._recorded.ending) == {"reason": "disable"} and len(trace.live()) == 200


@pytest.mark.parametrize("signals", [1, 2])
def test_sigterm_waits_two_seconds_for_a_hung_disk_unless_sent_twice(tmp_path: Path, signals: int) -> None:
    flag = tmp_path / "hangs"
    slow = {"LD_PRELOAD": str(core_probe.build_shim("faulty_files.c")), "SLOW_WRITES": str(flag), "SLOW_MS": "60000"}
    source = """
        alloctrace.enable("t.alloctrace")
        tensors = [torch.empty(777) for _ in range(100)]
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
        duration_s = time.monotonic() - begin

    assert process.returncode == -signal.SIGTERM
    assert 1.9 < duration_s < 30 if signals == 1 else duration_s < 1.5
    # The spool still exists, so no event is lost.
    trace = alloctrace.load(tmp_path / "t.alloctrace")
    assert len(trace.live()) == 100 and trace.integrity.spool_read and not trace.integrity.ended


def test_sigterm_ends_the_traces_of_followed_children(tmp_path: Path) -> None:
    """Terminate a worker process, as torchrun does, and the forked workers of a DataLoader."""
    source = """
        if sys.argv[1:]:
            tensor = torch.empty(4321)
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
    arguments = ["-m", "pytorch_alloctrace", "run", "--output", "run.alloctrace", "--follow", "program.py"]

    process = run_python(tmp_path, [sys.executable, *arguments], False, 600, {}, fresh=True)

    assert "worker -15" in process.stdout, process.stdout + process.stderr
    traces = [alloctrace.load(path) for path in tmp_path.glob("run-*.alloctrace")]
    worker_traces = [trace for trace in traces if 4321 * 4 in set(trace.live()["requested_bytes"])]
    assert [trace._recorded.ending for trace in worker_traces] == [{"reason": "SIGTERM"}]
    assert ending_without_scan(alloctrace.load(tmp_path / "run.alloctrace")._recorded.ending) == {"reason": "exit"}
