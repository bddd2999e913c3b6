"""A local Dask cluster: a scheduler and workers, each in a process of its own, as a user starts them."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from running import program_environment

_TIMEOUT_S = 600
_SCHEDULER = ("distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard")
_WORKER = ("distributed.cli.dask_worker", "--nthreads", "1", "--no-nanny", "--no-dashboard")


@contextlib.contextmanager
def cluster(folder: Path, workers: int = 2, **environment: str) -> Iterator[tuple[str, list[subprocess.Popen[bytes]]]]:
    """Start a cluster; yield its address and processes, the scheduler first. environment: variables of the workers."""
    scheduler_file = folder / "scheduler.json"
    with contextlib.ExitStack() as started:

        def start(*arguments: str, **variables: str) -> subprocess.Popen[bytes]:
            process = subprocess.Popen(
                [sys.executable, "-m", *arguments, "--scheduler-file", str(scheduler_file)],
                cwd=folder,
                env=program_environment(**variables),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            started.callback(process.wait)
            started.callback(process.kill)
            return process

        processes = [start(*_SCHEDULER)]
        begin = time.monotonic()
        while not scheduler_file.exists() or not (text := scheduler_file.read_text()):
            assert time.monotonic() < begin + _TIMEOUT_S and processes[0].poll() is None, "no scheduler"
            time.sleep(0.05)
        address = str(json.loads(text)["address"])
        processes += [start(*_WORKER, "--local-directory", str(folder), **environment) for _ in range(workers)]
        if workers:
            from distributed import Client

            with Client(address, set_as_default=False) as client:
                client.wait_for_workers(workers, timeout=_TIMEOUT_S)
        yield address, processes
