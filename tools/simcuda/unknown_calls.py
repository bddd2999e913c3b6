"""Generator of stubs for calls that are not simulated: each stub reports its name and returns an error.

    python unknown_calls.py --output STUBS.cpp OBJECT...

Stubs are written for functions that the CUDA libraries next to this Python's torch export, that torch's own libraries
import, or that the driver's header declares, except those that the OBJECTs define. Without a stub the call would reach
the real library, which without a device fails later with an unrelated error.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Library:
    name: re.Pattern[str]  # matches the names of its functions
    error: int  # its code for "not supported", or the closest
    file: str  # library whose exports get stubs; empty: only functions that torch imports


# Searched in this order: the driver's prefix is also a prefix of most other names.
LIBRARIES = (
    Library(re.compile(r"(__)?cuda[A-Z]"), 801, "libcudart.so.*"),
    Library(re.compile(r"cublasLt[A-Z]"), 15, "libcublasLt.so.*"),
    Library(re.compile(r"cublas[A-Z]"), 15, "libcublas.so.*"),
    Library(re.compile(r"cudnn[A-Z]"), 3000, "libcudnn.so.*"),
    Library(re.compile(r"cusparseLt[A-Z]"), 10, "libcusparseLt.so.*"),
    Library(re.compile(r"cusparse[A-Z]"), 10, "libcusparse.so.*"),
    Library(re.compile(r"cusolver[A-Z]"), 9, "libcusolver.so.*"),
    Library(re.compile(r"cufft[A-Z]"), 16, "libcufft.so.*"),
    Library(re.compile(r"curand[A-Z]"), 999, "libcurand.so.*"),
    Library(re.compile(r"nccl[A-Z]"), 3, "libnccl.so.*"),
    Library(re.compile(r"cuFile[A-Z]"), 5007, ""),
    Library(re.compile(r"cu[A-Z]"), 801, ""),
)

# Calls that the real libraries answer without a device: versions and error names.
ANSWERED_BY_THE_REAL_LIBRARY = re.compile(
    r"(?!cuda).*(Get\w*Version|GetProperty|GetErrorString|GetErrorName|GetStatusString|GetStatusName|GetLastErrorString)"
)


def symbols(kind: str, files: Iterable[Path]) -> set[str]:
    """Return the functions among the dynamic symbols of libraries, or the symbols of objects."""
    paths = [*map(str, files)]
    if not paths:  # this release of torch lacks the library, as cuRAND since 2.15
        return set()
    command = ["nm", *kind.split(), *paths]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    matches = re.findall(r"^[0-9a-f]* *([TtWiUV]) ([A-Za-z_]\w*)", output, re.MULTILINE)
    return {name for _, name in matches}


def libraries(pattern: str) -> Iterator[Path]:
    """Yield the libraries of the first folder on this Python's path that has any."""
    for folder in sys.path:
        if matches := sorted(Path(folder).glob(pattern)):
            yield from matches
            return


def driver_functions() -> set[str]:
    """Return the functions in the driver's header: the driver comes with the hardware, not with torch."""
    for header in libraries("nvidia/cu*/include/cuda.h"):
        text = header.read_text(encoding="utf-8", errors="replace")
        declared = set(re.findall(r"CUDAAPI\s+(cu[A-Z]\w*)\s*\(", text))
        renamed = set(re.findall(r"^\s*#\s*define\s+cu[A-Z]\w*\s+(cu[A-Z]\w*_v\d)\s*$", text, re.MULTILINE))
        return declared | renamed
    return set()


def without_version(name: str) -> str:
    return re.sub(r"_v\d$", "", name)


def unknown(defined: set[str]) -> dict[str, int]:
    names = driver_functions()
    for library in LIBRARIES:
        if library.file:
            names |= symbols("-D --defined-only", libraries(f"nvidia/*/lib/{library.file}"))
    names |= symbols("-D --undefined-only", libraries("torch/lib/lib*.so"))
    if "cublasCreate_v2" not in names:
        sys.exit("simcuda: no CUDA libraries next to this Python's torch: their calls cannot be listed")
    # The driver returns the highest version of cuFoo, so an unknown cuFoo_v2 must not hide a simulated cuFoo.
    driver = LIBRARIES[-1]
    simulated = {without_version(name) for name in defined if driver.name.match(name)}
    errors: dict[str, int] = {}
    for name in sorted(names - defined):
        library = next((library for library in LIBRARIES if library.name.match(name)), None)
        if library is None or ANSWERED_BY_THE_REAL_LIBRARY.fullmatch(name):
            continue
        if library is driver and without_version(name) in simulated:
            continue
        errors[name] = library.error
    return errors


def source(errors: dict[str, int]) -> str:
    # No CUDA headers here: their declarations would conflict with the stubs, which have no arguments.
    lines = [
        "// Written by unknown_calls.py.",
        "namespace simcuda {",
        "long unknown_call(const char* name, int error);",
        "}",
        '#define UNKNOWN(name, error) extern "C" __attribute__((visibility("default"))) long name() { \\',
        "  return simcuda::unknown_call(#name, error); }",
    ]
    lines += [f"UNKNOWN({name}, {error})" for name, error in errors.items()]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("objects", type=Path, nargs="+", metavar="OBJECT")
    arguments = parser.parse_args()
    errors = unknown(symbols("--defined-only --extern-only", arguments.objects))
    arguments.output.write_text(source(errors))


if __name__ == "__main__":
    main()
