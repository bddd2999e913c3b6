"""Recordings shared by tests, and reused by later runs until a source changes that could change the trace."""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import inspect
import shutil
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from running import ROOT, hold_lock, run_python, with_cuda

FOLDER = ROOT / "build/recordings"
SOURCES = ("csrc", "pytorch_alloctrace/recording", "pytorch_alloctrace/objects", "tools/simcuda", "tests/support")


def record_once(name: str, record: Callable[[Path], None]) -> Path:
    """Return a read-only folder that `record` has filled, in this run or an earlier one.

    `record` runs again when the recorder, simulated device, tests/support, `record`'s file, Python or torch changes.
    """
    key = _digest([Path(inspect.getfile(record))], _recorder_key())
    folder = FOLDER / f"{name}-{key}"
    with hold_lock(FOLDER / f"{name}.lock"):
        if not (folder / "complete").exists():
            for outdated in FOLDER.glob(f"{name}-*"):
                shutil.rmtree(outdated)
            folder.mkdir()
            record(folder)
            (folder / "complete").touch()
    return folder


@functools.cache
def _recorder_key() -> str:
    files = {path for folder in SOURCES for path in (ROOT / folder).rglob("*") if path.is_file()}
    files |= {*(ROOT / "pytorch_alloctrace").glob("*.py")}
    sources = (path for path in files if "__pycache__" not in path.parts)
    return _digest(sorted(sources), sys.version, importlib.metadata.version("torch"))


def _digest(files: Iterable[Path], *texts: str) -> str:
    digest = hashlib.sha256(repr(texts).encode())
    for path in files:
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def run_source(folder: Path, source: str, *arguments: str, cuda: bool = False, memory: str = "80GiB") -> Path:
    """Copy program.py (`source`) and its output to `folder`, and return `folder`.

    The program runs once, in a shared folder. memory: of the simulated device, such as "1GiB".
    """

    def record(shared: Path) -> None:
        (shared / "program.py").write_text(source)
        command = [sys.executable, "program.py", *arguments]
        run_python(shared, with_cuda(command, memory) if cuda else command, True, 600, {})

    shutil.copytree(
        record_once(f"program-{_digest([], source, *arguments, str(cuda), memory)}", record), folder, dirs_exist_ok=True
    )
    return folder


def record_report(folder: Path) -> None:
    """Record report_program.py, on two devices, into run.alloctrace."""
    command = [sys.executable, str(ROOT / "tests/support/report_program.py"), "run.alloctrace"]
    run_python(folder, with_cuda(command, "4GiB", 2), True, 600, {})
