"""Builder of C++ libraries that call torch."""

from __future__ import annotations

import os
import sysconfig
from pathlib import Path

import torch
from running import ROOT, run_compiler, torch_has_cuda
from shared_recordings import record_once


def build_library(source: Path, library: Path, *options: str) -> None:
    """Compile a source against torch's headers, in the source's folder so that ccache finds the object again."""
    torch_folder = Path(torch.__file__).parent
    headers = [torch_folder / "include", Path(sysconfig.get_paths()["include"])]
    libraries = ["-lc10", "-ltorch_cpu"]
    if torch_has_cuda():
        toolkit = os.environ.get("CUDA_HOME") or "/usr/local/cuda"
        headers += [*sorted(torch_folder.parent.glob("nvidia/*/include")), Path(toolkit, "include")]
        headers.append(ROOT / "csrc/torch/cuda_stand_ins")  # last: two headers missing from pip's packages
        libraries.append("-lc10_cuda")
    object_file = library.with_suffix(".o").resolve()
    command = ["g++", "-std=c++20", "-fPIC", "-O1", *options, *(f"-isystem{folder}" for folder in headers)]
    run_compiler([*command, "-c", source.name, "-o", str(object_file)], source.parent)
    search = [f"-L{torch_folder}/lib", f"-Wl,-rpath,{torch_folder}/lib", "-Wl,--as-needed"]
    run_compiler(["g++", "-shared", str(object_file), "-o", str(library.resolve()), *search, *libraries], source.parent)


def contract_library() -> Path:
    """Return the library of tests/support/allocator_contract.cpp, which calls torch's allocators from C++."""

    def build(folder: Path) -> None:
        options = ["-DWITH_CUDA"] if torch_has_cuda() else []
        build_library(ROOT / "tests/support/allocator_contract.cpp", folder / "contract.so", *options)

    return record_once("allocator_contract", build) / "contract.so"
