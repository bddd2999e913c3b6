"""Check on a real GPU: builds, records, tests, and writes the results to one JSON file, for benchmarks/results/.

Parts, in this order: the build, in place, with this Python; the device's properties; the event sequences of
tests/support/gpu_programs.py, which tests/recording/test_gpu_sequences.py compares with the simulated device's;
tools/bench/cuda; the CUDA tests. If a part fails, the file and stderr name it, the other parts still run, and the exit
status is 1. The exit status is 2 without a GPU, unless --simulated is given.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
TESTS = ROOT / "tests"
SUPPORT = TESTS / "support"
LOGS = ROOT / "build" / "gpu_check"
# Ordered by how much the tests depend on a real GPU, in case time runs out.
TEST_FILES = (
    *("test_driver_memory.py", "test_cuda_sequence.py", "test_cuda_faults.py", "test_cuda_stacks.py"),
    *("test_cuda_forwarding.py", "test_cuda_*.py"),
)
SIMULATED = [str(ROOT / "tools" / "simcuda" / "run"), "--memory", "80GiB"]

DEVICE_PROGRAM = """
import ctypes, json, torch
device = torch.cuda.get_device_properties(0)
cuda_of_driver = ctypes.c_int()
ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(cuda_of_driver))
print(json.dumps({
    "name": device.name, "capability": [device.major, device.minor], "multiprocessors": device.multi_processor_count,
    "memory": device.total_memory, "count": torch.cuda.device_count(), "torch": torch.__version__,
    "cuda": torch.version.cuda, "cuda_of_driver": cuda_of_driver.value,
    "cudnn": torch.backends.cudnn.version(),
}))
"""


class PartFailedError(Exception):
    """A failed part; the message is the reason."""


def commit() -> str:
    """Return the commit's hash, with a plus if files differ from it."""
    git = ["git", "-C", str(ROOT)]
    printed = [
        subprocess.run([*git, *arguments], capture_output=True, text=True, check=False).stdout.strip()
        for arguments in (["rev-parse", "HEAD"], ["status", "--porcelain", "--untracked-files=no"])
    ]
    return printed[0] + "+" * bool(printed[1]) if printed[0] else "not a git checkout"


def driver_release() -> str:
    """Return the driver's version, as nvidia-smi or the kernel reports it."""
    try:
        query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        return subprocess.run(query, capture_output=True, text=True, check=True, timeout=60).stdout.split()[0]
    except (OSError, subprocess.SubprocessError, IndexError):
        version = Path("/proc/driver/nvidia/version")
        return version.read_text().splitlines()[0] if version.exists() else "unknown"


@dataclass
class Check:
    simulated: bool
    bench: str
    deadline: float
    out: Path | None
    result: dict[str, Any] = field(default_factory=dict)

    def run(self, parts: list[str]) -> int:
        self.result = {
            "made_by": "tools/gpu_check",
            "at": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
            "commit": commit(),
            "simulated": self.simulated,
            "machine": {"system": platform.platform(), "cores": os.cpu_count(), "python": platform.python_version()},
            "failed": {},
            "seconds": {},
        }
        for name in parts:
            print(f"gpu_check: {name}", file=sys.stderr, flush=True)
            start = time.monotonic()
            try:
                PARTS[name](self)
            except PartFailedError as failure:
                self.report_failure(name, str(failure))
            except Exception as error:  # the other parts must run whatever happens in this part
                self.report_failure(name, f"{type(error).__name__}: {error}")
            self.result["seconds"][name] = round(time.monotonic() - start, 1)
            print(f"gpu_check: {name}: {self.result['seconds'][name]} s", file=sys.stderr, flush=True)
            self.write()  # after each part, so that an interrupted check leaves its results
        if not self.out:
            print(self.text())
        return int(bool(self.result["failed"]))

    def report_failure(self, name: str, reason: str) -> None:
        self.result["failed"][name] = reason
        print(f"gpu_check: {name} FAILED: {reason}", file=sys.stderr, flush=True)

    def text(self) -> str:
        """Return the result as JSON with one event of a sequence per line, for comparison with diff."""
        return json.dumps(self.result, indent=1) + "\n"

    def write(self) -> None:
        if self.out:
            unfinished = self.out.with_name(self.out.name + ".unfinished")
            unfinished.write_text(self.text())
            unfinished.replace(self.out)

    @property
    def launcher(self) -> list[str]:
        return SIMULATED if self.simulated else []

    def seconds_left(self) -> float:
        return max(self.deadline - time.monotonic(), 1.0)

    def run_command(self, log: str, command: list[str], **environment: str) -> tuple[int, str]:
        """Run a command; return its exit status and output, which is also in build/gpu_check/LOG.log."""
        paths = [str(ROOT), str(SUPPORT), os.environ.get("PYTHONPATH", "")]
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
        if self.simulated:
            environment["ALLOCTRACE_TEST_DEVICE"] = "simulated"
        path = LOGS / f"{log}.log"
        LOGS.mkdir(parents=True, exist_ok=True)
        with path.open("w") as file:
            process = subprocess.Popen(
                command,
                cwd=ROOT,
                env={**os.environ, **environment},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                status = process.wait(self.seconds_left())
            except subprocess.TimeoutExpired:
                # Kill the child processes too: a test's program would keep the device busy.
                os.killpg(process.pid, 9)
                process.wait()
                raise PartFailedError(f"{log} was stopped: the time is up; {last_lines(path.read_text())}") from None
        return status, path.read_text()

    def run_checked(self, log: str, command: list[str], **environment: str) -> str:
        status, output = self.run_command(log, command, **environment)
        if status != 0:
            raise PartFailedError(f"{log}: exit status {status}; {last_lines(output)}")
        return output

    def device(self) -> None:
        output = self.run_checked("device", [*self.launcher, sys.executable, "-c", DEVICE_PROGRAM])
        self.result["device"] = json.loads(output.splitlines()[-1])
        self.result["device"]["driver"] = "simulated" if self.simulated else driver_release()

    def build(self) -> None:
        self.run_checked("build", [sys.executable, "setup.py", "build_ext", "--inplace"])
        self.run_checked("import", [sys.executable, "-c", "import torch, pytorch_alloctrace._record"])
        if self.simulated:
            self.run_checked("simcuda", [str(ROOT / "tools/simcuda/run"), sys.executable, "-c", ""])

    def sequences(self) -> None:
        sys.path[:0] = [str(ROOT), str(SUPPORT)]
        from gpu_programs import PROGRAMS, format_events, record_sequence

        os.environ["PYTHONFAULTHANDLER"] = "1"  # a program that a signal kills prints its stack
        sequences = self.result["sequences"] = {}
        errors: dict[str, str] = {}

        def record(name: str, folder: Path) -> None:
            try:
                sequences[name] = format_events(record_sequence(name, folder, self.launcher, self.seconds_left()))
            except (RuntimeError, subprocess.TimeoutExpired) as error:
                errors[name] = str(error)

        with tempfile.TemporaryDirectory() as folder:
            for name in PROGRAMS:
                record(name, Path(folder))
        if errors:
            self.result["native_stack"] = self.native_stack(next(iter(errors)))
            raise PartFailedError("; ".join(errors.values()))

    def native_stack(self, program: str) -> list[str]:
        """Return the native stack, from a debugger, of a program that a signal kills; empty without a debugger."""
        debugger = shutil.which("gdb") or shutil.which("cuda-gdb")
        if debugger is None:
            return []
        script = ["-batch", "-ex", "run", "-ex", "backtrace 40", "-ex", "x/8i $pc", "-ex", "info registers"]
        with tempfile.TemporaryDirectory() as folder:
            recording = [str(SUPPORT / "gpu_programs.py"), program, f"{folder}/trace"]
            command = [*self.launcher, debugger, *script, "--args", sys.executable, *recording]
            try:
                _, output = self.run_command("debugger", command)
            except (PartFailedError, subprocess.TimeoutExpired) as error:
                return [str(error)]
        return output.splitlines()[-100:]

    def benchmark(self) -> None:
        if self.bench == "none":
            return
        path = LOGS / "bench.json"
        path.unlink(missing_ok=True)
        command = [*self.launcher, sys.executable, "tools/bench/cuda.py", "--out", str(path)]
        self.run_checked("bench", command + ["--quick"] * (self.bench == "quick"))
        self.result["bench"] = {"rounds": self.bench, **json.loads(path.read_text())}

    def tests(self) -> None:
        """Run one test file at a time, so that a file that hangs loses only its own results."""
        total = self.result["tests"] = {"passed": 0, "failed": [], "skipped": {}, "seconds_of_file": {}}
        errors = []
        for path in dict.fromkeys(path for pattern in TEST_FILES for path in sorted(TESTS.rglob(pattern))):
            report = LOGS / f"{path.stem}.xml"
            report.unlink(missing_ok=True)
            start = time.monotonic()
            command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}"]
            try:
                status, output = self.run_command(path.stem, [*command, str(path)])
            except PartFailedError as failure:
                errors.append(str(failure))
                continue
            total["seconds_of_file"][path.name] = round(time.monotonic() - start, 1)
            if not report.exists():
                errors.append(f"{path.name}: exit status {status}; {last_lines(output)}")
                continue
            add_report(report, path, total)
        if total["failed"]:
            errors.append(f"{len(total['failed'])} tests failed")
            for failed in total["failed"]:
                print(f"gpu_check: {failed['test']}: {failed['reason'].splitlines()[:1]}", file=sys.stderr)
        if errors:
            raise PartFailedError("; ".join(errors))


def last_lines(output: str) -> str:
    return "last lines: " + " | ".join(output.strip().splitlines()[-5:])


def add_report(report: Path, path: Path, total: dict[str, Any]) -> None:
    """Add the results of one file, from pytest's XML."""
    for case in ElementTree.parse(report).iter("testcase"):
        test = f"{path.name}::{case.get('name')}"
        failures = [entry for entry in case if entry.tag in ("failure", "error")]
        skipped = case.find("skipped")
        if failures:
            text = f"{failures[0].get('message')}\n{failures[0].text}".replace(str(ROOT), ".")
            short = text if len(text) < 4000 else f"{text[:1500]}\n...\n{text[-2500:]}"
            total["failed"].append({"test": test, "reason": short})
        elif skipped is not None:
            total["skipped"][test] = skipped.get("message")
        else:
            total["passed"] += 1


PARTS: dict[str, Callable[[Check], None]] = {
    "build": Check.build,
    "device": Check.device,
    "sequences": Check.sequences,
    "bench": Check.benchmark,
    "tests": Check.tests,
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="tools/gpu_check", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--out", type=Path, metavar="FILE", help="where the JSON goes (default: standard output)")
    parser.add_argument("--simulated", action="store_true", help="use the simulated device, to try the tool")
    parser.add_argument(
        "--bench", choices=("quick", "full", "none"), default="quick", help="rounds of tools/bench/cuda"
    )
    parser.add_argument(
        "--only", nargs="+", choices=tuple(PARTS), default=list(PARTS), metavar="PART", help="some of: %(choices)s"
    )
    parser.add_argument(
        "--limit", type=float, default=480, metavar="SECONDS", help="time for all parts (default: %(default)s)"
    )
    options = parser.parse_args()
    if not options.simulated and not [*Path("/dev").glob("nvidia[0-9]*")]:
        print(
            "gpu_check: this machine has no NVIDIA GPU (--simulated runs it on the simulated device)", file=sys.stderr
        )
        return 2
    parts = [name for name in PARTS if name in options.only]
    return Check(options.simulated, options.bench, time.monotonic() + options.limit, options.out).run(parts)


if __name__ == "__main__":
    sys.exit(main())
