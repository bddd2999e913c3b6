"""Memory of common GPUs, and the parser of a GPU's memory on the command line.

CUDA programs get less than a GPU's nominal memory, and less than nvidia-smi shows as its total: the driver keeps a
part. What counts is `total_memory` of torch's device properties (the "total capacity" in torch's out-of-memory error).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from .sizes import parse_size

_MIB = 1 << 20


@dataclass(frozen=True)
class GpuModel:
    """GPU that many programs run on."""

    name: str
    """Name without "NVIDIA", "GeForce" and "Tesla"."""
    nominal_gb: int
    """Gigabytes by which the GPU is sold."""
    total_mib: int
    """`total_memory` of torch's device properties in MiB, rounded down: the smallest figure that was found."""
    source: str
    """Origin of `total_mib`."""


_LOG = "device line of an Ultralytics log, "
_ERROR = "torch's error, \"total capacity of "
GPU_MODELS = (
    GpuModel("RTX 3070", 8, 7842, f"{_LOG}torch 2.10"),
    GpuModel("RTX 3060", 12, 11_910, f"{_LOG}torch 2.10 (version of 12 GB)"),
    GpuModel("T4", 16, 14_913, f"{_LOG}torch 2.14"),
    GpuModel("V100 16GB", 16, 16_130, f"{_LOG}torch 1.7"),
    GpuModel("L4", 24, 22_558, f'{_ERROR}22.03 GiB"; the log of an L4 with torch 2.14 has the same'),
    GpuModel("A10G", 24, 22_589, f'{_ERROR}22.06 GiB"; the properties of an AWS g5 instance are the same'),
    GpuModel("RTX 3090", 24, 24_139, f"{_LOG}torch 2.5"),
    GpuModel("RTX 4090", 24, 24_177, f"{_LOG}torch 2.5"),
    GpuModel("RTX 5090", 32, 32_092, f'{_ERROR}31.34 GiB"'),
    GpuModel("V100 32GB", 32, 32_494, f"{_LOG}torch 1.12"),
    GpuModel("A100 40GB", 40, 40_441, f"{_LOG}torch 2.11"),
    GpuModel("L40S", 48, 45_457, "device line of a llama.cpp log"),
    GpuModel("A6000", 48, 48_677, f"{_LOG}torch 2.1, without error correction"),
    GpuModel("A100 80GB", 80, 81_039, f'{_ERROR}79.14 GiB" (Control-GIC, issue 6)'),
    GpuModel("H100", 80, 81_079, "measured with torch 2.11: benchmarks/results/gpu-h100.json"),
    GpuModel("H100 NVL", 94, 95_324, f'{_ERROR}93.09 GiB"'),
    GpuModel("H200", 141, 143_155, f'{_ERROR}139.80 GiB"'),
    GpuModel("B200", 180, 182_630, "properties of CUDA, 178.35 GiB (pytorch/ao, pull request 4002)"),
)
"""Common GPUs, the smallest memory first. None is estimated; all but the H100 are as others reported them.

Drivers and virtual machines change the memory by about a percent: a T4 had 15,102 MiB with older drivers. On Windows it
is more. Error correction takes about 6 % where it is optional (A6000).
"""
_MAX_GROUP_RATIO = 1.02
"""Maximum ratio between the memories of GPUs that are listed together."""


@dataclass(frozen=True)
class GpuMemory:
    """Memory of a GPU, with the names of the GPUs that have it."""

    bytes: int
    names: tuple[str, ...] = ()
    """Names as in `GPU_MODELS`; empty if the size stands for itself."""


def _group(models: Iterable[GpuModel]) -> tuple[GpuMemory, ...]:
    groups: list[list[GpuModel]] = []
    for model in models:
        if groups and model.total_mib <= _MAX_GROUP_RATIO * groups[-1][0].total_mib:
            groups[-1].append(model)
        else:
            groups.append([model])
    return tuple(GpuMemory(group[0].total_mib * _MIB, tuple(model.name for model in group)) for group in groups)


GPUS = _group(GPU_MODELS)
"""Common GPUs, those of about the same memory together, with the smallest memory of each group; ascending."""


def parse_gpu_memory(text: str) -> GpuMemory:
    """Return the memory of a GPU by its name ("A10G", "NVIDIA A100-SXM4-80GB"), its nominal size or an exact size.

    A nominal size ("24GB", "24G") stands for the smallest GPU that is sold with it. All else is exact: binary units
    ("24GiB", "24564MiB"), a number of bytes, and gigabytes with which no GPU is sold.

    Raises:
        ValueError: It is neither; the message is for users.
    """
    name = _normalize_name(text)
    models = [model for model in GPU_MODELS if name in _list_names(model)]
    if len(models) > 1:
        choices = " or ".join(f"{model.name!r}" for model in models)
        raise ValueError(f"{text!r} is sold with several sizes: write {choices}")
    if models:
        return GpuMemory(models[0].total_mib * _MIB, (models[0].name,))
    if re.search(r"[a-z]", name) and not re.match(r"\s*[\d.]", text):
        gpu_names = ", ".join(model.name for model in GPU_MODELS)
        raise ValueError(f"{text!r} is not a known GPU: write one of {gpu_names}, or a size such as 24GB")
    size = parse_size(text)
    if not size:
        raise ValueError(f"{text!r} is no memory: write the name of a GPU, or a size such as 24GB")
    nominal = re.fullmatch(r"\s*(\d+)\s*GB?\s*", text, re.IGNORECASE)
    sold = [model for model in GPU_MODELS if nominal is not None and model.nominal_gb == int(nominal[1])]
    if sold:
        return next(memory for memory in GPUS if sold[0].name in memory.names)
    return GpuMemory(size)


def _list_names(model: GpuModel) -> tuple[str, ...]:
    """Return the names of a GPU as `_normalize_name` writes them: with and without its size."""
    name = _normalize_name(model.name)
    without_size = name.removesuffix(f"{model.nominal_gb}gb")
    return without_size, f"{without_size}{model.nominal_gb}gb"


def _normalize_name(text: str) -> str:
    """Return a name without case, punctuation, maker and socket: "a10080gb" for "NVIDIA A100-SXM4-80GB"."""
    words = re.findall(r"[a-z0-9]+", text.lower())
    return "".join(
        word for word in words if not re.fullmatch(r"nvidia|geforce|tesla|quadro|sxm\d?|pcie|pg\d+|hbm\d?e?", word)
    ).replace("rtxa6000", "a6000")
