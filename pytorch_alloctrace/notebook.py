"""The cell magic %%alloctrace for IPython and notebooks, and the diagnosis of the running recording.

    %load_ext pytorch_alloctrace

    %%alloctrace
    train(steps=20)

The magic records the cell and shows the verdict below it. If a recording already runs, the cell becomes a region of the
recording ("In[3]"), and the verdict is on the region. `%%alloctrace run.alloctrace` keeps the trace of the cell.
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
    """Diagnose the running recording with `Session.diagnose`. The recording goes on.

    Returns:
        The verdict. A notebook shows it; `str` returns its text.

    Raises:
        SessionError: Nothing is being recorded.
    """
    session = current_session()
    if session is None:
        raise SessionError("nothing is recorded: call enable() first, or diagnose a trace with load(path).diagnose()")
    return session.diagnose()


def register(shell: Any) -> None:
    """Add the cell magic to an IPython shell."""

    def alloctrace(line: str, cell: str) -> None:
        _show_verdict(_run_cell(shell, os.path.expanduser(line.strip()), cell))

    alloctrace.__doc__ = __doc__
    shell.register_magic_function(alloctrace, magic_kind="cell", magic_name="alloctrace")


def _run_cell(shell: Any, path: str, cell: str) -> Diagnosis | RangeVerdict:
    """Run the cell and return the verdict. Raises UsageError, which IPython shows in one line."""
    from IPython.core.error import UsageError

    session = current_session()
    if session is not None:
        if path:
            raise UsageError(f"already recording to {session.path}: use %%alloctrace without a path")
        return _run_cell_as_region(session, shell, cell)
    with tempfile.TemporaryDirectory(prefix="alloctrace-") as folder:
        try:
            session = enable(path or Path(folder, "cell.alloctrace"), overwrite=bool(path))
        except AlloctraceError as error:
            raise UsageError(str(error)) from None
        with session:
            _run_code(shell, cell)
        return session.load().diagnose()


def _run_cell_as_region(session: Session, shell: Any, cell: str) -> RangeVerdict:
    from .analysis.range_summary import summarize_range

    name = f"In[{_cell_number(shell)}]"
    with region(name):
        _run_code(shell, cell)
    if session.is_recording:
        session.flush()
    trace = RecordedTrace(session.path)
    region_of_cell = trace.positions.regions_named(f"{name}#-1")[0]
    # The region has no end if the cell ended the recording.
    until = "end" if region_of_cell.end_seq is None else region_of_cell.end_seq
    return RangeVerdict(name, summarize_range(trace, trace.range(region_of_cell.begin_seq, until)))


def _cell_number(shell: Any) -> int:
    """Return the number of the running cell. In newer releases `execution_count` is that of the next cell."""
    return len(shell.user_ns["In"]) - 1


def _run_code(shell: Any, cell: str) -> None:
    compiler, number = shell.compile, _cell_number(shell)
    original_cache = compiler.cache

    def cache(code: str, _: int = 0, **options: Any) -> Any:
        return original_cache(code, number, **options)

    # IPython names code by `execution_count`, so the lines of this cell would be attributed to the next cell.
    compiler.cache = cache
    try:
        # Keep the magic as the first line, so that line numbers are those of the notebook. Another cell magic must stay
        # in the first line.
        shell.run_cell(cell if cell.startswith("%%") else f"# %%alloctrace\n{cell}")
    finally:
        del compiler.cache


def _show_verdict(verdict: Diagnosis | RangeVerdict) -> None:
    from IPython.display import display

    display(verdict)
