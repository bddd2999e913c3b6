"""The checksum of the sources of the page's script and style, which the assets made of them name: the tests compare the
two. `python sources.py FOLDER` prints it."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path


def checksum(folder: Path) -> str:
    """A hash of the names and contents of the files from which assets are made."""
    digest = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        content = hashlib.sha256(path.read_bytes()).hexdigest()
        digest.update(f"{path.relative_to(folder).as_posix()}\0{content}\0".encode())
    return digest.hexdigest()


if __name__ == "__main__":
    print(checksum(Path(sys.argv[1])))
