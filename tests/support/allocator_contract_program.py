"""A program that uses an allocator in all the ways that test_allocator_contract.py checks.

allocator_contract_program.py cpu|cuda|pluggable|pinned LIBRARY    # writes a trace for each subject, and expected.json
"""

from __future__ import annotations

import ctypes
import json
import re
import sys
from collections.abc import Callable
from typing import Any

import torch

import pytorch_alloctrace as alloctrace

NAME = sys.argv[1]
SIZES = (1, 511, 512, 513, 4096, 1 << 20, (1 << 20) + 1, 3_000_001)
HUGE = 1 << 59  # torch rejects 1 << 60 itself, before its allocator
THREADS, BLOCKS = 4, 300
expected: dict[str, Any] = {}


def make(size: int) -> torch.Tensor:
    device = "cpu" if NAME in ("cpu", "pinned") else "cuda"
    return torch.empty(size, dtype=torch.uint8, device=device, pin_memory=NAME == "pinned")


def block(tensor: torch.Tensor) -> list[int]:
    """Return [address, bytes]."""
    return [tensor.untyped_storage().data_ptr(), tensor.untyped_storage().nbytes()]


def error_of(call: Callable[[], object]) -> list[str]:
    """Return type and text of an error without amounts, which depend on other allocations."""
    try:
        call()
    except Exception as error:
        return [type(error).__name__, re.sub(r"[0-9.]+( bytes| [KMGT]iB)?", "N", str(error))]
    return []


def main() -> None:
    native = ctypes.CDLL(sys.argv[2])
    native.allocate_raw.restype = ctypes.c_void_p
    size_of = ctypes.c_size_t
    name = (NAME if NAME in ("cpu", "pinned") else "cuda").encode()
    if NAME == "pluggable":
        pair = (alloctrace.pluggable_library(), "alloctrace_malloc", "alloctrace_free")
        torch.cuda.memory.change_current_allocator(torch.cuda.memory.CUDAPluggableAllocator(*pair))
    elif NAME == "cuda":
        torch.cuda.init()
    else:
        make(1)

    expected["properties"] = [native.properties_of_a_block(name, size_of(1000))]
    expected["clone"] = [native.clone_has_the_bytes(name, size_of(1000))]
    expected["error"] = [error_of(lambda: make(HUGE))]
    before = make(1000)

    with alloctrace.enable("pairs.alloctrace"):
        tensors = [make(size) for size in SIZES]
        expected["pairs"] = [block(tensor) for tensor in tensors]
        while tensors:
            del tensors[0]

    with alloctrace.enable("zero.alloctrace"):
        tensor = make(0)
        assert tensor.numel() == 0
        del tensor

    with alloctrace.enable("error.alloctrace"):
        first = make(1000)
        expected["error"].append(error_of(lambda: make(HUGE)))
        second = make(2000)
        expected["around error"] = [block(first), block(second)]
        del first, second

    with alloctrace.enable("threads.alloctrace"):
        native.allocate_in_threads(name, THREADS, BLOCKS)

    with alloctrace.enable("across.alloctrace"):
        after, again = make(3000), make(4000)
        expected["across"] = [block(after), block(again)]
        expected["older"] = block(before)
        del before
    del after  # outside any recording
    with alloctrace.enable("again.alloctrace"):
        del again

    with alloctrace.enable("resize.alloctrace"):
        tensor = make(100)
        expected["resize"] = [block(tensor)]
        tensor.resize_(50_000)
        expected["resize"].append(block(tensor))
        tensor.untyped_storage().resize_(0)
        tensor.untyped_storage().resize_(7000)
        expected["resize"].append(block(tensor))
        del tensor

    with alloctrace.enable("properties.alloctrace"):
        expected["properties"].append(native.properties_of_a_block(name, size_of(1000)))

    if not expected["properties"][0] & 8 and expected["properties"][0] & 1:
        with alloctrace.enable("raw.alloctrace"):
            address = native.allocate_raw(name, size_of(1000))
            expected["raw"] = [[address, 1000]]
            native.free_raw(name, ctypes.c_void_p(address))

    with alloctrace.enable("clone.alloctrace"):
        expected["clone"].append(native.clone_has_the_bytes(name, size_of(1000)))

    with open("expected.json", "w") as file:
        json.dump(expected, file)


if __name__ == "__main__":
    main()
