"""Builds this project for another release of torch and runs the tests of CUDA there: tools/check_releases --test.

Everything lies in build/releases/tested/VERSION and is kept: `environment` with that torch (4 GB with what it needs),
and `checkout`, a copy of the working tree that is brought up to date each time, so that only what changed is compiled
again.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# Those that depend on how torch allocates and on what it calls.
TESTS = [
    "tests/recording/test_driver_memory.py",
    *(
        f"tests/recording/test_cuda_{name}.py"
        for name in ("sequence", "forwarding", "settings", "untracked", "faults", "stacks", "backward")
    ),
    "tests/what_if/test_what_if_random.py",
]
REQUIREMENTS = (
    *("setuptools>=61", "wheel", "pybind11>=3.0", "ninja>=1.11.1.4"),
    *("numpy>=1.24", "pandas>=2.0", "rich>=13.0", "pytest>=8.0", "hypothesis>=6.100"),
)


def environment_with(version: str, folder: Path) -> Path:
    """Return the Python of an environment with that torch, which is created if it is missing."""
    python = folder / "bin" / "python"
    finished = folder / "finished.stamp"
    if not finished.exists():
        shutil.rmtree(folder, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        pip = [python, "-m", "pip", "install", "--quiet"]
        print(f"installing torch {version} (4 GB with what it needs)", file=sys.stderr)
        subprocess.run([*pip, f"torch=={version}"], check=True)
        subprocess.run([*pip, *REQUIREMENTS], check=True)
        # Headers that torch's own packages leave out, of the same CUDA: tools/simcuda needs them.
        question = [python, "-c", "import torch; print(torch.version.cuda)"]
        cuda = subprocess.run(question, capture_output=True, text=True, check=True).stdout.strip()
        package = "nvidia-cuda-nvcc-cu12" if cuda.startswith("12.") else "nvidia-cuda-crt"
        subprocess.run([*pip, f"{package}=={cuda}.*"], check=True)
        finished.touch()
    return python


def bring_up_to_date(checkout: Path) -> None:
    """Copy tracked files, and new ones that are not ignored, with their times, by which compilers decide."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    wanted = {Path(os.fsdecode(name)) for name in listed.stdout.split(b"\0") if name}
    wanted = {path for path in wanted if (ROOT / path).is_file()}
    for path in wanted:
        target = checkout / path
        if not target.exists() or target.stat().st_mtime != (ROOT / path).stat().st_mtime:
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / path, target)
    for folder in ("csrc", "tests", "tools", "benchmarks"):
        for path in (checkout / folder).rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts and path.relative_to(checkout) not in wanted:
                path.unlink()


def run_tests(version: str, arguments: list[str]) -> bool:
    """Return whether the tests pass. `arguments` are pytest's; without any, all tests of CUDA run."""
    folder = ROOT / "build" / "releases" / "tested" / version
    checkout = folder / "checkout"
    checkout.mkdir(parents=True, exist_ok=True)
    python = environment_with(version, folder / "environment")
    bring_up_to_date(checkout)
    link = checkout / ".venv"  # where tools/simcuda/build looks for a Python
    if not link.is_symlink():
        link.symlink_to(folder / "environment")
    print(f"building for torch {version}", file=sys.stderr)
    for command in ([python, "setup.py", "build_ext", "--inplace"], ["tools/simcuda/run", "true"]):
        done = subprocess.run(command, cwd=checkout, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            print("\n".join((done.stdout + done.stderr).splitlines()[-40:]), file=sys.stderr)
            return False
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    tests = [python, "-m", "pytest", *(arguments or TESTS)]
    return subprocess.run(tests, cwd=checkout, env=environment, check=False).returncode == 0
