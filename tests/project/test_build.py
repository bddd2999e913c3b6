"""Building and installing: what is stamped, what is refused, and the reading half that needs no torch."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest

import pytorch_alloctrace as alloctrace

ROOT = Path(__file__).resolve().parents[2]
SUFFIX = sysconfig.get_config_var("EXT_SUFFIX")


def run(command: Sequence[str | Path], folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs a command as a user would, without the variables of this environment that concern Python or the build."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "ALLOCTRACE_"))}
    return subprocess.run(
        [str(part) for part in command],
        cwd=folder,
        env={**inherited, **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=1200,
        check=False,
    )


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """The sources, as in a clone in which nothing was built."""
    folder = tmp_path / "checkout"
    built = shutil.ignore_patterns("*.so", "__pycache__", "_build_info.py")
    for name in ("csrc", "pytorch_alloctrace"):
        shutil.copytree(ROOT / name, folder / name, ignore=built)
    for name in ("pyproject.toml", "setup.py", "MANIFEST.in"):
        shutil.copy(ROOT / name, folder)
    return folder


@pytest.fixture
def environment_without_torch(tmp_path: Path) -> Path:
    """The Python of a new virtual environment."""
    folder = tmp_path / "environment"
    venv.create(folder, with_pip=True)
    return folder / "bin" / "python"


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    import torch

    with alloctrace.enable(tmp_path / "small.alloctrace", devices=("cpu",)) as session:
        kept = [torch.ones(1000) for _ in range(10)]
    assert len(kept) == 10
    return session.path


def test_the_build_is_stamped_with_what_it_was_made_for() -> None:
    import torch

    from pytorch_alloctrace import _build_info

    assert _build_info.RECORDER and _build_info.NO_RECORDER_REASON == ""
    assert torch.__version__ == _build_info.TORCH_VERSION
    assert torch.version.cuda == _build_info.CUDA_VERSION
    assert sysconfig.get_config_var("SOABI") == _build_info.PYTHON_ABI


@pytest.mark.parametrize(
    "stamp, value, message",
    [
        ("TORCH_VERSION", "2.10.0+cu130", "built for torch 2.10.0+cu130"),
        ("CUDA_VERSION", "12.6", "(CUDA 12.6)"),
        ("PYTHON_ABI", "cpython-39-x86_64-linux-gnu", "built for Python cpython-39-x86_64-linux-gnu"),
        ("RECORDER", False, "only reads traces"),
    ],
)
def test_a_build_for_another_torch_or_python_is_refused(
    stamp: str, value: object, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"pytorch_alloctrace._build_info.{stamp}", value)
    with pytest.raises(alloctrace.RecorderUnavailableError) as refusal:
        alloctrace.enable(tmp_path / "never.alloctrace")
    assert message in str(refusal.value)
    assert "pip install --no-build-isolation" in str(refusal.value)
    assert list(tmp_path.iterdir()) == [] and not alloctrace.is_enabled()


@pytest.mark.slow("builds")
def test_a_build_without_isolation_makes_both_modules(tmp_path: Path, trace: Path) -> None:
    # In this checkout, whose objects are up to date: that saves minutes.
    made = run(
        [
            sys.executable,
            "-m",
            "pip",
            "wheel",
            "--no-build-isolation",
            "--no-deps",
            "--wheel-dir",
            tmp_path / "wheels",
            ".",
        ],
        ROOT,
        **{name: value for name, value in os.environ.items() if name == "ALLOCTRACE_WERROR"},
    )
    assert made.returncode == 0, made.stdout + made.stderr
    (wheel,) = (tmp_path / "wheels").glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "installed")
    package = tmp_path / "installed" / "pytorch_alloctrace"
    built = {"_build_info.py", f"_record{SUFFIX}", f"_replay{SUFFIX}", "py.typed"}
    assert built <= {path.name for path in package.iterdir()}
    assert (package / "recording" / "_follow" / "sitecustomize.py").is_file()

    program = "import sys, torch, pytorch_alloctrace as a; "
    program += "a.enable(sys.argv[1]); x = torch.ones(54321); a.disable(); print(a.__file__)"
    ran = run(
        [sys.executable, "-c", program, tmp_path / "new.alloctrace"], tmp_path, PYTHONPATH=str(tmp_path / "installed")
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.startswith(str(package))
    assert 4 * 54321 in list(alloctrace.load(tmp_path / "new.alloctrace").live("end")["nbytes"])


@pytest.mark.slow("builds")
def test_an_isolated_build_that_hides_torch_is_refused(checkout: Path, environment_without_torch: Path) -> None:
    python = environment_without_torch
    folder = run([python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], checkout).stdout.strip()
    # The build must not import torch, so any module of that name will do. Behind a .pth file, as in an environment that
    # inherits from another one.
    (checkout.parent / "elsewhere" / "torch").mkdir(parents=True)
    (checkout.parent / "elsewhere" / "torch" / "__init__.py").write_text("raise SystemError('imported by the build')")
    Path(folder, "elsewhere.pth").write_text(f"{checkout.parent / 'elsewhere'}\n")

    refused = run([python, "-m", "pip", "wheel", "--no-deps", "--wheel-dir", "wheels", "."], checkout)
    assert refused.returncode != 0
    said = refused.stdout + refused.stderr
    assert "isolated build cannot see the torch" in said and "`pip install --no-build-isolation .`" in said
    assert "Traceback" not in said and "imported by the build" not in said
    assert not list(checkout.glob("wheels/*.whl"))


@pytest.mark.slow("builds")
def test_the_reading_half_builds_installs_and_reads_without_torch(
    checkout: Path, environment_without_torch: Path, trace: Path
) -> None:
    python = environment_without_torch
    installed = run([python, "-m", "pip", "install", "--verbose", "."], checkout)
    assert installed.returncode == 0, installed.stdout + installed.stderr
    assert "building the reading half only: torch was not installed" in installed.stdout + installed.stderr

    program = """
import sys, pytorch_alloctrace as alloctrace
from pytorch_alloctrace import _build_info
assert "torch" not in sys.modules and not _build_info.RECORDER and _build_info.TORCH_VERSION == ""
trace = alloctrace.load(sys.argv[1])
print(trace.integrity, list(trace.live("end")["nbytes"]).count(4000))
try:
    alloctrace.enable("never.alloctrace")
except alloctrace.RecorderUnavailableError as error:
    print(error)
"""
    ran = run([python, "-c", program, trace], checkout.parent)
    assert ran.returncode == 0, ran.stderr
    integrity, refusal = ran.stdout.splitlines()
    assert integrity == f"{alloctrace.load(trace).integrity} 10"
    assert "only reads traces (torch was not installed)" in refusal and "pip install --no-build-isolation" in refusal
    assert not (checkout.parent / "never.alloctrace").exists()


def test_the_reading_half_has_no_linux_calls(checkout: Path) -> None:
    """It has to compile on macOS too, which cannot be tested here: none of its files may use what macOS lacks."""
    program = "import runpy, sys; sys.argv = ['setup.py', 'egg_info']; "
    program += "print(*runpy.run_path('setup.py')['replay_extension']().sources, sep='\\n')"
    listed = run([sys.executable, "-c", program], checkout)
    files = [line for line in listed.stdout.splitlines() if line.endswith(".cpp")]
    assert "csrc/core/reading/trace_reader.cpp" in files and "csrc/core/recording/spool_writer.cpp" not in files, (
        listed.stderr
    )
    read: set[Path] = set()
    for file in files:
        read_with_headers(checkout / file, read)
    found = {
        path.name: sorted(set(LINUX_ONLY.findall(path.read_text(encoding="utf-8"))))
        for path in read
        if LINUX_ONLY.search(path.read_text(encoding="utf-8"))
    }
    assert found == {}
    # The check can fail: the recorder's own files do use some.
    assert LINUX_ONLY.search((checkout / "csrc/core/recording/spool_writer.cpp").read_text(encoding="utf-8"))


LINUX_ONLY = re.compile(
    r"<linux/[^>]*>|<asm/[^>]*>|<malloc\.h>|<sys/(?:eventfd|prctl|syscall|sysinfo|sendfile)\.h>"
    r"|\b(?:posix_fallocate|fallocate|mremap|memfd_create|gettid|fdatasync|MAP_POPULATE|fstat64|open64)\b|/proc/"
)


def read_with_headers(file: Path, read: set[Path]) -> None:
    """Adds a file and the headers of this project that it includes, directly or indirectly."""
    if file in read:
        return
    read.add(file)
    for name in re.findall(r'^#include "([^"]+)"', file.read_text(encoding="utf-8"), re.MULTILINE):
        header = (file.parent / name).resolve()
        if header.is_file():
            read_with_headers(header, read)
