"""enable(report_oom=True): the verdict is printed once, and the program is not affected."""

from __future__ import annotations

from pathlib import Path

import pytest
from running import needs_cuda_build

import pytorch_alloctrace as alloctrace

BEGIN = """
import sys, torch
import pytorch_alloctrace as alloctrace
from pytorch_alloctrace.recording import oom_report
tensors = []
def fill(size=200):
    while True:
        tensors.append(torch.empty(size * 2**20, dtype=torch.uint8, device="cuda"))
        alloctrace.step()
"""


def count_verdicts(text: str) -> int:
    return text.count("alloctrace: out of memory.")


@needs_cuda_build
def test_verdict_is_printed_before_the_traceback_of_an_uncaught_error(run_cuda_program, tmp_path: Path) -> None:
    source = BEGIN + "session = alloctrace.enable('t.alloctrace', report_oom=True)\nfill()\n"

    process = run_cuda_program(source, memory="4GiB", check=False)

    assert process.returncode == 1
    assert count_verdicts(process.stderr) == 1
    verdict, _, traceback = process.stderr.partition("Traceback (most recent call last)")
    # The traceback has no frame of the package.
    assert "OUT OF MEMORY" in verdict and "program.py:8" in verdict and "200 MiB" in verdict
    assert "torch.OutOfMemoryError: CUDA out of memory." in traceback and "pytorch_alloctrace" not in traceback
    trace = alloctrace.load(tmp_path / "t.alloctrace")
    assert trace.integrity.ended and len(trace.ooms()) == 1


@needs_cuda_build
def test_verdict_is_printed_once_for_caught_errors_within_its_time_limit(run_cuda_program) -> None:
    process = run_cuda_program(
        BEGIN
        + """
alloctrace.enable("t.alloctrace", report_oom=True)
errors = []
for attempt in range(3):
    try:
        fill(200 + attempt)
    except RuntimeError as error:
        errors.append((type(error) is torch.OutOfMemoryError, str(error)[:26], error.args == (str(error),)))
    allocated = torch.cuda.memory_allocated()
    tensors.clear()
assert errors == [(True, "CUDA out of memory. Tried ", True)] * 3, errors
alloctrace.disable()
assert "__init__" not in vars(torch.OutOfMemoryError)
torch.OutOfMemoryError("nothing is recorded")
with alloctrace.enable("u.alloctrace", report_oom=True):  # another recording, another verdict
    try:
        fill()
    except torch.OutOfMemoryError:
        tensors.clear()
oom_report.SECONDS = 0.001
with alloctrace.enable("v.alloctrace", report_oom=True):
    try:
        fill()
    except torch.OutOfMemoryError:
        print("goes on", file=sys.stderr)
""",
        memory="4GiB",
    )

    assert count_verdicts(process.stderr) == 3 and process.stderr.endswith("goes on\n")
    last = process.stderr.rpartition("alloctrace: out of memory.")[2]
    assert "too long to judge" in last and "v.alloctrace" in last


@needs_cuda_build
@pytest.mark.parametrize(("origin", "count"), [("node", 1), ("engine", 2)])
def test_verdict_is_printed_for_errors_on_the_thread_of_backward(run_cuda_program, origin: str, count: int) -> None:
    process = run_cuda_program(
        BEGIN
        + """
alloctrace.enable("t.alloctrace", report_oom=True)
class Large(torch.autograd.Function):
    @staticmethod
    def forward(context, x): return x * 1
    @staticmethod
    def backward(context, grad):
        return torch.empty(2**40, dtype=torch.uint8, device="cuda")
x = torch.ones(2**24, device="cuda", requires_grad=True)
y = x
for _ in range(4): y = (y * 2).exp()
if sys.argv[1] == "node":  # fails on autograd's thread, in Python
    y = Large.apply(x)
else:  # fails on autograd's thread, in C++
    try: fill(4)
    except torch.OutOfMemoryError: pass
    alloctrace.disable()
    alloctrace.enable("u.alloctrace", report_oom=True)
try:
    y.sum().backward()
except torch.OutOfMemoryError:
    print("OutOfMemoryError")
""",
        origin,
        memory="4GiB",
    )

    assert process.stdout == "OutOfMemoryError\n", process.stderr
    assert count_verdicts(process.stderr) == count
    assert "OUT OF MEMORY" in process.stderr.rpartition("alloctrace: out of memory.")[2]


def test_exception_is_unchanged_when_the_verdict_fails(run_program) -> None:
    """Raise the error in a forked child, with an interpreter that does not start, and without stderr."""
    process = run_program(
        """
        import os, sys, torch
        import pytorch_alloctrace as alloctrace
        alloctrace.enable("t.alloctrace", report_oom=True)
        if os.fork() == 0:
            torch.OutOfMemoryError("in the child")
            os._exit(0)
        os.wait()
        executable, sys.executable = sys.executable, "/nowhere/python"
        try:
            raise torch.OutOfMemoryError("first")
        except torch.OutOfMemoryError as error:
            assert error.args == ("first",) and error.__cause__ is None and error.__context__ is None
        alloctrace.disable()
        sys.executable = executable
        alloctrace.enable("u.alloctrace", report_oom=True)
        stderr, sys.stderr = sys.stderr, None
        try:
            raise torch.OutOfMemoryError("second")
        except torch.OutOfMemoryError as error:
            assert error.args == ("second",)
        sys.stderr = stderr
        print("goes on")
        """
    )
    assert process.stdout == "goes on\n"
    assert count_verdicts(process.stderr) == 1 and "no verdict could be made" in process.stderr
