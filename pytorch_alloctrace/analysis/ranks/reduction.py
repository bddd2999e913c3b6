"""Reader of many traces, on this machine or on a Dask cluster, that returns their summaries.

On this machine, threads share worker processes (see `workers`). On a cluster, the tasks are a tree: each leaf returns
the summary of a trace as JSON, and each inner node joins the results of at most `BRANCHES` nodes.
"""

from __future__ import annotations

import dataclasses
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ...errors import MissingPackageError, SchedulerError
from .rank_summary import RankSummary
from .summary_file import PACKAGE, load_summary, summarize_rank
from .typed_json import decode, encode
from .workers import Task, Workers, available_cores

BRANCHES = 16
MAX_DETAILS = 64
_TIMEOUT = "20s"

Progress = Callable[[float], None]


def read_trace(path: str, user_paths: tuple[str, ...], keep: bool, with_detail: bool) -> list[bytes]:
    """Return the summary of a trace as JSON. A leaf of the tree."""
    summary = summarize_rank(path, user_paths, keep)
    return [encode(summary if with_detail else dataclasses.replace(summary, detail=None))]


def join_summaries(parts: Sequence[list[bytes]]) -> list[bytes]:
    """Return the summaries of several parts in order. An inner node of the tree."""
    return [summary for part in parts for summary in part]


class Reduction:
    def __init__(
        self,
        scheduler: Any = None,
        jobs: int | None = None,
        user_paths: Sequence[str] = (),
        keep: bool = True,
        progress: Progress | None = None,
    ) -> None:
        """Start workers on this machine, or connect to a dask.distributed scheduler, given as an address or client."""
        self._user_paths = tuple(user_paths)
        self._keep = keep
        self._progress = progress
        self._jobs = jobs or available_cores()
        self._client: Any = None
        self._owns_client = False
        if scheduler is not None:
            self._client, self._owns_client = _connect(scheduler)
        self._workers = Workers(self._jobs)

    def __enter__(self) -> Reduction:
        return self

    def __exit__(self, *error: object) -> None:
        self._workers.end()
        if self._owns_client:
            self._client.close()

    def read(self, paths: Sequence[str]) -> list[RankSummary]:
        """Return the summaries of traces in order, with details if there are at most `MAX_DETAILS` traces."""
        with_detail = len(paths) <= MAX_DETAILS
        return (
            self._read_on_this_machine(paths, with_detail)
            if self._client is None
            else self._read_on_cluster(paths, with_detail)
        )

    def _read_on_this_machine(self, paths: Sequence[str], with_detail: bool) -> list[RankSummary]:
        finished, lock = 0, threading.Lock()

        def read(path: str) -> RankSummary:
            nonlocal finished
            # First without a worker: starting a process takes a second, reading a summary file a millisecond.
            summary = load_summary(path, self._user_paths) if self._keep else None
            summary = summary or self._workers.summarize(Task(path, self._user_paths, self._keep))
            with lock:
                finished += 1
                if self._progress is not None:
                    self._progress(finished / len(paths))
            return summary if with_detail else dataclasses.replace(summary, detail=None)

        with ThreadPoolExecutor(self._jobs) as threads:
            try:
                return list(threads.map(read, paths))
            except BaseException:  # Ctrl-C: leaving the pool would wait until the last trace is read
                self._workers.end()
                raise

    def _read_on_cluster(self, paths: Sequence[str], with_detail: bool) -> list[RankSummary]:
        import dask

        # Not `pure`: dask would return a cached result for a trace that has changed.
        read, join = dask.delayed(read_trace, pure=False), dask.delayed(join_summaries, pure=False)
        parts = [read(path, self._user_paths, self._keep, with_detail) for path in paths]
        while len(parts) > 1:
            parts = [join(parts[begin : begin + BRANCHES]) for begin in range(0, len(parts), BRANCHES)]
        try:
            return [decode(RankSummary, summary) for part in parts for summary in self._client.compute(part).result()]
        except Exception as error:  # any error of a worker, or a lost worker
            raise SchedulerError(f"the cluster could not read the traces: {_first_line(error)}") from None


def _connect(scheduler: Any) -> tuple[Any, bool]:
    """Return the client of a scheduler, and whether this module created the client and must close it."""
    try:
        from distributed import Client
    except ImportError:
        raise MissingPackageError("a scheduler needs dask: pip install 'dask[distributed]'") from None
    if isinstance(scheduler, Client):
        _check_workers(scheduler, str(scheduler.scheduler.address if scheduler.scheduler else scheduler))
        return scheduler, False
    address = os.fspath(scheduler) if isinstance(scheduler, os.PathLike) else str(scheduler)
    try:
        client = Client(address, timeout=_TIMEOUT, set_as_default=False)
    except Exception as error:  # unknown host, refused connection, another service or version
        raise SchedulerError(f"no dask scheduler answers at {address!r}: {_first_line(error)}") from None
    try:
        _check_workers(client, address)
    except BaseException:
        client.close()
        raise
    return client, True


def _check_workers(client: Any, address: str) -> None:
    """Raise SchedulerError unless there are workers and all have this version of the package."""
    # `eval` is pickled by name. A function of this package could not be unpickled where the package is missing.
    versions = client.run(eval, "__import__('pytorch_alloctrace').__version__", on_error="return")
    if not versions:
        raise SchedulerError(f"the scheduler {address} has no workers: start some with `dask worker {address}`")
    for worker, version in versions.items():
        if version != PACKAGE:
            problem = _first_line(version) if isinstance(version, Exception) else f"it has version {version}"
            raise SchedulerError(
                f"the worker {worker} needs pytorch_alloctrace {PACKAGE} in its environment: {problem}"
            )


def _first_line(error: BaseException) -> str:
    return (str(error) or repr(error)).splitlines()[0]
