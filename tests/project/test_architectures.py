"""Compilation for aarch64 of all sources that do not include torch: frame walk, prefetches, clocks, reader."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from running import ROOT

from pytorch_alloctrace.recording import building

PACKAGE = "g++-aarch64-linux-gnu"


def find_cross_compiler() -> str:
    """Return the name of the aarch64 compiler; install it first if it is missing and this process is root."""
    name = "g++" if platform.machine() == "aarch64" else "aarch64-linux-gnu-g++"
    if shutil.which(name) is None and os.geteuid() == 0:
        # Wait for another process that holds the lock of apt.
        apt = ["apt-get", "-o", "DPkg::Lock::Timeout=300"]
        subprocess.run([*apt, "update", "-qq"], check=False, capture_output=True)
        subprocess.run([*apt, "install", "-y", "-qq", "--no-install-recommends", PACKAGE], check=False)
    assert shutil.which(name), f"there is no compiler for aarch64: run `apt-get install {PACKAGE}`"
    return name


def compile_source(compiler: str, source: Path, output: Path, *options: str) -> str:
    """Compile a source; return the compiler's errors, or ""."""
    import pybind11

    # Python's headers are the same for aarch64.
    headers = ["-isystem", pybind11.get_include(), "-isystem", sysconfig.get_path("include")]
    command = [compiler, "-std=c++20", "-O2", "-Wall", "-Wextra", "-Werror", *options, *headers]
    process = subprocess.run([*command, "-c", source, "-o", output], capture_output=True, text=True, check=False)
    return "" if process.returncode == 0 else f"{source.name}: {process.stderr[:2000]}"


@pytest.mark.slow("architectures")
def test_sources_without_torch_compile_for_aarch64(tmp_path: Path) -> None:
    compiler = find_cross_compiler()
    folders = [folder for folder in (*building.READER, *building.RECORDER) if folder != "torch"]
    paths = [*building.sources(ROOT / "csrc", "python/reading", *folders), building.RECORD_MODULE]
    sources = [ROOT / "csrc" / path for path in paths]
    names = [source.name for source in sources]
    assert {"record_module.cpp", "frame_walk.cpp", "spool.cpp", "replay.cpp", "session.cpp"} <= {*names}
    assert len(sources) > 30
    with ThreadPoolExecutor(2) as pool:
        errors = pool.map(lambda pair: compile_source(compiler, pair[1], tmp_path / f"{pair[0]}.o"), enumerate(sources))
        assert [*filter(None, errors)] == []

    # The object is for aarch64, and its prefetches for stores are instructions.
    spool = names.index("spool.cpp")
    machine = (tmp_path / f"{spool}.o").read_bytes()[18:20]
    assert machine == b"\xb7\x00", "the ELF header is not one for aarch64"

    assembly = tmp_path / "spool.s"
    assert compile_source(compiler, sources[spool], assembly, "-S") == ""
    assert "prfm\tpst" in assembly.read_text().lower()
