"""Lister of the package's messages: errors, warnings, help texts and sentences of reports.

A message is any string in code of at least three words, except docstrings. Interpolated parts appear as {…}.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

DEFAULT = ("pytorch_alloctrace", "csrc")
MIN_WORDS = 3
_CPP_STRING = re.compile(r'"((?:[^"\\\n]|\\.)*)"')
_NO_MESSAGE = re.compile(r"^\s*(?://|#|static_assert)")


def python_messages(source: str) -> Iterator[tuple[int, str]]:
    """Yield the line and the text of each message in a Python file."""
    tree = ast.parse(source)
    nested = {
        id(part)
        for node in ast.walk(tree)
        if isinstance(node, ast.JoinedStr)
        for part in ast.walk(node)
        if part is not node
    }
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if id(node) in nested or id(node) in docstrings:
            continue
        if isinstance(node, ast.JoinedStr):
            parts = [str(part.value) if isinstance(part, ast.Constant) else "{…}" for part in node.values]
            yield node.lineno, "".join(parts)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value


def cpp_messages(source: str) -> Iterator[tuple[int, str]]:
    """Yield the line and the text of each string in a C++ file."""
    for number, line in enumerate(source.splitlines(), 1):
        if not _NO_MESSAGE.match(line):
            yield from ((number, match[1]) for match in _CPP_STRING.finditer(line))


def main() -> None:
    for start in sys.argv[1:] or DEFAULT:
        path = Path(start)
        files = [path] if path.is_file() else sorted(path.rglob("*"))
        for file in files:
            read = {".py": python_messages, ".cpp": cpp_messages, ".h": cpp_messages}.get(file.suffix)
            if read is None:
                continue
            for line, text in read(file.read_text(encoding="utf-8")):
                if len(re.findall(r"[A-Za-z]{2,}", text)) >= MIN_WORDS and " " in text.strip():
                    print(f"{file}:{line}: {' '.join(text.split())}")


if __name__ == "__main__":
    main()
