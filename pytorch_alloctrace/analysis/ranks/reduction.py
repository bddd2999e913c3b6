"""Reduces many traces to what is compared: a tree of tasks, of which none reads more than one trace.

Each leaf reduces a trace to its summary (see `summary_file`), of which the card goes on; each node above joins the
cards of at most `BRANCHES` others. With dask the tree is a graph of dask's: run by threads of this process, each of
which has a process of its own that reads (see `workers`), or on the cluster whose scheduler is named, whose workers
need nothing but this package. Without dask, threads of this process do the same.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ...errors import MissingPackageError, SchedulerError
from .figures import Card, Detail, RankSummary
from .summary_file import PACKAGE, load_summary, summarize_rank
from .workers import Task, Workers, available_cores

BRANCHES = 16
KEPT_DETAILS = 64
"""Of so few traces the details are kept in memory; of more they are read from the summaries again, of a few ranks."""
_TIMEOUT = "20s"

Progress = Callable[[float], None]


class Part:
    """The cards of some traces, and the details of them, if there are few in all."""

    def __init__(self, cards: Sequence[Card] = (), details: Mapping[str, Detail] | None = None) -> None:
        self.cards = tuple(cards)
        self.details = dict(details or {})


def leaf(summary: RankSummary, with_detail: bool) -> Part:
    return Part([summary.card], {summary.card.path: summary.detail} if with_detail else None)


def read_leaf(path: str, user_paths: tuple[str, ...], keep: bool, with_detail: bool) -> Part:
    """A leaf in a worker of a cluster."""
    return leaf(summarize_rank(path, user_paths, keep), with_detail)


def join(parts: Sequence[Part]) -> Part:
    """A node of the tree."""
    details = {path: detail for part in parts for path, detail in part.details.items()}
    return Part([card for part in parts for card in part.cards], details)


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
        self._workers = None if self._client is not None else Workers(self._jobs)

    def __enter__(self) -> Reduction:
        return self

    def __exit__(self, *error: object) -> None:
        if self._workers is not None:
            self._workers.__exit__(None, None, None)
        if self._owned:
            self._client.close()

    def cards(self, paths: Sequence[str]) -> Part:
        """Those of all traces, in order."""
        return self._reduced(paths, len(paths) <= KEPT_DETAILS)

    def details(self, paths: Sequence[str]) -> Mapping[str, Detail]:
        """Those of a few traces, by path."""
        return self._reduced(paths, True).details

    def _reduced(self, paths: Sequence[str], with_detail: bool) -> Part:
        try:
            import dask
        except ImportError:
            return self._by_threads(paths, with_detail)
        read = self._leaf(with_detail, len(paths))
        # Not `pure`: a trace may have changed since.
        parts: list[Any] = [dask.delayed(read, pure=False)(path) for path in paths]
        while len(parts) > 1:
            parts = [
                dask.delayed(join, pure=False)(parts[begin : begin + BRANCHES])
                for begin in range(0, len(parts), BRANCHES)
            ]
        if not parts:
            return Part()
        if self._client is None:
            done: Part = dask.compute(parts[0], scheduler="threads", num_workers=self._jobs)[0]
            return done
        return self._on_cluster(parts[0])

    def _by_threads(self, paths: Sequence[str], with_detail: bool) -> Part:
        assert self._workers is not None
        with ThreadPoolExecutor(self._jobs) as threads:
            try:
                return join(list(threads.map(self._leaf(with_detail, len(paths)), paths)))
            except BaseException:  # Ctrl-C: the threads, for which this waits, would go on to the last trace
                self._workers.end()
                raise

    def _leaf(self, with_detail: bool, total: int) -> Callable[[str], Part]:
        if self._workers is None:
            return _ClusterLeaf(self._user_paths, self._keep, with_detail)
        workers, finished, lock = self._workers, [0], threading.Lock()

        def read(path: str) -> Part:
            # A summary file is read in a millisecond, a process starts in a second.
            stored = load_summary(path, self._user_paths) if self._keep else None
            part = leaf(stored or workers.summarize(Task(path, self._user_paths, self._keep)), with_detail)
            with lock:
                finished[0] += 1
                if self._progress is not None:
                    self._progress(finished[0] / total)
            return part

        return read

    def _on_cluster(self, tree: Any) -> Part:
        assert self._client is not None
        try:
            done: Part = self._client.compute(tree).result()
        except Exception as error:  # whatever a worker raised, or that it was lost
            raise SchedulerError(f"the cluster could not read the traces: {_line(error)}") from None
        return done


class _ClusterLeaf:
    """Pickles by its name, so that workers take it from their own package."""

    def __init__(self, user_paths: tuple[str, ...], keep: bool, with_detail: bool) -> None:
        self._arguments = (user_paths, keep, with_detail)
        self.__name__ = "read_trace"

    def __call__(self, path: str) -> Part:
        return read_leaf(path, *self._arguments)


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
