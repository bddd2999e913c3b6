"""Traces read by the workers of a Dask cluster, and by local processes with and without dask."""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from dask_cluster import cluster
from made_up_ranks import Rank, write_ranks
from marked_programs import run_analyze

import pytorch_alloctrace as alloctrace
from pytorch_alloctrace.analysis.ranks import reduction

COUNT = 66
"""Number of ranks: the reduction has two levels, and not all details stay in memory."""


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("traces")
    for number in range(COUNT):
        Rank(number, COUNT, steps=20, leaks_from=5 if number == 44 else None).write(folder)
    return folder


@pytest.fixture(scope="module")
def scheduler(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with cluster(tmp_path_factory.mktemp("cluster"), workers=2) as (address, _):
        yield address


@pytest.mark.slow("cluster")
def test_ranks_output_on_cluster_equals_local_output(traces: Path, scheduler: str) -> None:
    assert COUNT > reduction.MAX_DETAILS and COUNT > reduction.BRANCHES
    on_cluster = run_analyze(traces, "ranks", str(traces), "--scheduler", scheduler, "--json")
    data = json.loads(on_cluster)
    assert [(row["kind"], row["ranks"], row["since_step"]) for row in data["findings"]] == [("leak", [44], 5)]
    assert len(data["ranks"]) == COUNT and data["run"]["missing"] == []
    assert len(list(traces.glob("*.summary.json"))) == COUNT, "summary files are missing"
    assert run_analyze(traces, "ranks", str(traces), "--json") == on_cluster


@pytest.mark.slow("cluster")
def test_load_ranks_leaves_client_of_user_open(traces: Path, scheduler: str) -> None:
    from distributed import Client

    with Client(scheduler, set_as_default=False) as client:
        ranks = alloctrace.load_ranks(sorted(traces.glob("*.alloctrace"))[:3], scheduler=client, keep_summaries=False)
        assert len(ranks.table()) == 3 and client.status == "running"


def test_load_ranks_works_without_dask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = write_ranks(tmp_path, 5, rank3=Rank(3, 5, leaks_from=5))
    with_dask = alloctrace.load_ranks(tmp_path, keep_summaries=False).table()
    for name in ("dask", "distributed"):
        monkeypatch.setitem(sys.modules, name, None)
    without_dask = alloctrace.load_ranks(paths, keep_summaries=False, jobs=2).table()
    assert not list(tmp_path.glob("*.summary.json"))
    assert without_dask.equals(with_dask) and without_dask["rank"].iloc[0] == 3
    with pytest.raises(alloctrace.MissingPackageError, match=r"pip install 'dask\[distributed\]'"):
        alloctrace.load_ranks(tmp_path, scheduler="tcp://127.0.0.1:1")


@pytest.mark.slow("cluster")
def test_load_ranks_raises_for_unusable_scheduler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Rank(0, 1).write(tmp_path)
    monkeypatch.setattr(reduction, "_TIMEOUT", "1s")
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{unused.getsockname()[1]}"
        with pytest.raises(alloctrace.SchedulerError, match="no dask scheduler answers"):
            alloctrace.load_ranks(tmp_path, scheduler=address)
    with cluster(tmp_path, workers=0) as (address, _), pytest.raises(alloctrace.SchedulerError, match="has no workers"):
        alloctrace.load_ranks(tmp_path, scheduler=address)


@pytest.mark.slow("cluster")
def test_ranks_exits_2_when_workers_lack_package(tmp_path: Path) -> None:
    (tmp_path / "other" / "pytorch_alloctrace").mkdir(parents=True)
    (tmp_path / "other" / "pytorch_alloctrace" / "__init__.py").write_text("raise ImportError('not installed here')")
    Rank(0, 1).write(tmp_path)

    with cluster(tmp_path, workers=1, PYTHONPATH=str(tmp_path / "other")) as (address, _):
        errors = run_analyze(tmp_path, "ranks", ".", "--scheduler", address, status=2)

    assert len(errors.splitlines()) == 1
    assert "needs pytorch_alloctrace" in errors and "not installed here" in errors
