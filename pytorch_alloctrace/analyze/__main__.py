"""``python -m pytorch_alloctrace.analyze``: the same as ``alloctrace``."""

from __future__ import annotations

import sys

from ..__main__ import main

if __name__ == "__main__":
    status = main(sys.argv[1:])
    if status:
        sys.exit(status)
