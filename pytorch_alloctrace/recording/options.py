"""Options of `enable`: their values, checked and parsed, and the paths of the trace and its spool."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ..errors import SessionError
from ..sizes import parse_size
from . import program

DEVICES: tuple[Literal["cuda", "cpu"], ...] = ("cuda", "cpu")
STACKS = ("python", "none")
ON_FULL = ("wait", "drop")
DEFAULT_NAME = "alloctrace-{rank}-{pid}.alloctrace"
MIN_MAX_BYTES = 64 << 20
SECONDS_PER_UNIT = {"s": 1, "m": 60, "h": 3600, "d": 86400}
MAX_KEEP_S = 366 * SECONDS_PER_UNIT["d"]


@dataclass(frozen=True, kw_only=True)
class RecorderOptions:
    """Argument of the recorder's `start`. Paths are encoded by `os.fsencode`."""

    session_id: bytes
    """16 random bytes that pair the trace with its spool."""
    path: bytes
    spool_path: bytes
    overwrite: bool
    header_json: str
    ring_events: int
    """Capacity of the spool's event ring."""
    definitions_bytes: int
    """Capacity of the spool for new stacks and names."""
    wait_ns: int
    """Maximum wait of one event for room in a full ring before it counts as lost."""
    sources: bool
    """True if source lines are recorded."""
    library_prefixes: list[bytes]
    """Beginnings of the file names that are not user code."""
    working_directory: bytes
    """Base of relative file names."""
    python_stacks: bool
    cpu: bool
    cuda: bool
    cuda_is_initialised: bool
    max_bytes: int
    """Limit on the total size of all files; 0: unlimited."""
    keep_ns: int
    """Duration at the end whose events stay uncompacted; 0: as long as a tenth of `max_bytes` holds."""
    nodes_at_begin: tuple[int, int]
    """Native id of the thread that began the recording, and the number of autograd nodes that it had created."""


def parse_max_bytes(max_bytes: int | str | None) -> int | None:
    """Return `max_bytes` in bytes. Raises SessionError if it is not a size or too small."""
    if max_bytes is None:
        return None
    value = max_bytes
    if isinstance(value, str):
        try:
            value = parse_size(value)
        except ValueError as error:
            raise SessionError(f"max_bytes={error}") from None
    if isinstance(value, bool) or not isinstance(value, int):
        raise SessionError(f"max_bytes={max_bytes!r} is not a size: use a number of bytes, or one such as '256MiB'")
    if value < MIN_MAX_BYTES:
        raise SessionError(
            f"max_bytes={max_bytes!r} is too small: the spool alone takes 12 MiB, and compaction needs room; "
            f"use '64MiB' or more"
        )
    return value


def parse_keep(keep: float | str | None, max_bytes: int | str | None) -> int | None:
    """Return `keep` in nanoseconds. Raises SessionError if it is not a time or lacks `max_bytes`."""
    if keep is None:
        return None
    value = keep
    if isinstance(value, str):
        match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*(s|sec|min|m|h|d)?\s*", value, re.IGNORECASE)
        if match is None:
            raise SessionError(f"keep={keep!r} is not a time: use a number of seconds, or one such as '10min'")
        value = float(match[1]) * SECONDS_PER_UNIT[(match[2] or "s")[0].lower()]
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= MAX_KEEP_S:
        raise SessionError(
            f"keep={keep!r} is not a time: use a number of seconds, or one such as '10min', up to 366 days"
        )
    if max_bytes is None:
        raise SessionError(f"keep={keep!r} is for recordings with max_bytes: without it, every event is kept")
    return int(value * 1e9)


def check_devices(devices: Sequence[str]) -> tuple[str, ...]:
    names = (devices,) if isinstance(devices, str) else tuple(devices)
    for name in names:
        check_option("devices", name, DEVICES)
    if not names:
        raise SessionError(f"devices is empty: name at least one of {', '.join(DEVICES)}")
    return names


def check_option(option: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise SessionError(f"{option}={value!r} is unknown: use one of {', '.join(map(repr, choices))}")


def resolve_path(path: str | os.PathLike[str] | None) -> Path:
    path_text = os.fsdecode(path) if path is not None else DEFAULT_NAME
    if "\0" in path_text:
        raise SessionError(f"path={path_text!r} has a null character: give another path")
    folder, name = os.path.split(path_text)
    if not name or os.path.isdir(path_text):
        path_text = os.path.join(path_text, DEFAULT_NAME)
    elif (program.world_size() or 1) > 1 and "{rank}" not in path_text:
        # Without the rank, two ranks would write one file, or the second would fail because the file exists. Process
        # ids do not distinguish ranks: containers on different machines have the same ids.
        stem, suffix = os.path.splitext(name)
        path_text = os.path.join(folder, f"{stem}-rank{{rank}}{suffix}")
    expanded = path_text.replace("{rank}", program.rank()).replace("{pid}", str(os.getpid()))
    try:
        target = Path(os.path.abspath(expanded.replace("{host}", os.uname().nodename)))
    except FileNotFoundError:
        raise SessionError(
            "the working directory was removed: change to another one, then call enable() again"
        ) from None
    if not name:
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise SessionError(f"the folder {target.parent} cannot be created: {error.strerror or error}") from None
    return target


def choose_spool_path(trace: Path, spool_dir: str | os.PathLike[str] | None) -> Path:
    name = trace.name + ".spool"
    if spool_dir is None:
        return trace.with_name(name)
    # Two traces with the same name in different folders must not share a spool.
    return Path(os.path.abspath(os.fsdecode(spool_dir))) / f"{os.getpid()}-{os.urandom(4).hex()}-{name}"
