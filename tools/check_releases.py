"""Check of csrc/torch against the headers of each supported release of torch: run through tools/check_releases.

Only the headers are needed; the wheels for macOS are small and contain the CUDA headers too. Nothing is linked or run:
the tests cover the installed release, or the release that --test names.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ROOT / "csrc" / "torch"
sys.path.insert(0, str(ROOT / "tests/support"))
from cuda_virtual_methods import find_forwarding_errors, parse_release, select_release  # noqa: E402
from release_tests import run_tests  # noqa: E402

RELEASES = ("2.9.1", "2.10.0", "2.11.0", "2.12.0", "2.13.0", "2.14.0", "2.15.0")
PLATFORMS = ("macosx_14_0_arm64", "macosx_11_0_arm64")
# Generated when torch is built with CUDA, so the macOS wheels lack this header. Text as in the wheels for Linux.
CUDA_MACROS = "#pragma once\n#define C10_CUDA_BUILD_SHARED_LIBS\n"

HEADERS = (
    "c10/core/Allocator.h",
    "c10/core/CachingDeviceAllocator.h",
    "c10/cuda/CUDACachingAllocator.h",
    "ATen/core/CachingHostAllocator.h",
)
# Source file: (our class, torch's base class).
FORWARDING = {
    "allocator.cpp": ("ForwardingAllocator", "CUDAAllocator"),
    "pinned_allocator.cpp": ("PinnedAllocator", "HostAllocator"),
}
# torch implements this method by its overload, which our class forwards.
LEFT_TO_TORCH = {"c10::cuda::CUDACachingAllocator::CUDAAllocator::recordStream"}


@dataclass
class Findings:
    """Results of checking a release, or one source against a release."""

    compiled: int = 0
    virtual: int = 0
    missing: list[str] = field(default_factory=list)  # virtual methods that are inherited instead of forwarded
    errors: list[str] = field(default_factory=list)  # all other defects, a line each

    def __add__(self, other: Findings) -> Findings:
        return Findings(
            self.compiled + other.compiled,
            self.virtual + other.virtual,
            self.missing + other.missing,
            self.errors + other.errors,
        )

    @property
    def is_good(self) -> bool:
        return not self.missing and not self.errors


def download_wheel(version: str, wheels: Path) -> Path:
    pattern = f"torch-{version}-*.whl"
    if not list(wheels.glob(pattern)):
        wheels.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
        command += ["--python-version", "3.12", "--implementation", "cp", "--abi", "cp312", "--dest", str(wheels)]
        for platform in PLATFORMS:
            command += ["--platform", platform]
        print(f"fetching torch {version}", file=sys.stderr)
        subprocess.run([*command, f"torch=={version}"], check=True)
    return next(wheels.glob(pattern))


def unpack_headers(version: str, wheels: Path, folder: Path) -> Path:
    """Unpack the headers of a release; return the include folder."""
    target = folder / version
    if not target.is_dir():
        unfinished = folder / f"{version}.unfinished"
        shutil.rmtree(unfinished, ignore_errors=True)
        with zipfile.ZipFile(download_wheel(version, wheels)) as wheel:
            wheel.extractall(unfinished, [name for name in wheel.namelist() if name.startswith("torch/include/")])
        unfinished.rename(target)
    include = target / "torch" / "include"
    if not (include / HEADERS[2]).is_file():
        raise SystemExit(f"the wheel of torch {version} has no headers for CUDA: {include}")
    return include


def cuda_includes() -> list[Path]:
    """Return the include folders of the installed torch's CUDA packages, or of a toolkit."""
    folders = [include for entry in sys.path if entry for include in sorted(Path(entry).glob("nvidia/*/include"))]
    toolkits = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"]
    folders += [Path(toolkit) / "include" for toolkit in toolkits if toolkit]
    if not any((folder / "cuda_runtime_api.h").is_file() for folder in folders):
        raise SystemExit("no headers of CUDA: install a torch with CUDA, or set CUDA_HOME")
    return [*folders, SOURCES / "cuda_stand_ins"]


def compiler_output(source: Path, includes: list[Path], more: list[str]) -> str:
    """Compile a source; return the compiler's errors, or ""."""
    command = [os.environ.get("CXX", "g++"), "-std=c++20", "-fsyntax-only", "-Wall", "-Wextra", "-Werror", *more]
    for folder in includes:
        command += ["-isystem", str(folder)]
    result = subprocess.run([*command, str(source)], capture_output=True, text=True, check=False)
    if result.returncode == 0:
        return ""
    errors = [line for line in result.stderr.splitlines() if "error" in line]
    return "\n".join(errors[:5] or result.stderr.splitlines()[:5] or [f"exit status {result.returncode}"])


def virtual_table(dump: str, name: str) -> list[str]:
    """Return the functions in a class's virtual table, without destructors, as the compiler lists them."""
    table = re.search(rf"^Vtable for \S*::{name}\n(.*?)\n\n", dump, flags=re.MULTILINE | re.DOTALL)
    if not table:
        raise SystemExit(f"the compiler printed no virtual table of {name}: this check needs GCC")
    functions = re.findall(r"^\d+ +\(int \(\*\)\(\.\.\.\)\)([^(\s].*)$", table[1], flags=re.MULTILINE)
    return [function for function in functions if function != "0" and "::~" not in function]


def check_source(source: Path, version: str, include: Path, includes: list[Path]) -> Findings:
    ours, base = FORWARDING.get(source.name, ("", ""))
    dump = include.parent / f"{source.stem}.class"
    errors = compiler_output(source, includes, [f"-fdump-lang-class={dump}"] if ours else [])
    if errors:
        return Findings(errors=[f"{source.name} does not compile:\n{errors}"])
    if not ours:
        return Findings(compiled=1)
    functions = virtual_table(dump.read_text(), ours)
    dump.unlink()
    missing = [function for function in functions if "alloctrace::" not in function and function not in LEFT_TO_TORCH]
    # The virtual table lists overridden methods; the source text shows whether each is forwarded with its parameters.
    release_header = select_release((SOURCES / "cuda/torch_release.h").read_text(), parse_release(version))
    headers = [(include / name).read_text() for name in HEADERS]
    try:
        forwarding_errors = find_forwarding_errors(headers, base, release_header + source.read_text(), ours)
    except AssertionError as error:
        forwarding_errors = [f"{source.name}: {error}"]
    return Findings(1, len(functions), missing, forwarding_errors)


def source_files() -> list[Path]:
    return [*SOURCES.glob("*.cpp"), *SOURCES.glob("cuda/*.cpp")]


def check_release(version: str, wheels: Path, folder: Path, pool: ThreadPoolExecutor) -> Findings:
    include = unpack_headers(version, wheels, folder)
    generated = folder / "made_for_cuda"
    macros = generated / "c10" / "cuda" / "impl" / "cuda_cmake_macros.h"
    macros.parent.mkdir(parents=True, exist_ok=True)
    macros.write_text(CUDA_MACROS)
    torch_api = include / "torch" / "csrc" / "api" / "include"
    includes = [include, torch_api, *cuda_includes(), generated, Path(sysconfig.get_path("include"))]
    sources = sorted(source_files())
    results = pool.map(lambda source: check_source(source, version, include, includes), sources)
    return sum(results, Findings())


def main() -> int:
    parser = argparse.ArgumentParser(prog="tools/check_releases", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("versions", nargs="*", metavar="VERSION", help=f"releases; without any: {' '.join(RELEASES)}")
    parser.add_argument("--wheels", type=Path, metavar="FOLDER", help="folder of wheels, for downloads too")
    parser.add_argument("--test", metavar="VERSION", help="instead: build for VERSION and run the CUDA tests with it")
    options, pytest_arguments = parser.parse_known_args()
    if options.test:
        return int(not run_tests(options.test, [*options.versions, *pytest_arguments]))
    if pytest_arguments:
        parser.error(f"unknown: {' '.join(pytest_arguments)}")
    folder = ROOT / "build" / "releases"
    wheels = (options.wheels or folder / "wheels").resolve()
    folder.mkdir(parents=True, exist_ok=True)
    total = len(source_files())
    row = "{:<9} {:>9} {:>16} {:>10} {:>8}"
    print(row.format("release", "compiles", "virtual methods", "forwarded", "missing"), flush=True)
    failed = False
    with ThreadPoolExecutor(int(os.environ.get("MAX_JOBS", "0")) or os.cpu_count()) as pool:
        for version in options.versions or RELEASES:
            findings = check_release(version, wheels, folder, pool)
            forwarded = findings.virtual - len(findings.missing)
            compiled = f"{findings.compiled}/{total}"
            print(row.format(version, compiled, findings.virtual, forwarded, len(findings.missing)), flush=True)
            for line in [*(f"not forwarded: {name}" for name in findings.missing), *findings.errors]:
                print(f"  {line}", flush=True)
            failed = failed or not findings.is_good
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
