"""Writes C++ with a stub for every function of CUDA that a program may call and that is not simulated: it names itself.

    unknown_calls.py --output FILE OBJECT...

Without the stubs such a call would reach the real library of that name, which finds no device and fails with a message
about something else. The functions are those that torch's libraries import and those that CUDA's own libraries, beside
this Python's torch, export. Names that an OBJECT defines are left out.
"""

from __future__ import annotations

import argparse
import re
import subprocess
from importlib.util import find_spec
from pathlib import Path

# The value that each library has for "not supported", or the nearest to it.
NOT_SUPPORTED = {
    "cublas": 15,
    "cudnn": 3000,
    "cusparse": 10,
    "cusolver": 9,
    "cufft": 16,
    "curand": 999,
    "nccl": 5,
    "nvml": 3,
    "cuda": 801,
    "cu": 801,
}
FUNCTION = re.compile(r"^(cublas|cudnn|cusparse|cusolver|cufft|curand|nccl|nvml|cuda|cu)(?:[A-Z]|Lt[A-Z])\w*$")
# These say something of the library itself, and need no device: the real ones answer. cuFile is a library of its own.
REAL = re.compile(r"^(cuFile\w*|cusparseLt\w*|\w+(Version|Property|ErrorString|ErrorName|StatusString|StatusName))$")
EXPORTING = ("libcudart.so*", "libcublas.so*", "libcublasLt.so*")


def torch_folder() -> Path:
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        raise SystemExit("simcuda: this Python has no torch: name one that has with build --python")
    return Path(spec.origin).parent


def names(files: list[Path], *options: str) -> set[str]:
    """The symbols that nm lists of the files, without versions."""
    found = subprocess.run(["nm", *options, *map(str, files)], capture_output=True, text=True, check=True).stdout
    return {line.split()[-1].split("@")[0] for line in found.splitlines() if len(line.split()) >= 2}


def wanted() -> set[str]:
    torch = torch_folder()
    importing = [path for path in sorted((torch / "lib").glob("*.so*")) if path.name != "libtorch_nvshmem.so"]
    cuda = torch.parent / "nvidia"
    exporting = [path for pattern in EXPORTING for path in sorted(cuda.glob(f"*/lib/{pattern}"))]
    found = names(importing, "-D", "--undefined-only") | names(exporting, "-D", "--defined-only")
    return {name for name in found if FUNCTION.match(name) and not REAL.match(name)}


def stub(name: str) -> str:
    match = FUNCTION.match(name)
    assert match
    return f"SIMCUDA_UNKNOWN({name}, {NOT_SUPPORTED[match[1]]})\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("objects", nargs="+", type=Path)
    options = parser.parse_args()
    missing = wanted() - names(options.objects, "--defined-only")
    options.output.write_text(
        "// Written by unknown_calls.py.\n"
        '#include "simcuda.h"\n\n'
        '// extern "C" names have no types: a header\'s declaration does not reach the linker.\n'
        "#define SIMCUDA_UNKNOWN(name, error)                                          \\\n"
        '  extern "C" __attribute__((visibility("default"))) int unknown_##name() asm(#name); \\\n'
        "  int unknown_##name() {                                                     \\\n"
        "    simcuda::report_unknown_call(#name);                                     \\\n"
        "    return error;                                                            \\\n"
        "  }\n\n" + "".join(map(stub, sorted(missing)))
    )


if __name__ == "__main__":
    main()
