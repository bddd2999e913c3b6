"""CPU storages that do not come from torch's current allocator: torch's Python bindings call the default one."""

from __future__ import annotations

from pathlib import Path

import pytest
from core_probe import make_events, write_killed

import pytorch_alloctrace as alloctrace

PROGRAM = """
import copy, io, torch
import pytorch_alloctrace as alloctrace

older = torch.zeros(1000, dtype=torch.uint8)
source = torch.zeros(5001, dtype=torch.uint8)
file = io.BytesIO()
torch.save(torch.zeros(21001, dtype=torch.uint8), file)
file.seek(0)
alloctrace.enable("first.alloctrace")
copied = copy.deepcopy(source)
storage = torch.UntypedStorage(7003)
older.resize_(9005)
loaded = torch.load(file)
tensor = torch.empty(11007, dtype=torch.uint8)
del copied, storage, older, loaded, tensor
kept = copy.deepcopy(source)
alloctrace.disable()
copy.deepcopy(torch.zeros(13009, dtype=torch.uint8))
alloctrace.enable("second.alloctrace")
del kept
again = copy.deepcopy(source)
alloctrace.disable()
"""


@pytest.fixture
def traces(run_program, tmp_path: Path) -> tuple[alloctrace.Trace, alloctrace.Trace]:
    run_program(PROGRAM)
    return alloctrace.load(tmp_path / "first.alloctrace"), alloctrace.load(tmp_path / "second.alloctrace")


def sizes(trace: alloctrace.Trace, kind: str) -> list[int]:
    return [size for size in trace.events(kinds=[kind])["requested_bytes"] if size > 5000]


def test_storages_of_python_bindings_are_recorded_with_their_frees(traces) -> None:
    first, second = traces

    assert sizes(first, "alloc") == [5001, 7003, 9005, 21001, 11007, 5001]
    assert len(first.live()) == 1 and first.live()["requested_bytes"].tolist() == [5001]
    assert first.integrity.is_complete and str(first.integrity) == "complete, nothing lost"
    assert first.verify().unmatched_frees == 0
    # The default allocator is restored in between: the free of a block from before is unmatched, as it always was.
    assert sizes(second, "alloc") == [5001] and len(second.live()) == 1
    assert second.verify().unmatched_frees == 1


def test_integrity_reports_missing_storages_of_older_trace(tmp_path: Path) -> None:
    path = tmp_path / "older.alloctrace"
    write_killed(path, make_events([{"kind": 1, "address": 4096, "size": 64}]), ring_events=16, devices=["cpu"])

    integrity = alloctrace.load(path).integrity

    assert integrity.misses_python_storages
    assert str(integrity).endswith(
        "; CPU storages that torch's Python bindings allocate (copy.deepcopy, torch.load) are not recorded"
    )


FOREIGN = """
import numpy as np, torch
import pytorch_alloctrace as alloctrace

def main():
    arrays = [torch.from_numpy(np.zeros(1000, dtype=np.uint8)) for _ in range(30)]
    shared = [torch.zeros(2000, dtype=torch.uint8).share_memory_() for _ in range(20)]
    own = [torch.zeros(3000, dtype=torch.uint8) for _ in range(10)]
    alloctrace.disable()

alloctrace.enable("run.alloctrace", devices=("cpu",))
main()
"""


def test_object_scan_counts_bytes_that_no_allocator_of_torch_provided(run_program, tmp_path: Path) -> None:
    run_program(FOREIGN)

    table = alloctrace.load(tmp_path / "run.alloctrace").holders().set_index("path")
    columns = ["blocks", "requested_bytes", "foreign_bytes"]
    assert table.loc["arrays[...]", columns].tolist() == [30, 30_000, 30_000]
    assert table.loc["shared[...]", columns].tolist() == [20, 40_000, 40_000]
    assert table.loc["own[...]", columns].tolist() == [10, 30_000, 0]
