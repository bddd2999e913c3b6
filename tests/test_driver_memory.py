"""What the driver says of memory, beside what torch reserves: the account of memory outside PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from conftest import has_nvidia_gpu

import pytorch_alloctrace as alloctrace

MIB, GIB = 2**20, 2**30

PROGRAM = """
import os, time, torch, pytorch_alloctrace as alloctrace
extra = os.environ["SIMCUDA_NVML_EXTRA"]
alloctrace.enable("t.alloctrace", devices=("cuda",))
blocks = [torch.empty(100 << 20, dtype=torch.uint8, device="cuda")]
time.sleep(0.5)
alloctrace.mark("another process grows")
open(extra, "w").write(str(300 << 20))
time.sleep(0.5)
alloctrace.mark("torch grows")
blocks.append(torch.empty(50 << 20, dtype=torch.uint8, device="cuda"))
pinned = torch.empty(1000).pin_memory()
time.sleep(0.5)
alloctrace.disable()
"""


def test_what_lies_outside_of_pytorch(run_cuda_program: Callable[..., Any], tmp_path: Path) -> None:
    if has_nvidia_gpu():
        pytest.skip("the sizes are those of the simulated device")
    extra = tmp_path / "extra"
    extra.write_text("0")
    run_cuda_program(
        PROGRAM,
        SIMCUDA_CONTEXT="600MiB",
        SIMCUDA_OTHER_PROCESSES="99:1GiB",
        SIMCUDA_NVML_EXTRA=str(extra),
    )
    trace = alloctrace.load(tmp_path / "t.alloctrace")
    table = trace.driver_memory("cuda:0")
    assert (table["total"] == 80 * GIB).all() and list(trace.hardware["bytes"]) == [80 * GIB]
    marks = trace.marks().set_index("name")["seq"]

    def last_before(seq: int) -> pd.Series[Any]:
        return table[table["seq"] < seq].iloc[-1]

    alone, grown, end = (last_before(seq) for seq in (*marks, 1 << 63))
    assert alone["outside"] == 600 * MIB + GIB, "the context, and the other process"
    assert grown["outside"] == end["outside"] == 900 * MIB + GIB, "whatever torch reserves meanwhile"
    assert [row["reserved"] // MIB for row in (alone, grown, end)] == [100, 100, 150]
    assert {row["by_this_process"] - row["reserved"] for row in (alone, grown, end)} == {600 * MIB}
    assert alone["by_others"] == GIB
    assert (table["seq"] < marks.iloc[0]).any()
    resident = trace.driver_memory("cpu")
    assert len(resident) > 1 and (resident["used"] > 100 * MIB).all() and resident["outside"].isna().all()
    assert list(trace.events().query("device == 'pinned'")["size"])[:1] == [4000]
