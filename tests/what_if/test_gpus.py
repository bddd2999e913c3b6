"""Memory of common GPUs, by name and by size."""

from __future__ import annotations

import pytest
from running import ROOT

from pytorch_alloctrace.gpus import GPU_MODELS, GPUS, parse_gpu_memory

MIB, GIB = 2**20, 2**30


@pytest.mark.parametrize(
    ("text", "names", "mebibytes"),
    [
        ("T4", ["T4"], 14_913),
        ("rtx4090", ["RTX 4090"], 24_177),
        ("NVIDIA A100-SXM4-80GB", ["A100 80GB"], 81_039),
        ("NVIDIA H100 80GB HBM3", ["H100"], 81_079),
        ("24GB", ["L4", "A10G"], 22_558),
        ("24 GiB", [], 24_576),
        ("12GiB", [], 12_288),
        ("14920MiB", [], 14_920),
        ("24G", ["L4", "A10G"], 22_558),
        ("24 gb", ["L4", "A10G"], 22_558),
        ("80GB", ["A100 80GB", "H100"], 81_039),
        ("8GB", ["RTX 3070"], 7842),
        ("7.5GiB", [], 7680),
        ("23.5GiB", [], 24_064),
        ("20GiB", [], 20_480),
        ("2GiB", [], 2048),
        ("25769803776B", [], 24_576),
    ],
)
def test_gpu_memory_is_parsed_from_name_or_size(text: str, names: list[str], mebibytes: int) -> None:
    memory = parse_gpu_memory(text)

    assert [*memory.names] == names and memory.bytes == mebibytes * MIB


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("24", "'24' has no unit: write 24GiB"),
        ("A100", "write 'A100 40GB' or 'A100 80GB'"),
        ("RTX 9999", "is not a known GPU: write one of RTX 3070, .*, or a size such as 24GB"),
        ("24XB", "is not a size: write one such as"),
        ("", "is not a size"),
    ],
)
def test_invalid_gpu_memory_is_an_error_that_says_what_to_write(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_gpu_memory(text)


def test_size_in_binary_units_is_exact() -> None:
    for gibibytes in range(1, 200):
        memory = parse_gpu_memory(f"{gibibytes}GiB")

        assert memory.bytes == gibibytes * GIB and not memory.names


def test_gpus_are_listed_by_memory_each_once_and_with_source() -> None:
    memories = [model.total_mib for model in GPU_MODELS]
    assert memories == sorted(memories) and all(model.source for model in GPU_MODELS)
    assert [name for memory in GPUS for name in memory.names] == [model.name for model in GPU_MODELS]
    for model in GPU_MODELS:
        assert 0.9 < model.total_mib / (1024 * model.nominal_gb) < 1.03
    names = {model.name for model in GPU_MODELS}
    assert {"T4", "V100 16GB", "V100 32GB", "A10G", "L4", "L40S", "A6000", "RTX 3090", "RTX 4090", "RTX 5090"} <= names
    assert {"A100 40GB", "A100 80GB", "H100", "H200", "B200"} <= names
    assert {8, 12, 16, 24, 32, 40, 48, 80} <= {model.nominal_gb for model in GPU_MODELS}


def test_documentation_has_the_table_of_gpus() -> None:
    page = (ROOT / "docs/what-if.md").read_text()
    for model in GPU_MODELS:
        size = f"{model.total_mib / 1024:.2f} GiB ({model.total_mib:,} MiB)"
        assert f"| {model.name} | {model.nominal_gb} GB | {size} | {model.source} |" in page
