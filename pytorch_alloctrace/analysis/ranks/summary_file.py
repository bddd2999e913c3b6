"""Summary files: JSON of at most 1 MB next to each trace, which saves reading the trace again.

A file is one JSON object: `sha256`, the checksum of the bytes of `content`, and `content`, with `source` and `summary`.
A file is used only if its checksum is correct and its source equals that of the trace as it is now. For a trace that is
being written, no summary file is read or written; for a truncated trace, none is written.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
import secrets
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ... import __version__
from ...errors import TraceError
from ...reading.integrity import is_being_recorded, open_at_once
from .rank_summary import Detail, Levels, RankSummary, read_session, summarize_trace
from .typed_json import TypedJsonError, decode, encode

VERSION = 7
"""Version of the file's content. `Source.package` is checked too: another package version may judge differently."""
PACKAGE = __version__
SUFFIX = ".summary.json"
MAX_BYTES = 1_000_000
_BEFORE_CONTENT = len(b'{"sha256":"","content":') + hashlib.sha256().digest_size * 2


@dataclass(frozen=True)
class Source:
    """The trace and the versions from which a summary was computed."""

    version: int
    package: str
    session: str
    trace: tuple[int, int] | None
    """Size in bytes and time of change in ns; None if there is no such file."""
    spool: tuple[int, int] | None
    user_paths: tuple[str, ...]

    @classmethod
    def of_trace(cls, path: str, user_paths: Sequence[str]) -> Source:
        return cls(
            version=VERSION,
            package=PACKAGE,
            session=read_session(path),
            trace=_read_stamp(path),
            spool=_read_stamp(path + ".spool"),
            user_paths=tuple(sorted(user_paths)),
        )


@dataclass(frozen=True, eq=False)
class _Content:
    source: Source
    summary: RankSummary


def summarize_rank(path: str, user_paths: Sequence[str] = (), keep: bool = True) -> RankSummary:
    """Return the summary of a trace, or the reason why it is unreadable. keep: read or write the summary file."""
    stored = load_summary(path, user_paths) if keep else None
    if stored is not None:
        return stored
    running, source = is_being_recorded(path), Source.of_trace(path, user_paths)
    try:
        summary = summarize_trace(path, source.session, user_paths)
    except (TraceError, OSError) as error:
        why = str(error) if os.path.exists(path) else f"there is no {path} on {os.uname().nodename}"
        return RankSummary.of_unreadable(path, why)
    # The summary of a trace that changed during the read is out of date. The spool of a truncated trace may exist on
    # another machine and complete the trace there.
    if keep and not running and not summary.is_truncated and source == Source.of_trace(path, user_paths):
        _save_summary(path, summary, source)
    return summary


def load_summary(path: str, user_paths: Sequence[str] = ()) -> RankSummary | None:
    """Return the summary in the summary file of a trace; None without a usable file."""
    if is_being_recorded(path):
        return None
    try:
        with open_at_once(summary_path(path)) as file:
            data = file.read(MAX_BYTES) or b""  # a pipe without data returns None
    except OSError:
        return None
    text = data[_BEFORE_CONTENT:-1]
    if data != _with_checksum(text):
        return None
    try:
        content = decode(_Content, text)
    except TypedJsonError:
        return None
    if content.source != Source.of_trace(path, user_paths):
        return None
    return dataclasses.replace(content.summary, path=path)  # the folder may have been moved


def summary_path(path: str) -> str:
    return path + SUFFIX


def encode_file(summary: RankSummary, source: Source) -> bytes | None:
    """Return a summary file of at most `MAX_BYTES`, with fewer peak lines, then fewer steps if needed; else None."""
    assert summary.detail is not None
    levels, lines = summary.detail.levels, summary.detail.lines
    while True:
        shortened = dataclasses.replace(summary, detail=Detail(levels, lines))
        data = _with_checksum(encode(_Content(source, shortened)))
        if len(data) <= MAX_BYTES:
            return data
        if any(held_lines for _, held_lines in lines):
            lines = tuple((kind, held_lines[: len(held_lines) // 2]) for kind, held_lines in lines)
        elif any(len(level.steps) > 1 for level in levels):
            levels = tuple(Levels(level.kind, level.steps[::2], level.live[::2], level.peak[::2]) for level in levels)
        else:
            return None


def _save_summary(path: str, summary: RankSummary, source: Source) -> None:
    """Write the summary file of a trace atomically. Ignore errors: the folder may be read-only or the disk full."""
    data = encode_file(summary, source)
    if data is None:
        return
    unfinished = f"{summary_path(path)}.{secrets.token_hex(4)}"
    with contextlib.suppress(OSError):
        try:
            # The trace's permissions: both files contain lines of source code.
            mode = stat.S_IMODE(Path(path).stat().st_mode) & 0o666
            with os.fdopen(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
                file.write(data)
            Path(unfinished).replace(summary_path(path))
        finally:
            with contextlib.suppress(OSError):
                Path(unfinished).unlink()


def _with_checksum(content: bytes) -> bytes:
    return b'{"sha256":"%s","content":%s}' % (hashlib.sha256(content).hexdigest().encode(), content)


def _read_stamp(path: str) -> tuple[int, int] | None:
    """Return the size and the time of change of a file, or None if there is none."""
    try:
        status = Path(path).stat()
    except OSError:
        return None
    return status.st_size, status.st_mtime_ns
