"""Entry point of ``python -m pytorch_alloctrace.analyze``, which equals ``alloctrace``."""

from __future__ import annotations

import sys

from ..__main__ import script

if __name__ == "__main__":
    status = script()
    if status:
        sys.exit(status)
