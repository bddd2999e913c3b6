"""CUDA tests with another release of torch: tools/check_releases --test.

build/releases/tested/VERSION caches `environment`, which contains that torch (4 GB with its dependencies), and
`checkout`, a copy of the working tree that is updated each time, so that only changed files are compiled again.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# Tests that depend on torch's allocations and calls.
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
    """Return the Python of an environment with that torch; create the environment if it is missing."""
    python = folder / "bin" / "python"
    finished = folder / "finished.stamp"
    if not finished.exists():
        shutil.rmtree(folder, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        pip = [python, "-m", "pip", "install", "--quiet"]
        print(f"installing torch {version} (4 GB with its dependencies)", file=sys.stderr)
        subprocess.run([*pip, f"torch=={version}"], check=True)
        subprocess.run([*pip, *REQUIREMENTS], check=True)
        # tools/simcuda needs headers of the same CUDA that torch's own packages omit.
        query = [python, "-c", "import torch; print(torch.version.cuda)"]
        cuda = subprocess.run(query, capture_output=True, text=True, check=True).stdout.strip()
        package = "nvidia-cuda-nvcc-cu12" if cuda.startswith("12.") else "nvidia-cuda-crt"
        subprocess.run([*pip, f"{package}=={cuda}.*"], check=True)
        finished.touch()
    return python


def update_checkout(checkout: Path) -> None:
    """Copy all files that git does not ignore, with their times: the build compares times."""
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    sources = {Path(os.fsdecode(name)) for name in listing.stdout.split(b"\0") if name}
    sources = {path for path in sources if (ROOT / path).is_file()}
    for path in sources:
        target = checkout / path
        if not target.exists() or target.stat().st_mtime != (ROOT / path).stat().st_mtime:
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / path, target)
    for folder in ("csrc", "tests", "tools", "benchmarks"):
        for path in (checkout / folder).rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts and path.relative_to(checkout) not in sources:
                path.unlink()


def run_tests(version: str, arguments: list[str]) -> bool:
    """Run the tests; return whether they pass. `arguments` are pytest's; without any, all CUDA tests run."""
    folder = ROOT / "build" / "releases" / "tested" / version
    checkout = folder / "checkout"
    checkout.mkdir(parents=True, exist_ok=True)
    python = environment_with(version, folder / "environment")
    update_checkout(checkout)
    link = checkout / ".venv"  # tools/simcuda/build uses its Python
    if not link.is_symlink():
        link.symlink_to(folder / "environment")
    print(f"building for torch {version}", file=sys.stderr)
    for command in ([python, "setup.py", "build_ext", "--inplace"], ["tools/simcuda/run", "true"]):
        result = subprocess.run(command, cwd=checkout, capture_output=True, text=True, check=False)
        if result.returncode != 0:
            print("\n".join((result.stdout + result.stderr).splitlines()[-40:]), file=sys.stderr)
            return False
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    tests = [python, "-m", "pytest", *(arguments or TESTS)]
    return subprocess.run(tests, cwd=checkout, env=environment, check=False).returncode == 0
