"""The recording that a process writes."""

from __future__ import annotations

import os

from ..errors import TraceError

_MAGIC = b"ALLOCTRC"
_WRITES = os.O_WRONLY | os.O_RDWR


def trace_of_process(process: int) -> str:
    """The path of the trace that a process is writing, found among its open files, which does not disturb it. Raises
    TraceError, with what to do, where there is none."""
    folder = f"/proc/{process}"
    if not os.path.isdir(folder):
        raise TraceError(f"there is no process {process}: give the number of one that runs, or its trace")
    try:
        numbers = os.listdir(f"{folder}/fd")
    except PermissionError:
        raise TraceError(f"process {process} belongs to another user: give its trace") from None
    except FileNotFoundError:
        raise TraceError(f"process {process} has just ended: give its trace") from None
    gone = False
    for number in sorted(numbers, key=int):
        try:
            path = os.readlink(f"{folder}/fd/{number}")
            with open(f"{folder}/fdinfo/{number}") as file:
                flags = int(next(line for line in file if line.startswith("flags:")).split()[1], 8)
            if not path.startswith("/") or not flags & _WRITES:
                continue
            is_gone = path.endswith(" (deleted)") and not os.path.exists(path)
            if not is_gone and not os.path.isfile(path):  # a device, which reading may act on
                continue
            if not is_gone:
                with open(path, "rb") as file:
                    if file.read(len(_MAGIC)) == _MAGIC:
                        return path
            gone = gone or path.endswith(".alloctrace (deleted)")
        except (OSError, StopIteration, ValueError):  # closed in the meantime, or not ours to read
            continue
    if gone:
        raise TraceError(f"the trace of process {process} was removed while it is being written: nothing can be read")
    raise TraceError(
        f"process {process} records nothing: start it with `alloctrace run`, or with alloctrace.enable() in it; a "
        "child of it that does has a number of its own"
    )
