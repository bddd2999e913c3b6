"""In IPython and notebooks: the cell magic %%alloctrace, and the diagnosis of the running recording.

    %load_ext pytorch_alloctrace

    %%alloctrace
    train(steps=20)

The cell is recorded, and the verdict on it shown below it. Where a recording already runs, the cell becomes a region of
it ("In[3]"), and the verdict is on this part alone. `%%alloctrace run.alloctrace` keeps the trace of the cell.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

from .errors import AlloctraceError, SessionError
from .reading.recorded import RecordedTrace
from .recording.session import Session, current_session, enable, region
from .report.diagnosis import Diagnosis, RangeVerdict


def diagnose() -> Diagnosis:
    """Diagnose the recording that runs, with `Session.diagnose`. The recording goes on.

    A notebook shows the verdict, `str` of the result is its text. Raises SessionError when nothing is recorded.
    """
    session = current_session()
    if session is None:
        raise SessionError("nothing is recorded: enable() starts a recording; of a trace: load(path).diagnose()")
    return session.diagnose()


def register(shell: Any) -> None:
    """Adds the cell magic to an IPython shell."""

    def alloctrace(line: str, cell: str) -> None:
        _show(_run_cell(shell, os.path.expanduser(line.strip()), cell))

    alloctrace.__doc__ = __doc__
    shell.register_magic_function(alloctrace, magic_kind="cell", magic_name="alloctrace")


def _run_cell(shell: Any, path: str, cell: str) -> Diagnosis | RangeVerdict:
    """Runs the cell and judges it. Raises UsageError, which IPython shows in one line, where it cannot be recorded."""
    from IPython.core.error import UsageError

    session = current_session()
    if session is not None:
        if path:
            raise UsageError(f"already recording to {session.path}: %%alloctrace takes no other path")
        return _in_session(session, shell, cell)
    with tempfile.TemporaryDirectory(prefix="alloctrace-") as folder:
        try:
            session = enable(path or Path(folder, "cell.alloctrace"), overwrite=bool(path))
        except AlloctraceError as error:
            raise UsageError(str(error)) from None
        with session:
            _run(shell, cell)
        return session.load().diagnose()


def _in_session(session: Session, shell: Any, cell: str) -> RangeVerdict:
    from .analysis.range_summary import summarize_range

    name = f"In[{_number(shell)}]"
    with region(name):
        _run(shell, cell)
    if session.is_recording:
        session.flush()
    trace = RecordedTrace(session.path)
    region_of_cell = trace.positions.regions_named(f"{name}#-1")[0]
    # Without an end where the cell has ended the recording.
    until = "end" if region_of_cell.end_seq is None else region_of_cell.end_seq
    return RangeVerdict(name, summarize_range(trace, trace.range(region_of_cell.begin_seq, until)))


def _number(shell: Any) -> int:
    """The number of the cell that runs. (`execution_count` is already that of the next one in newer releases.)"""
    return len(shell.user_ns["In"]) - 1


def _run(shell: Any, cell: str) -> None:
    compiler, number = shell.compile, _number(shell)
    known_as = compiler.cache

    def cache(code: str, _: int = 0, **options: Any) -> Any:
        return known_as(code, number, **options)

    # IPython names the code by `execution_count`: the lines of this cell are not to be those of the next one.
    compiler.cache = cache
    try:
        # The magic itself is the first line of the cell, so that its lines have the numbers that the notebook shows.
        # What begins with another cell magic must stay first.
        shell.run_cell(cell if cell.startswith("%%") else f"# %%alloctrace\n{cell}")
    finally:
        del compiler.cache


def _show(verdict: Diagnosis | RangeVerdict) -> None:
    from IPython.display import display

    display(verdict)
