"""What a report that is shared leaves out: source, arguments, host, folders."""

from __future__ import annotations

import re
from typing import Any

_FOLDERS = re.compile(r"(?<![\w/\\.])(?:~|[A-Za-z]:)?(?:[/\\][^\s/\\:,;()'\"<>|]+)+[/\\]([^\s/\\:,;()'\"<>|]+)")
"""An absolute path of at least one folder, and what it leads to."""


class Redaction:
    """Takes folders out of texts. filenames: paths that may be in them, which may have any characters."""

    def __init__(self, filenames: list[str]) -> None:
        known = sorted({name for name in filenames if re.search(r"[/\\]", name)}, key=len, reverse=True)
        self._known = [(name, _last(name)) for name in known if name.startswith(("/", "~", "\\")) or name[1:2] == ":"]

    def text(self, text: str) -> str:
        """The text, with the last part of each path alone."""
        for name, short in self._known:
            if name in text:
                text = text.replace(name, short)
        return _FOLDERS.sub(lambda found: found[1], text)

    def of(self, data: Any) -> Any:
        """The same for all texts in plain values."""
        if isinstance(data, str):
            return self.text(data)
        if isinstance(data, dict):
            return {self.text(key) if isinstance(key, str) else key: self.of(value) for key, value in data.items()}
        if isinstance(data, (list, tuple)):
            return [self.of(item) for item in data]
        return data


def _last(path: str) -> str:
    return re.split(r"[/\\]", path.rstrip("/\\"))[-1]
