"""Installation in new virtual environments, which ends in a recording or in a sentence with the next command, and
output of a build with torch installed.

A .pth file adds this environment's torch: a folder of links to all packages that a new environment may have.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from running import ROOT

import pytorch_alloctrace as alloctrace

SUFFIX = sysconfig.get_config_var("EXT_SUFFIX")
# Packages that a new environment does not have, or has in another release.
EXCLUDED = re.compile(
    r"(setuptools|_distutils_hack|pkg_resources|wheel|pip|pybind11|ninja|distutils)|.*\.pth|__pycache__"
)

RECORD = """
import sys, torch, pytorch_alloctrace as alloctrace
with alloctrace.enable(sys.argv[1]) as session:
    kept = torch.ones(54321)
assert 4 * 54321 in list(session.load().live("end")["requested_bytes"])
assert not torch.cuda.is_initialized()
from pytorch_alloctrace.recording.loading import load_recorder
print(torch.__version__, load_recorder().__file__)
"""
REFUSED = """
import sys, pytorch_alloctrace as alloctrace
try:
    alloctrace.enable("never.alloctrace")
except alloctrace.RecorderUnavailableError as error:
    print(error)
else:
    raise AssertionError("recorded")
"""


def run(command: Sequence[str | Path], folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command as a user would, without the variables of this environment that concern Python or the build."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "ALLOCTRACE_"))}
    return subprocess.run(
        [str(part) for part in command],
        cwd=folder,
        env={**inherited, **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=3000,
        check=False,
    )


def output_of(process: subprocess.CompletedProcess[str]) -> str:
    return process.stdout + process.stderr


def copy_sources(folder: Path) -> Path:
    """Copy the files that a clone has before a build."""
    ignored = shutil.ignore_patterns("*.so", "__pycache__", "_build_info.py")
    for name in ("csrc", "pytorch_alloctrace"):
        shutil.copytree(ROOT / name, folder / name, ignore=ignored)
    for name in ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    return folder


def create_environment(folder: Path, *packages: Path, with_pip: bool = True) -> Path:
    """Create a virtual environment that also finds the packages in some folders; return its Python."""
    venv.create(folder, with_pip=with_pip, symlinks=True)
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "packages.pth").write_text("".join(f"{package}\n" for package in packages))
    return folder / "bin" / "python"


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with links to all packages of this environment except build tools."""
    import torch

    folder = tmp_path_factory.mktemp("packages")
    for entry in Path(torch.__file__).parents[1].iterdir():
        if not EXCLUDED.match(entry.name):
            (folder / entry.name).symlink_to(entry)
    return folder


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory, packages: Path) -> Path:
    """Return the Python of a stock environment with torch, after `pip install .`."""
    folder = tmp_path_factory.mktemp("installed")
    python = create_environment(folder / "environment", packages)
    process = run([python, "-m", "pip", "install", "."], copy_sources(folder / "sources"))
    assert process.returncode == 0, output_of(process)
    assert re.search(r"Successfully installed ninja-\S+ pytorch_alloctrace", process.stdout)
    return python


@pytest.mark.slow("builds")
def test_pip_install_records_after_one_build_by_two_ranks(installed: Path, tmp_path: Path) -> None:
    program, cache = tmp_path / "record.py", tmp_path / "cache"
    program.write_text(RECORD)

    def record(rank: int) -> subprocess.CompletedProcess[str]:
        return run([installed, program, tmp_path / f"{rank}.alloctrace"], tmp_path, ALLOCTRACE_CACHE=str(cache))

    # Of two concurrent ranks, one builds and the other waits.
    with ThreadPoolExecutor(2) as pool:
        ranks = [*pool.map(record, range(2))]
    assert [rank.returncode for rank in ranks] == [0, 0], ranks
    assert ranks[0].stdout == ranks[1].stdout and str(cache) in ranks[0].stdout, ranks
    messages = sorted(rank.stderr for rank in ranks)
    building = r"pytorch_alloctrace: building the recorder for torch \S+, once \(.*\) \.\.\. \d+ s\n"
    assert re.fullmatch(building, messages[0])
    assert re.fullmatch(r"pytorch_alloctrace: waiting for another process that builds .* \.\.\. \d+ s\n", messages[1])
    # The cache contains no objects and no unfinished files.
    assert sorted(path.suffix for path in cache.glob("*/*/*")) == ["", ".sha256", ".so"]

    third = record(2)
    assert third.returncode == 0 and third.stderr == "" and third.stdout == ranks[0].stdout
    command = [installed, "-m", "pytorch_alloctrace", "build"]
    build = run(command, tmp_path, ALLOCTRACE_CACHE=str(cache))
    assert build.returncode == 0 and build.stderr == "" and build.stdout.strip() == third.stdout.split()[1]


@pytest.mark.slow("builds")
def test_recording_fails_in_one_sentence_and_reading_works_without_torch(
    installed: Path, packages: Path, tmp_path: Path
) -> None:
    (tmp_path / "alone").mkdir()
    for name in ("numpy", "numpy.libs", "pandas", "dateutil", "six.py", "pytz", "rich", "markdown_it", "mdurl"):
        if (packages / name).exists():
            (tmp_path / "alone" / name).symlink_to((packages / name).resolve())
    (tmp_path / "alone" / "pygments").symlink_to((packages / "pygments").resolve())
    (package,) = installed.parents[1].glob("lib/python*/site-packages/pytorch_alloctrace")
    (tmp_path / "alone" / "pytorch_alloctrace").symlink_to(package)
    without_torch = create_environment(tmp_path / "without_torch", tmp_path / "alone", with_pip=False)
    recording = run([without_torch, "-c", REFUSED], tmp_path, ALLOCTRACE_CACHE=str(tmp_path / "cache"))
    assert (recording.returncode, recording.stderr, recording.stdout.count("\n")) == (0, "", 1), output_of(recording)
    assert "No module named 'torch'): run `pip install 'torch>=2.9'` (reading traces works" in recording.stdout

    import torch

    with alloctrace.enable(tmp_path / "small.alloctrace", devices=("cpu",)):
        tensors = [torch.ones(1000) for _ in range(10)]
    assert len(tensors) == 10
    reading = run([without_torch, "-m", "pytorch_alloctrace", "peak", tmp_path / "small.alloctrace"], tmp_path)
    assert reading.returncode == 0 and "test_install.py" in reading.stdout, output_of(reading)


@pytest.mark.slow("builds")
def test_pip_install_without_isolation_and_wheel_fails_in_one_sentence(packages: Path, tmp_path: Path) -> None:
    """Install as in a stock environment of Python 3.11, which has setuptools 65 and no wheel."""
    python = create_environment(tmp_path / "environment", packages)
    setuptools = run([python, "-m", "pip", "install", "--quiet", "setuptools==65.5.0"], tmp_path)
    assert setuptools.returncode == 0, output_of(setuptools)

    sources = copy_sources(tmp_path / "sources")
    process = run([python, "-m", "pip", "install", "--no-build-isolation", "."], sources)
    assert process.returncode != 0, output_of(process)
    # Only pip's own lines surround the sentence, not 60 lines of compiler commands and tracebacks.
    assert "Traceback" not in process.stderr and len(process.stderr.splitlines()) < 20, process.stderr
    assert "pytorch_alloctrace: this setuptools cannot make wheels alone: run `pip install wheel`" in process.stderr


@pytest.mark.slow("builds")
def test_wheel_built_without_isolation_contains_both_modules(tmp_path: Path) -> None:
    # Build in this checkout, whose objects are up to date, which saves minutes.
    options = ["--no-build-isolation", "--no-deps", "--wheel-dir", tmp_path / "wheels"]
    inherited = {name: value for name, value in os.environ.items() if name == "ALLOCTRACE_WERROR"}
    process = run([sys.executable, "-m", "pip", "wheel", *options, "."], ROOT, **inherited)
    assert process.returncode == 0, output_of(process)
    (wheel,) = (tmp_path / "wheels").glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "installed")
    package = tmp_path / "installed" / "pytorch_alloctrace"
    built = {"_build_info.py", f"_record{SUFFIX}", f"_replay{SUFFIX}", "py.typed"}
    assert built <= {path.name for path in package.iterdir()}
    assert (package / "recording" / "_follow" / "sitecustomize.py").is_file()

    command = [sys.executable, "-c", RECORD, tmp_path / "new.alloctrace"]
    recording = run(command, tmp_path, PYTHONPATH=str(tmp_path / "installed"))
    assert recording.returncode == 0, recording.stderr
    assert recording.stdout.split()[1].startswith(str(package))


def test_build_info_contains_torch_and_python() -> None:
    import torch

    from pytorch_alloctrace import _build_info

    stamp = _build_info.RECORDER_FOR
    assert (stamp["torch"], stamp["cuda"]) == (torch.__version__, torch.version.cuda)
    assert stamp["abi"] == sysconfig.get_config_var("SOABI") and stamp["python"] == platform.python_version()
