"""Recording: enable(), disable() and the positions that a program sets in its trace."""

from __future__ import annotations

import atexit
import contextlib
import json
import linecache
import os
import re
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING, Any, Literal

from ..errors import RecorderUnavailableError, SessionError
from ..sizes import parse_size
from . import program
from .loading import load_recorder
from .modules import start_naming
from .object_scans import Looks
from .oom_report import OomReport
from .own_errors import is_from_signal_handler
from .roles import RoleNotes, remember
from .steps import OptimizerSteps

if TYPE_CHECKING:
    from ..report.diagnosis import Diagnosis
    from ..trace import Trace

DEVICES: tuple[Literal["cuda", "cpu"], ...] = ("cuda", "cpu")
STACKS = ("python", "none")
ON_FULL = ("wait", "drop")
DEFAULT_NAME = "alloctrace-{rank}-{pid}.alloctrace"

RING_EVENTS = 1 << 18
"""Events that the spool can hold while the writer is busy: 16 MiB."""
DEFINITION_BYTES = 8 << 20
"""Bytes of new stacks and names that the spool can hold."""
WAIT_NS = 100_000_000
"""How long one event may wait for room in a full ring before it is counted as lost (``on_full="wait"``)."""

LEAST_BOUND = 64 << 20
"""The least that ``max_bytes`` may be."""
SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
LONGEST_KEPT = 366 * SECONDS["d"]
SMALL_BOUND = 256 << 20
"""Below this, the spool is half as large."""

_lock = threading.RLock()
_current: Session | None = None


class Session:
    """A recording, from `enable` to `disable`. Also a context manager that ends it."""

    def __init__(self, path: Path, recorder: ModuleType, devices: tuple[str, ...]) -> None:
        self.path: Path = path
        """The trace file."""
        self.devices: tuple[str, ...] = devices
        """The devices that are recorded."""
        self._recorder = recorder
        self._process = os.getpid()
        self._began = time.monotonic()
        self._at_stop: list[Callable[[], None]] = []
        self._next_step = 0
        self._says_steps = False
        self._optimizer_steps = OptimizerSteps(self._end_inferred_step)
        self._looks = Looks(recorder)
        self._roles = RoleNotes(recorder.push_roles)
        self._oom_report: OomReport | None = None

    def __enter__(self) -> Session:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        with _lock:
            if _current is self:
                disable()

    def __repr__(self) -> str:
        return f"<alloctrace session {self.path}, {'recording' if self.is_recording else 'ended'}>"

    @property
    def is_recording(self) -> bool:
        """False after `disable`, and in a forked child."""
        return _current is self and self._process == os.getpid()

    def flush(self) -> None:
        """Returns when everything recorded before the call is in the trace file.

        Raises SessionError when the session has ended or the file cannot be written; what was recorded is then
        still in the spool, and the reader finds it there.
        """
        with _lock:
            self._must_record()
            written = self._flush()
            is_gone = self._recorder.spool_is_gone()
        if is_gone:
            raise SessionError(
                f"the spool of {self.path} was truncated by another process, or its file system failed: disable() and "
                "enable() again to go on recording"
            )
        if not written:
            raise SessionError(
                f"{self.path} cannot be written (disk full?): free some room; what was recorded is kept in its spool"
            )

    def snapshot(self) -> bool:
        """Writes the state of the CUDA allocator, its segments and blocks, into the trace.

        The recorder does so itself at the start, if CUDA is already in use, and at the end. Returns False when there
        is no state to write: CUDA is not recorded or not initialised yet, or its allocator does not report its state.
        Raises SessionError when the session has ended.
        """
        with _lock:
            self._must_record()
            return bool(self._recorder.snapshot())

    def stop(self) -> Path:
        """Ends the recording and returns the path of its trace. Raises SessionError when the session has ended."""
        global _current
        with _lock:
            self._must_record()
            _current = None
            self._stop("disable")
            return self.path

    def diagnose(self) -> Diagnosis:
        """What is wrong so far, and what holds what leaks: looks at the program's objects, then `Trace.diagnose`.

        Takes a second or so, more for a long trace. Raises SessionError when the session has ended.
        """
        with _lock:
            self._must_record()
            self._looks.now()
        return self.load().diagnose()

    def load(self) -> Trace:
        """The trace so far (flushes first while recording)."""
        from ..trace import load

        if self.is_recording:
            self.flush()
        return load(self.path)

    def _must_record(self) -> None:
        if not self.is_recording:
            raise SessionError(f"the recording of {self.path} has ended: enable() starts another")

    def _end_inferred_step(self) -> None:
        self._recorder.push_step(self._next_step, False)
        self._next_step += 1
        self._looks.at_step()

    def _end_step(self, number: int | None) -> None:
        if not self._says_steps:
            self._optimizer_steps.stop()
            self._says_steps, self._next_step = True, 0
        if number is None:
            number = self._next_step
        self._roles.stepped()
        self._recorder.push_step(number, True)
        self._next_step = number + 1
        self._looks.at_step()

    def _flush(self) -> bool:
        written: bool = self._recorder.flush()
        # Lines of notebook cells and of code compiled from strings are in no file, but linecache may have them. The
        # writer knows which they are once it has written the stacks that name them.
        known = [
            (filename, line, linecache.getline(filename, line).rstrip())
            for filename, line in self._recorder.take_unread_source_lines()
            if not os.path.exists(filename)  # linecache must not open what the writer could not read: it may be a pipe
        ]
        for filename, line, text in known:
            if text:
                self._recorder.add_source_line(filename, line, text)
        for filename in {filename for filename, _, _ in known}:
            if cell := program.cell_name(filename):
                self._recorder.add_source_line(filename, 0, cell)
        return bool(self._recorder.flush()) if known else written

    def _stop(self, reason: str) -> None:
        end = {"reason": reason}
        replaced_by = ""
        try:
            with contextlib.ExitStack() as stops:  # each, whichever fails
                stops.callback(self._optimizer_steps.stop)
                if self._oom_report is not None:
                    stops.callback(self._oom_report.stop)
                for stop in reversed(self._at_stop):
                    stops.callback(stop)
            if not self._looks.end(look=True):
                end["last_look"] = "cut"
            self._roles.look()
            self._roles.stop()
            if replaced_by := self._recorder.cuda_allocator_instead_of_ours():
                end["cuda_allocator_replaced_by"] = replaced_by
            self._recorder.announce_stop()
            self._flush()
        finally:  # what fails, or a Ctrl-C, must not leave the recorder running without a session
            try:
                self._roles.stop()
                self._looks.stop()
            finally:
                written, spool_is_gone = self._recorder.stop(json.dumps(end))
        # Warnings last: where they are errors, they would end this function.
        if replaced_by:
            warnings.warn(
                f"the program replaced the recorded CUDA allocator with another one ({replaced_by}), whose allocations "
                "are not in the trace: call enable() after the replacement to record them",
                RuntimeWarning,
                stacklevel=3,
            )
        if self._recorder.met_subinterpreter():
            warnings.warn(
                f"the trace {self.path} has no stacks of what subinterpreters allocated: only the main interpreter's "
                "code can be followed",
                RuntimeWarning,
                stacklevel=3,
            )
        if not written and not spool_is_gone:
            warnings.warn(
                f"the trace {self.path} could not be written to its end (disk full?); "
                f"the rest is in its spool: keep both files together",
                RuntimeWarning,
                stacklevel=3,
            )
        if spool_is_gone:
            warnings.warn(
                f"the spool of {self.path} was truncated by another process, or its file system failed: what happened "
                "after that is not in the trace",
                RuntimeWarning,
                stacklevel=3,
            )
        if not self.path.exists():
            warnings.warn(
                f"the trace {self.path} was deleted or moved while it was recorded: if it was moved, it is complete "
                "where it is now",
                RuntimeWarning,
                stacklevel=3,
            )


def enable(
    path: str | os.PathLike[str] | None = None,
    *,
    devices: Sequence[Literal["cuda", "cpu"]] = DEVICES,
    stacks: Literal["python", "none"] = "python",
    on_full: Literal["wait", "drop"] = "wait",
    report_oom: bool = False,
    spool_dir: str | os.PathLike[str] | None = None,
    sources: bool = True,
    modules: bool = True,
    overwrite: bool = False,
    max_bytes: int | str | None = None,
    keep: float | str | None = None,
) -> Session:
    """Starts recording every allocation and free of torch into a trace file.

    path: where the trace goes; ``{rank}``, ``{pid}`` and ``{host}`` in it are filled in. Default:
        ``alloctrace-{rank}-{pid}.alloctrace`` in the working directory; in a folder, if that is what the path is. One
        that ends in a slash is made. Where there are several ranks, a name without ``{rank}`` gets it:
        ``run.alloctrace`` is ``run-rank3.alloctrace`` then.
    devices: which allocators to record: "cuda", "cpu" or both; one that torch does not have is left out.
    stacks: "python", or "none" for no stacks.
    on_full: what happens to an event when the writer cannot keep up and the ring of 262,144 events (16 MiB) is full:
        "wait", at most 100 ms, or "drop". The trace says how many events were lost, and where.
    report_oom: print, the first time that torch.OutOfMemoryError is raised, the verdict on the trace so far to stderr,
        whether or not the program catches it; the exception goes on unchanged.
    spool_dir: folder of the spool, a preallocated file of 24 MiB through which events survive a killed process.
        Default: next to the trace. Choose a local folder (such as /dev/shm) if the trace is on a network file system.
    sources: store the source lines that occur in stacks.
    modules: tell apart, in stacks, the instances of torch.nn.Module that are called (``by="module"``).
    overwrite: replace an existing file.
    max_bytes: what all files of the recording together may have, at least 64 MiB: a number, or "256MiB". Default: any
        size. When the trace gets long, its beginning is compacted into sums (see docs/long-runs.md): leaks, peaks and
        totals stay exact, single events of long ago go. The ring of the spool is half as large below 256 MiB.
    keep: with `max_bytes`, time for which events are not compacted: seconds, or "10min". Where `max_bytes` has no room
        for them, fewer are kept, and the trace says so. Default: a tenth of the room, however long that is.

    The first time in an environment, the recorder is compiled for its torch, which takes a minute or two and is said on
    stderr; ``python -m pytorch_alloctrace build`` does so beforehand.

    Raises SessionError (already recording, unusable path, unknown option, no thread or memory available) or
    RecorderUnavailableError (no torch, or the recorder cannot be compiled for it). Nothing is left behind then.
    """
    global _current
    device_names = _checked_devices(devices)
    _check_option("stacks", stacks, STACKS)
    _check_option("on_full", on_full, ON_FULL)
    bound, kept = _bytes_of(max_bytes), _nanoseconds_of(keep, max_bytes)
    # A small bound is not to be taken by the spool.
    halves = 2 if bound and bound < SMALL_BOUND else 1
    ring_events, definition_bytes = RING_EVENTS // halves, DEFINITION_BYTES // halves
    with _lock:
        if _current is not None:
            raise SessionError(f"already recording to {_current.path}: call disable() first")
        recorder = load_recorder()
        if recorder.is_recording():  # by a package that was imported anew since: its session is not ours to end
            raise SessionError(
                "an earlier import of pytorch_alloctrace is recording in this process: disable() it there, or start a "
                "new process"
            )
        target = _resolved_path(path)
        recorded = tuple(name for name in device_names if name == "cpu" or recorder.has_cuda)
        if not recorded:
            raise SessionError(f"devices={device_names!r}: nothing to record: this torch is built without CUDA")
        if "cuda" in device_names and (other := program.other_gpu_platform()):
            warnings.warn(
                f"this torch is for {other}, whose memory is not recorded: only the CPU's is",
                RuntimeWarning,
                stacklevel=2,
            )
        spool = _spool_path(target, spool_dir)
        session = Session(target, recorder, recorded)
        wait_ns = WAIT_NS if on_full == "wait" else 0
        options = {
            "stacks": stacks,
            "on_full": on_full,
            "report_oom": report_oom,
            "sources": sources,
            "modules": modules,
            "ring_events": ring_events,
            "wait_ns": wait_ns,
            "max_bytes": bound,
            "keep_ns": kept,
        }
        try:
            if recorder.stack_problem and stacks == "python":
                warnings.warn(recorder.stack_problem, RuntimeWarning, stacklevel=2)
            options["modules"] = start_naming(recorder, modules and stacks == "python")
            header = program.describe(target, spool, recorded, options)
            recorder.start(
                session_id=os.urandom(16),
                path=os.fsencode(target),
                spool_path=os.fsencode(spool),
                overwrite=overwrite,
                header_json=json.dumps(header),
                ring_events=ring_events,
                definitions_bytes=definition_bytes,
                wait_ns=wait_ns,
                sources=sources,
                library_prefixes=[os.fsencode(prefix) for prefix in header["library_prefixes"]],
                working_directory=os.fsencode(header["working_directory"]),
                python_stacks=stacks == "python",
                cpu="cpu" in recorded,
                cuda="cuda" in recorded,
                cuda_is_initialised=program.cuda_is_initialised(),
                max_bytes=bound or 0,
                keep_ns=kept or 0,
                nodes_at_begin=tuple(header["autograd_nodes"]),
            )
            session._optimizer_steps.start()
            session._roles.start()
            recorder.publish()
            session._looks.start()
            if report_oom:
                session._oom_report = OomReport(target, spool, session._flush)
                session._oom_report.start()
            _current = session
            session._roles.look()
        except BaseException as error:
            _current = None
            session._optimizer_steps.stop()
            session._looks.stop()
            session._roles.stop()
            if session._oom_report is not None:
                session._oom_report.stop()
            recorder.discard()
            if not isinstance(error, Exception) or is_from_signal_handler(error):  # Ctrl-C, or a time limit
                raise
            # The first line: torch's errors go on with a C++ stack.
            raise SessionError((str(error) or repr(error)).splitlines()[0]) from None
        return session


def _bytes_of(max_bytes: int | str | None) -> int | None:
    """The bound in bytes. Raises SessionError for one that is none, or too small."""
    if max_bytes is None:
        return None
    value = max_bytes
    if isinstance(value, str):
        try:
            value = parse_size(value)
        except ValueError as error:
            raise SessionError(f"max_bytes={error}") from None
    if isinstance(value, bool) or not isinstance(value, int):
        raise SessionError(f"max_bytes={max_bytes!r} is not a size: use a number of bytes, or one such as '256MiB'")
    if value < LEAST_BOUND:
        raise SessionError(
            f"max_bytes={max_bytes!r} is too small: the spool alone takes 12 MiB, and compaction needs room; "
            f"use '64MiB' or more"
        )
    return value


def _nanoseconds_of(keep: float | str | None, max_bytes: int | str | None) -> int | None:
    """How long events are kept. Raises SessionError for what is no time, or says nothing without a bound."""
    if keep is None:
        return None
    value = keep
    if isinstance(value, str):
        found = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*(s|sec|min|m|h|d)?\s*", value, re.IGNORECASE)
        if found is None:
            raise SessionError(f"keep={keep!r} is not a time: use a number of seconds, or one such as '10min'")
        value = float(found[1]) * SECONDS[(found[2] or "s")[0].lower()]
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= LONGEST_KEPT:
        raise SessionError(
            f"keep={keep!r} is not a time: use a number of seconds, or one such as '10min', up to 366 days"
        )
    if max_bytes is None:
        raise SessionError(f"keep={keep!r} is for recordings with max_bytes: without it, every event is kept")
    return int(value * 1e9)


def disable() -> Path:
    """Ends the recording and returns the path of its trace. Raises SessionError when nothing is recorded."""
    global _current
    with _lock:
        session = _current
        if session is None:
            raise SessionError("nothing is recorded: enable() starts a recording")
        _current = None
        session._stop("disable")
        return session.path


def is_enabled() -> bool:
    """Whether this process is recording."""
    return _current is not None


def current_session() -> Session | None:
    """The recording that runs in this process."""
    session = _current
    return session if session is not None and session.is_recording else None


def pluggable_library() -> str:
    """Path of the library with `alloctrace_malloc` and `alloctrace_free`: cudaMalloc and cudaFree, recorded.

    Pass it to ``torch.cuda.memory.CUDAPluggableAllocator(pluggable_library(), "alloctrace_malloc", "alloctrace_free")``
    to trace a program without a caching allocator. Both record while a session with "cuda" is on. Raises
    RecorderUnavailableError if recording is not possible here, or torch has no CUDA.
    """
    recorder = load_recorder()
    if not recorder.has_cuda:
        raise RecorderUnavailableError("this torch is built without CUDA: there is nothing to plug an allocator into")
    return str(recorder.__file__)


def step(n: int | None = None) -> None:
    """Ends step `n` (default: one more than the last, from 0). Everything before the first call is step 0.

    From the first call on, steps are no longer inferred from torch's optimizers, and those before it do not count. Does
    nothing when nothing is recorded. Raises ValueError for a negative number.
    """
    if n is not None and n < 0:
        raise ValueError(f"steps count from 0, not {n}")
    session = _current
    if session is not None:
        session._end_step(n)


def observe(model: Any, optimizer: Any = None) -> None:
    """Says which blocks are the parameters, the buffers and the gradients of a model, with their names, and which the
    state of an optimizer. For programs without a torch optimizer, whose parameters and state are found anyway.

    model: a torch.nn.Module. optimizer: anything with `param_groups` and `state`, as torch's optimizers have them. Both
    are remembered weakly. They are looked up now, if something is recorded, and at `enable`, at the 1st, 2nd, 4th, 8th,
    ... `step`, and when the recording ends. Raises TypeError for anything else.
    """
    if not (hasattr(model, "named_parameters") and hasattr(model, "named_buffers")):
        raise TypeError(f"a {type(model).__name__} has no named_parameters(): pass a torch.nn.Module")
    if optimizer is not None and not (hasattr(optimizer, "param_groups") and hasattr(optimizer, "state")):
        raise TypeError(f"a {type(optimizer).__name__} has no param_groups and state: pass a torch optimizer, or none")
    remember(*(thing for thing in (model, optimizer) if thing is not None))
    session = _current
    if session is not None:
        session._roles.look()


def mark(name: str) -> None:
    """Sets a named position in the trace ("mark:NAME"). Does nothing when nothing is recorded."""
    session = _current
    if session is not None:
        session._recorder.push_mark(_encoded(name))


@contextlib.contextmanager
def region(name: str) -> Iterator[None]:
    """Marks what runs inside as a named region of the trace. Does nothing when nothing is recorded."""
    session = _current
    if session is not None:
        session._recorder.push_region_begin(_encoded(name))
    try:
        yield
    finally:
        if session is not None and session is _current:
            session._recorder.push_region_end(_encoded(name))


def _encoded(name: str) -> bytes:
    """Encode a name; surrogates, which a file name may have, are escaped: the program must not get an error."""
    return str(name).encode(errors="backslashreplace")


def _checked_devices(devices: Sequence[str]) -> tuple[str, ...]:
    names = (devices,) if isinstance(devices, str) else tuple(devices)
    for name in names:
        _check_option("devices", name, DEVICES)
    if not names:
        raise SessionError(f"devices is empty: name at least one of {', '.join(DEVICES)}")
    return names


def _check_option(option: str, value: object, known: tuple[str, ...]) -> None:
    if value not in known:
        raise SessionError(f"{option}={value!r} is unknown: use one of {', '.join(map(repr, known))}")


def _resolved_path(path: str | os.PathLike[str] | None) -> Path:
    text = os.fsdecode(path) if path is not None else DEFAULT_NAME
    if "\0" in text:
        raise SessionError(f"path={text!r} has a null character: give another path")
    folder, name = os.path.split(text)
    if not name or os.path.isdir(text):
        text = os.path.join(text, DEFAULT_NAME)
    elif (program.world_size() or 1) > 1 and "{rank}" not in text:
        # Two ranks must never write one file, nor one end with an error because the other was there first. Numbers of
        # processes do not tell them apart: in containers they are the same on every machine.
        stem, ending = os.path.splitext(name)
        text = os.path.join(folder, f"{stem}-rank{{rank}}{ending}")
    filled = text.replace("{rank}", program.rank()).replace("{pid}", str(os.getpid()))
    try:
        target = Path(os.path.abspath(filled.replace("{host}", os.uname().nodename)))
    except FileNotFoundError:
        raise SessionError("the working directory is gone: change to another one, then enable() again") from None
    if not name:
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise SessionError(f"the folder {target.parent} cannot be made: {error.strerror or error}") from None
    return target


def _spool_path(trace: Path, spool_dir: str | os.PathLike[str] | None) -> Path:
    name = trace.name + ".spool"
    if spool_dir is None:
        return trace.with_name(name)
    # Two traces of one name in two folders must not share a spool.
    return Path(os.path.abspath(os.fsdecode(spool_dir))) / f"{os.getpid()}-{os.urandom(4).hex()}-{name}"


def _end_at_exit() -> None:
    session = _current
    if session is not None and session.is_recording:
        _stop_at_exit()


def _stop_at_exit() -> None:
    global _current
    with _lock:
        session, _current = _current, None
        if session is not None:
            session._stop("exit")


def _forget_in_child() -> None:
    """A forked child is not recorded and owns nothing of its parent's session; it may start its own."""
    global _current, _lock
    _lock = threading.RLock()
    if _current is not None:
        _current._optimizer_steps.stop()
        _current._looks.forget_in_child()
        _current._roles.stop()
        if _current._oom_report is not None:
            _current._oom_report.stop()
    _current = None


atexit.register(_end_at_exit)
os.register_at_fork(after_in_child=_forget_in_child)
