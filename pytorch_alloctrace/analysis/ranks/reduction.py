"""Reads many traces and returns their summaries, in tasks of which none reads more than one trace.

On this machine, threads share processes that read (see `workers`). On a cluster of Dask, the tasks are a tree. Each
leaf passes on the summary of a trace as JSON, without its detail if there are many traces; each node above joins those
of at most `BRANCHES` others. So the memory of a worker does not grow with the number of traces. Workers need nothing
but this package.
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
"""Maximum number of traces of which the details are returned: more than comparing reads again of many."""
_TIMEOUT = "20s"

Progress = Callable[[float], None]


def read_trace(path: str, user_paths: tuple[str, ...], keep: bool, with_detail: bool) -> list[bytes]:
    """Return the summary of a trace as JSON: a leaf of the tree."""
    summary = summarize_rank(path, user_paths, keep)
    return [encode(summary if with_detail else dataclasses.replace(summary, detail=None))]


def join_summaries(parts: Sequence[list[bytes]]) -> list[bytes]:
    """Return the summaries of several parts in order: a node of the tree."""
    return [summary for part in parts for summary in part]


class Reduction:
    """Reads traces, here or on a cluster. A context manager."""

    def __init__(
        self,
        scheduler: Any = None,
        jobs: int | None = None,
        user_paths: Sequence[str] = (),
        keep: bool = True,
        progress: Progress | None = None,
    ) -> None:
        """scheduler: the address of one of dask.distributed, or a client of it; None: this machine. Raises
        MissingPackageError without dask, SchedulerError for one that cannot be used."""
        self._user_paths = tuple(user_paths)
        self._keep = keep
        self._progress = progress
        self._jobs = jobs or available_cores()
        self._client: Any = None
        self._owned = False
        if scheduler is not None:
            self._client, self._owned = _client(scheduler)
        self._workers = Workers(self._jobs)

    def __enter__(self) -> Reduction:
        return self

    def __exit__(self, *error: object) -> None:
        self._workers.end()
        if self._owned:
            self._client.close()

    def read(self, paths: Sequence[str]) -> list[RankSummary]:
        """Return the summaries of traces in order, with their details if the traces are at most `MAX_DETAILS`."""
        with_detail = len(paths) <= MAX_DETAILS
        return self._read_here(paths, with_detail) if self._client is None else self._read_there(paths, with_detail)

    def _read_here(self, paths: Sequence[str], with_detail: bool) -> list[RankSummary]:
        finished, lock = 0, threading.Lock()

        def read(path: str) -> RankSummary:
            nonlocal finished
            # A summary file is read in a millisecond, a process starts in a second.
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
            except BaseException:  # Ctrl-C: the threads, for which this waits, would go on to the last trace
                self._workers.end()
                raise

    def _read_there(self, paths: Sequence[str], with_detail: bool) -> list[RankSummary]:
        import dask

        # Not `pure`: a trace may have changed since.
        read, join = dask.delayed(read_trace, pure=False), dask.delayed(join_summaries, pure=False)
        parts = [read(path, self._user_paths, self._keep, with_detail) for path in paths]
        while len(parts) > 1:
            parts = [join(parts[begin : begin + BRANCHES]) for begin in range(0, len(parts), BRANCHES)]
        try:
            return [decode(RankSummary, summary) for part in parts for summary in self._client.compute(part).result()]
        except Exception as error:  # whatever a worker raised, or that it was lost
            raise SchedulerError(f"the cluster could not read the traces: {_line(error)}") from None


def _client(scheduler: Any) -> tuple[Any, bool]:
    """The client of a scheduler, and whether it is ours to close."""
    try:
        from distributed import Client
    except ImportError:
        raise MissingPackageError("a scheduler needs dask: pip install 'dask[distributed]'") from None
    if isinstance(scheduler, Client):
        _check(scheduler, str(scheduler.scheduler.address if scheduler.scheduler else scheduler))
        return scheduler, False
    address = os.fspath(scheduler) if isinstance(scheduler, os.PathLike) else str(scheduler)
    try:
        client = Client(address, timeout=_TIMEOUT, set_as_default=False)
    except Exception as error:  # no such host, nobody there, something else there, another version
        raise SchedulerError(f"no scheduler of dask answers at {address!r}: {_line(error)}") from None
    try:
        _check(client, address)
    except BaseException:
        client.close()
        raise
    return client, True


def _check(client: Any, address: str) -> None:
    """That there are workers, and that they have this package."""
    # A builtin, which pickles as its name: a function of ours would not be found where the package is missing.
    versions = client.run(eval, "__import__('pytorch_alloctrace').__version__", on_error="return")
    if not versions:
        raise SchedulerError(f"the scheduler {address} has no workers: start some with `dask worker {address}`")
    for worker, version in versions.items():
        if version != PACKAGE:
            has = _line(version) if isinstance(version, Exception) else f"it has version {version}"
            raise SchedulerError(f"the worker {worker} needs pytorch_alloctrace {PACKAGE} in its environment: {has}")


def _line(error: BaseException) -> str:
    return (str(error) or repr(error)).splitlines()[0]
