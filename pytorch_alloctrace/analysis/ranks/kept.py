"""Summaries that are kept: a Parquet file of at most 1 MB next to each trace.

Its rows are what was live at the ends of steps (device, step, live_bytes), which any tool that reads Parquet shows; the
first row has all else, as JSON. A summary is used only if it is whole, of this version, and made of this very trace:
of its id, size and time of change, and those of its spool. Anything else is made anew. The summary of a trace that is
being written is neither kept nor used; that of a truncated trace is not kept. The file has the trace's permissions.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import secrets
import stat
from collections.abc import Sequence
from typing import Any

import numpy as np

from ... import __version__
from ...errors import TraceError
from ...reading.finish import is_being_recorded, open_at_once
from .figures import Card, Detail, HeldLine, Levels, RankSummary
from .plain import made, plain
from .summarizing import session_of, summarize_trace

VERSION = 1
"""Of what a summary consists of. The version of the package counts too: another may judge otherwise."""
PACKAGE = __version__
ENDING = ".summary.parquet"
MOST_BYTES = 1_000_000


def summary_of(path: str, user_paths: Sequence[str] = (), keep: bool = True) -> RankSummary:
    """The summary of a trace: the kept one, or else a new one, which is kept if its folder can be written. Never raises
    for what is in the file: what cannot be read has a card that says why."""
    known = kept_summary(path, user_paths) if keep else None
    if known is not None:
        return known
    running, source = is_being_recorded(path), _source(path, user_paths)
    try:
        summary = summarize_trace(path, str(source["session"]), user_paths)
    except (TraceError, OSError) as error:
        why = str(error) if os.path.exists(path) else f"there is no {path} on {os.uname().nodename}"
        return RankSummary(Card.of_unreadable(path, why), Detail((), ()))
    # A trace that was written to meanwhile has another summary by now. The spool of a truncated one may only be out of
    # reach, on another machine.
    if keep and not running and not summary.card.cut and source == _source(path, user_paths):
        _keep(path, summary, source)
    return summary


def kept_summary(path: str, user_paths: Sequence[str] = ()) -> RankSummary | None:
    """The kept one, if it is of the trace as it is now."""
    return None if is_being_recorded(path) else _load(path, _source(path, user_paths))


def kept_at(path: str) -> str:
    """Where the summary of a trace is kept."""
    return path + ENDING


def _source(path: str, user_paths: Sequence[str]) -> dict[str, Any]:
    """What a summary is made of."""
    return {
        "version": VERSION,
        "package": PACKAGE,
        "session": session_of(path),
        "trace": _stamp(path),
        "spool": _stamp(path + ".spool"),
        "user_paths": sorted(user_paths),
    }


def _stamp(path: str) -> list[int] | None:
    """Size and time of change."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return [status.st_size, status.st_mtime_ns]


def _load(path: str, source: dict[str, Any]) -> RankSummary | None:
    """None if there is none, or one that is not to be used, for whatever reason."""
    try:
        if os.stat(kept_at(path)).st_size > MOST_BYTES:
            return None
        with open_at_once(kept_at(path)) as file:
            data = file.read(MOST_BYTES)
        import pyarrow.parquet

        table = pyarrow.parquet.read_table(io.BytesIO(data))
        text, checksum = (table.column(name)[0].as_py() for name in ("facts", "checksum"))
        rows = table.slice(1)
        columns = [rows.column(name).to_numpy() for name in ("level", "step", "live_bytes")]
        if checksum != _checksum(text, columns):
            return None
        facts = json.loads(text)
        if facts["source"] != source:
            return None
        card = made(Card, {**facts["card"], "path": path})  # the folder may have been moved
        lines = tuple((str(kind), tuple(made(HeldLine, line) for line in held)) for kind, held in facts["lines"])
        number, steps, live = columns
        levels = tuple(
            Levels(str(kind), steps[number == index], live[number == index])
            for index, kind in enumerate(facts["levels"])
        )
        return RankSummary(card, Detail(levels, lines))
    except Exception:  # no pyarrow, no file, any bytes: there is nothing to use, and a new one is made
        return None


def _keep(path: str, summary: RankSummary, source: dict[str, Any]) -> None:
    """Does nothing where that is not possible: the folder is read-only, the disk full, or pyarrow not installed."""
    unfinished = f"{kept_at(path)}.{secrets.token_hex(4)}"
    try:
        data = encode(summary, source)
        try:
            # It has lines of source, as the trace has.
            mode = stat.S_IMODE(os.stat(path).st_mode) & 0o666
            with open(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
                file.write(data)
            os.replace(unfinished, kept_at(path))
        finally:
            with contextlib.suppress(OSError):
                os.unlink(unfinished)
    except (ImportError, OSError):
        return


def encode(summary: RankSummary, source: dict[str, Any]) -> bytes:
    """As Parquet, at most MOST_BYTES: where it would be more, with fewer lines of peaks, then with fewer steps."""
    levels, lines = summary.detail.levels, summary.detail.lines
    while len(data := _encoded(summary.card, levels, lines, source)) > MOST_BYTES:
        if any(held for _, held in lines):
            lines = tuple((kind, held[: len(held) // 2]) for kind, held in lines)
        else:
            levels = tuple(Levels(one.kind, one.steps[::2], one.live[::2]) for one in levels)
    return data


def _encoded(
    card: Card, levels: Sequence[Levels], lines: Sequence[tuple[str, Sequence[HeldLine]]], source: dict[str, Any]
) -> bytes:
    import pyarrow
    import pyarrow.parquet

    columns = [
        np.repeat(np.arange(len(levels), dtype=np.int64), [len(one.steps) for one in levels]),
        np.concatenate([np.zeros(0, np.int64), *(one.steps for one in levels)]),
        np.concatenate([np.zeros(0, np.int64), *(one.live for one in levels)]),
    ]
    facts = {
        "source": source,
        "card": plain(card),
        "levels": [one.kind for one in levels],
        "lines": [[kind, [plain(line) for line in held]] for kind, held in lines],
    }
    text, rest = json.dumps(facts), [None] * len(columns[0])
    devices = [levels[index].kind for index in columns[0]]
    table = pyarrow.table(
        {
            "device": pyarrow.array([None, *devices], pyarrow.string()),
            **{
                name: pyarrow.array([None, *column.tolist()], pyarrow.int64())
                for name, column in zip(("level", "step", "live_bytes"), columns, strict=True)
            },
            "facts": pyarrow.array([text, *rest], pyarrow.string()),
            "checksum": pyarrow.array([_checksum(text, columns), *rest], pyarrow.string()),
        }
    )
    file = io.BytesIO()
    pyarrow.parquet.write_table(table, file, compression="zstd")
    return file.getvalue()


def _checksum(text: str, columns: Sequence[Any]) -> str:
    digest = hashlib.sha256(text.encode())
    for column in columns:
        digest.update(np.ascontiguousarray(column, dtype=np.int64).tobytes())
    return digest.hexdigest()
