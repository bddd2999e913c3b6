"""That a recording still runs, or was killed: said on stderr, below the answer."""

from __future__ import annotations

import shlex
import sys

from .. import command
from ..reading.finish import is_being_recorded
from ..trace import Trace


def say_how_it_stands(trace: Trace) -> None:
    """Says that a recording still runs, or that it was killed and what makes one whole file of what it left."""
    integrity = trace.integrity
    if integrity.ended:
        return
    if is_being_recorded(trace.path):
        print(
            f"The program still runs: this is what it had recorded. To watch it: {command.spelled()} live "
            f"{shlex.quote(trace.path)}",
            file=sys.stderr,
        )
    elif integrity.spool_read:
        made = f"{command.spelled()} finish {shlex.quote(trace.path)}"
        print(
            f"The recording was killed; its last events were read from its spool. One whole file: {made}",
            file=sys.stderr,
        )
