"""Stacks of the walker alone, without torch, compared with the traceback module's under every installed Python."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from frame_walk_programs import SCENARIOS
from running import ROOT, SUPPORT, hold_lock, run_compiler

VERSIONS = ("3.10", "3.11", "3.12", "3.13", "3.14")
RUNNING = f"{sys.version_info.major}.{sys.version_info.minor}"
CORE_SOURCES = ("recording/definition_log", "format/definitions", "format/line_table", "recording/stack_table")
WALKER_SOURCES = (
    *("code_registry", "frame_walk", "layout_check", "module_registry", "pending_calls", "public_walk", "stack_hash"),
)

# All scenarios in the default mode; in the other modes, the scenarios that behave differently there.
CASES = [
    *((scenario, "as checked") for scenario in SCENARIOS),
    *((scenario, "no watcher left") for scenario in ("reused_addresses", "threads", "deaths", "fork")),
    *((scenario, "public API") for scenario in ("each_construct", "random_programs", "reused_addresses", "threads")),
]

Interpreter = tuple[str, str, str]  # executable, folder of Python.h, suffix of extension modules


def describe_interpreter(executable: str, version: str) -> Interpreter | None:
    """Return an interpreter, or None if it does not start, is another version or free-threaded, or has no headers."""
    program = (
        "import sys, sysconfig as s; print('%d.%d' % sys.version_info[:2]); print(s.get_path('include')); "
        "print(s.get_config_var('EXT_SUFFIX')); print(s.get_config_var('Py_GIL_DISABLED') or 0)"
    )
    try:
        process = subprocess.run([executable, "-c", program], capture_output=True, text=True, timeout=600)
    except OSError:
        return None
    if process.returncode != 0:
        return None
    its_version, include, suffix, free_threaded = process.stdout.splitlines()
    is_usable = its_version == version and free_threaded == "0" and Path(include, "Python.h").exists()
    return (executable, include, suffix) if is_usable else None


def find_interpreter(version: str) -> Interpreter | None:
    candidates = [sys.executable] if version == RUNNING else []
    on_path = shutil.which(f"python{version}")
    candidates += [on_path] if on_path else []
    candidates += map(str, sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python{version}"), reverse=True))
    return next(filter(None, (describe_interpreter(candidate, version) for candidate in candidates)), None)


def build_probe(interpreter: Interpreter, root: Path = ROOT) -> Path:
    """Build the probe for an interpreter from the sources under root, as one source; return its folder under build/."""
    _, include, suffix = interpreter
    sources = [f"csrc/core/{name}.cpp" for name in CORE_SOURCES]
    sources += [*(f"csrc/python/recording/{name}.cpp" for name in WALKER_SOURCES), "tests/support/frame_walk_probe.cpp"]
    headers = [*sorted((root / "csrc/core").rglob("*.h")), *sorted((root / "csrc/python/recording").glob("*.h"))]
    # Not -O0: the optimised walk is tested.
    options = ["-std=c++20", "-O1", "-fPIC", "-fvisibility=hidden", "-pthread", "-DNDEBUG"]
    options += ["-DALLOCTRACE_CHECK_FRAMES", "-DALLOCTRACE_CHECKS"]
    options += ["-Wall", "-Wextra", "-Werror", "-Wno-subobject-linkage", "-isystem", include]
    digest = hashlib.sha256(repr(options).encode())
    for file in [*(root / name for name in sources), *headers]:
        digest.update(file.name.encode() + file.read_bytes())
    output = ROOT / "build/frame_walk" / digest.hexdigest()[:16] / f"frame_walk_probe{suffix}"
    with hold_lock(output.with_name("lock")):
        if not output.exists():
            # Compile with paths relative to the root and link separately: ccache then shares the object among clones.
            source, compiled = output.with_name("source.cpp"), output.with_name("unfinished.o")
            source.write_text("".join(f'#include "{name}"\n' for name in sources))
            compiler, unfinished = os.environ.get("CXX", "g++"), output.with_name("unfinished")
            run_compiler([compiler, *options, "-iquote", ".", "-c", str(source), "-o", str(compiled)], root)
            run_compiler([compiler, "-shared", "-pthread", str(compiled), "-o", str(unfinished)])
            unfinished.rename(output)
    return output.parent


@functools.cache
def interpreter_and_probe(version: str) -> tuple[Interpreter, Path]:
    interpreter = find_interpreter(version)
    if interpreter is None and version != RUNNING:
        pytest.skip(f"Python {version} with its headers is not installed")
    assert interpreter is not None, f"no headers (Python.h) for the running Python {version}"
    return interpreter, build_probe(interpreter)


def run_python(interpreter: Interpreter, *arguments: str) -> Any:
    """Run a program; return the last line that it prints, as JSON."""
    process = subprocess.run(
        [interpreter[0], "-B", *arguments], capture_output=True, text=True, timeout=600, cwd=SUPPORT
    )
    assert process.returncode == 0, f"exit status {process.returncode}\n{process.stdout}\n{process.stderr}"
    return json.loads(process.stdout.splitlines()[-1])


@pytest.mark.parametrize(("scenario", "mode"), CASES)
@pytest.mark.parametrize(
    "version",
    [
        version if version == RUNNING else pytest.param(version, marks=pytest.mark.slow("interpreters"))
        for version in VERSIONS
    ],
)
def test_stacks_equal_traceback(version: str, scenario: str, mode: str) -> None:
    interpreter, folder = interpreter_and_probe(version)
    seed = str(int.from_bytes(hashlib.sha256(f"{version} {scenario}".encode()).digest()[:2], "big"))

    result = run_python(interpreter, str(SUPPORT / "frame_walk_programs.py"), str(folder), scenario, mode, seed)

    assert result["differences"] == []
    assert result["compared"] > (scenario == "walk_at_exit")  # its second walk is at the interpreter's exit


def test_wrong_layout_is_detected_at_import(tmp_path: Path) -> None:
    """Read instructions at a wrong offset: the walker must report it at import and use the public API."""
    interpreter, _ = interpreter_and_probe(RUNNING)
    shutil.copytree(ROOT / "csrc", tmp_path / "csrc")
    (tmp_path / "tests/support").mkdir(parents=True)
    shutil.copy(SUPPORT / "frame_walk_probe.cpp", tmp_path / "tests/support")
    layout = tmp_path / "csrc/python/recording/cpython_layout.h"
    original = layout.read_text()
    changed = original.replace("frame->instruction - code->", "frame->instruction + 2 - code->").replace(
        "frame->f_lasti * 2", "frame->f_lasti * 2 + 2"
    )
    assert changed != original
    layout.write_text(changed)
    program = f"""
import json, sys, traceback
sys.path.insert(0, {str(build_probe(interpreter, tmp_path))!r})
import frame_walk_probe as probe
try:
    probe.start("as checked")
except RuntimeError as error:
    problem = str(error)
probe.start("public API")
def stacks():
    return probe.current_stack_with_gil(), probe.current_stack(), traceback.extract_stack()
with_gil, without_gil, expected = stacks()
walked = [(name, filename, line) for name, _, filename, line, *_ in probe.frames(with_gil)]
same = walked == [(frame.name, frame.filename, frame.lineno) for frame in expected]
print(json.dumps([problem, same, without_gil]))
"""
    problem, same, without_gil = run_python(interpreter, "-c", program)

    assert "the instruction of a frame" in problem and "only on threads that hold the GIL" in problem
    assert same
    assert without_gil == 0
