"""That what does not include torch compiles for aarch64: the frame walk, the prefetches, the clocks, the reader."""

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


def cross_compiler() -> str:
    """Return the compiler for aarch64, installed first if this process may: a skipped test would check nothing."""
    name = "g++" if platform.machine() == "aarch64" else "aarch64-linux-gnu-g++"
    if shutil.which(name) is None and os.geteuid() == 0:
        # Waits for another one that installs something.
        apt = ["apt-get", "-o", "DPkg::Lock::Timeout=300"]
        subprocess.run([*apt, "update", "-qq"], check=False, capture_output=True)
        subprocess.run([*apt, "install", "-y", "-qq", "--no-install-recommends", PACKAGE], check=False)
    assert shutil.which(name), f"there is no compiler for aarch64: run `apt-get install {PACKAGE}`"
    return name


def without_torch() -> list[Path]:
    folders = {folder for folder in (*building.READER, *building.RECORDER) if not folder.startswith("torch")}
    return building.sources(ROOT / "csrc", *sorted(folders))


def headers() -> list[str]:
    """Return options for Python's headers, which are the same for aarch64, and pybind11's."""
    import pybind11

    return ["-isystem", pybind11.get_include(), "-isystem", sysconfig.get_path("include")]


def compiled(compiler: str, source: Path, output: Path, *options: str) -> str:
    """Compile a source; return the compiler's errors, or ""."""
    command = [compiler, "-std=c++20", "-O2", "-Wall", "-Wextra", "-Werror", *options, *headers()]
    done = subprocess.run([*command, "-c", source, "-o", output], capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else f"{source.name}: {done.stderr[:2000]}"


@pytest.mark.slow("architectures")
def test_all_that_does_not_need_torch_compiles_for_aarch64(tmp_path: Path) -> None:
    compiler, sources = cross_compiler(), without_torch()
    names = {source.name for source in sources}
    assert {"frame_walk.cpp", "spool_writer.cpp", "replay.cpp", "session.cpp"} <= names and len(sources) > 30
    with ThreadPoolExecutor(2) as pool:
        results = pool.map(lambda pair: compiled(compiler, pair[1], tmp_path / f"{pair[0]}.o"), enumerate(sources))
        assert [said for said in results if said] == []
    # For aarch64, and with its instructions: the counter, and a prefetch for a store.
    (spool,) = [tmp_path / f"{number}.o" for number, path in enumerate(sources) if path.name == "spool_writer.cpp"]
    assert spool.read_bytes()[18:20] == b"\xb7\x00", "the machine of the ELF header is not aarch64"
    assembly = tmp_path / "spool_writer.s"
    (source,) = [path for path in sources if path.name == "spool_writer.cpp"]
    assert compiled(compiler, source, assembly, "-S") == ""
    assert "prfm\tpst" in assembly.read_text().lower()
