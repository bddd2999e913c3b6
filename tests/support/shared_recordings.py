"""Programs that tests record, some of them once for all tests until something changes that could change the trace."""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import inspect
import shutil
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from running import ROOT, only_one, run_python, with_cuda

FOLDER = ROOT / "build/recordings"
SOURCES = ("csrc", "pytorch_alloctrace/recording", "pytorch_alloctrace/objects", "tools/simcuda", "tests/support")


def record_once(name: str, record: Callable[[Path], None]) -> Path:
    """Return the folder that `record` filled for these tests or for earlier ones. Tests only read it.

    It is filled again when the recorder, the simulated device, tests/support, `record`'s file, Python or torch changes.
    """
    key = _digest([Path(inspect.getfile(record))], _key_of_recorder())
    folder = FOLDER / f"{name}-{key}"
    with only_one(FOLDER / f"{name}.lock"):
        if not (folder / "complete").exists():
            for outdated in FOLDER.glob(f"{name}-*"):
                shutil.rmtree(outdated)
            folder.mkdir()
            record(folder)
            (folder / "complete").touch()
    return folder


@functools.cache
def _key_of_recorder() -> str:
    files = {path for folder in SOURCES for path in (ROOT / folder).rglob("*") if path.is_file()}
    files |= {*(ROOT / "pytorch_alloctrace").glob("*.py")}
    sources = (path for path in files if "__pycache__" not in path.parts)
    return _digest(sorted(sources), sys.version, importlib.metadata.version("torch"))


def _digest(files: Iterable[Path], *texts: str) -> str:
    digest = hashlib.sha256(repr(texts).encode())
    for path in files:
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def run_source(folder: Path, source: str, *arguments: str, cuda: bool = False) -> Path:
    """Put program.py, with this text, and what it leaves in its folder into another folder; return that one.

    The program runs in a folder of its own, and only if these or earlier tests have not run it.
    """

    def record(made: Path) -> None:
        (made / "program.py").write_text(source)
        command = [sys.executable, "program.py", *arguments]
        run_python(made, with_cuda(command) if cuda else command, True, 600, {})

    shutil.copytree(
        record_once(f"program-{_digest([], source, *arguments, str(cuda))}", record), folder, dirs_exist_ok=True
    )
    return folder


def record_report(folder: Path) -> None:
    """Record report_program.py, on two devices, into run.alloctrace."""
    command = [sys.executable, str(ROOT / "tests/support/report_program.py"), "run.alloctrace"]
    run_python(folder, with_cuda(command, "4GiB", 2), True, 600, {})
