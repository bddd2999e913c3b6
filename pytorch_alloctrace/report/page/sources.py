"""Checksum of the sources of the page's script and style. A test compares it with the checksum in the assets.

`python sources.py FOLDER` prints the checksum.
"""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path


def checksum(folder: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        content = hashlib.sha256(path.read_bytes()).hexdigest()
        digest.update(f"{path.relative_to(folder).as_posix()}\0{content}\0".encode())
    return digest.hexdigest()


if __name__ == "__main__":
    print(checksum(Path(sys.argv[1])))
