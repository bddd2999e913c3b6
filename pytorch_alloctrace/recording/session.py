"""Recording sessions: enable(), disable(), and the steps, marks and regions that a program sets in its trace."""

from __future__ import annotations

import atexit
import contextlib
import json
import linecache
import os
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING, Any, Literal

from ..errors import RecorderUnavailableError, SessionError
from ..objects.own_errors import is_from_signal_handler
from . import program
from .loading import load_recorder
from .modules import end_naming, start_naming
from .object_scans import ObjectScans
from .oom_report import OomReport
from .options import (
    DEVICES,
    ON_FULL,
    STACKS,
    RecorderOptions,
    check_devices,
    check_option,
    choose_spool_path,
    parse_keep,
    parse_max_bytes,
    resolve_path,
)
from .roles import RoleNotes, add_observed
from .steps import OptimizerSteps

if TYPE_CHECKING:
    from ..report.diagnosis import Diagnosis
    from ..trace import Trace

RING_EVENTS = 1 << 18
"""Capacity of the spool's event ring: 16 MiB."""
DEFINITION_BYTES = 8 << 20
"""Capacity of the spool for new stacks and names, in bytes."""
WAIT_NS = 100_000_000
"""Maximum wait of one event for room in a full ring before it counts as lost (``on_full="wait"``), in ns."""
SMALL_MAX_BYTES = 256 << 20
"""``max_bytes`` below which the ring and the definitions of the spool are halved: the full size uses up the limit."""

_lock = threading.RLock()
_current: Session | None = None


class Session:
    """Recording from `enable` to `disable`, and a context manager that ends it."""

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
        self._has_explicit_steps = False
        self._optimizer_steps = OptimizerSteps(self._end_inferred_step)
        self._object_scans = ObjectScans(recorder)
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
        """True until `disable` or `stop`; False in a forked child."""
        return _current is self and self._process == os.getpid()

    def flush(self) -> None:
        """Write everything recorded before the call to the trace file.

        Raises:
            SessionError: The session has ended, or the file cannot be written. The recorded events then stay in the
                spool, where the reader finds them.
        """
        with _lock:
            self._check_recording()
            written = self._flush()
            is_gone = self._recorder.spool_is_gone()
        if is_gone:
            raise SessionError(
                f"the spool of {self.path} was truncated by another process, or its file system failed: call "
                "disable() and enable() to continue recording"
            )
        if not written:
            raise SessionError(
                f"{self.path} cannot be written (disk full?): free some space; the recorded events stay in its spool"
            )

    def snapshot(self) -> bool:
        """Write the state of the CUDA allocator, its segments and blocks, into the trace.

        The recorder does this itself at the start, if CUDA is already in use, and at the end.

        Returns:
            False if there is no state to write: CUDA is not recorded or not initialised yet, or its allocator does not
            report its state.

        Raises:
            SessionError: The session has ended.
        """
        with _lock:
            self._check_recording()
            return bool(self._recorder.snapshot())

    def stop(self) -> Path:
        """End the recording and return the path of its trace.

        Raises:
            SessionError: The session has ended.
        """
        global _current
        with _lock:
            self._check_recording()
            _current = None
            self._stop("disable")
            return self.path

    def diagnose(self) -> Diagnosis:
        """Scan the program's objects for what holds leaks, then return `Trace.diagnose` of the trace so far.

        Takes about a second, more for a long trace.

        Raises:
            SessionError: The session has ended.
        """
        with _lock:
            self._check_recording()
            self._object_scans.scan_now()
        return self.load().diagnose()

    def load(self) -> Trace:
        """Return the trace so far; while recording, flush it first."""
        from ..trace import load

        if self.is_recording:
            self.flush()
        return load(self.path)

    def _check_recording(self) -> None:
        if not self.is_recording:
            raise SessionError(f"the recording of {self.path} has ended: enable() starts another")

    def _end_inferred_step(self) -> None:
        self._recorder.push_step(self._next_step, False)
        self._next_step += 1
        self._object_scans.scan_if_due()

    def _end_step(self, number: int | None) -> None:
        if not self._has_explicit_steps:
            self._optimizer_steps.stop()
            self._has_explicit_steps, self._next_step = True, 0
        if number is None:
            number = self._next_step
        self._roles.count_step()
        self._recorder.push_step(number, True)
        self._next_step = number + 1
        self._object_scans.scan_if_due()

    def _flush(self) -> bool:
        written: bool = self._recorder.flush()
        # Source lines of notebook cells and of compiled strings are in no file, only in linecache. The writer lists
        # them once it has written the stacks that name them, so the flush comes first.
        unread_lines = [
            (filename, line, linecache.getline(filename, line).rstrip())
            for filename, line in self._recorder.drain_unread_source_lines()
            if not os.path.exists(filename)  # an unreadable existing file may be a pipe: linecache would block on it
        ]
        for filename, line, text in unread_lines:
            if text:
                self._recorder.add_source_line(filename, line, text)
        for filename in {filename for filename, _, _ in unread_lines}:
            if cell := program.cell_name(filename):
                self._recorder.add_source_line(filename, 0, cell)
        return bool(self._recorder.flush()) if unread_lines else written

    def _stop(self, reason: str) -> None:
        end_record: dict[str, Any] = {"reason": reason}
        if (size := program.world_size()) is not None:
            # Processes that a program starts itself (torch.multiprocessing.spawn) get their rank after they started.
            end_record |= {"rank": program.rank(), "world_size": size}
        replaced_by = ""
        try:
            with contextlib.ExitStack() as stops:  # runs every callback even if one fails
                stops.callback(self._optimizer_steps.stop)
                if self._oom_report is not None:
                    stops.callback(self._oom_report.stop)
                for stop in reversed(self._at_stop):
                    stops.callback(stop)
            end_record["final_scan"] = self._object_scans.end()
            self._roles.push_notes()
            self._roles.stop()
            if replaced_by := self._recorder.cuda_allocator_instead_of_ours():
                end_record["cuda_allocator_replaced_by"] = replaced_by
            self._recorder.announce_stop()
            self._flush()
        finally:  # an error or Ctrl-C would leave the recorder running without a session
            try:
                self._roles.stop()
                self._object_scans.stop()
            finally:
                written, spool_is_gone = self._recorder.stop(json.dumps(end_record))
                end_naming()
        # Warnings last: under -W error the first one ends this function.
        if replaced_by:
            warnings.warn(
                f"the program replaced the recorded CUDA allocator with another one ({replaced_by}), whose allocations "
                "are not in the trace: call enable() after the replacement to record them",
                RuntimeWarning,
                stacklevel=3,
            )
        if self._recorder.met_subinterpreter():
            warnings.warn(
                f"the trace {self.path} has no stacks of allocations in subinterpreters: only the main interpreter's "
                "frames can be read",
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
                f"the spool of {self.path} was truncated by another process, or its file system failed: later events "
                "are not in the trace",
                RuntimeWarning,
                stacklevel=3,
            )
        if not self.path.exists():
            warnings.warn(
                f"the trace {self.path} was deleted or moved while it was recorded: if it was moved, it is complete "
                "at its new path",
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
    """Start recording every allocation and free of torch into a trace file.

    The first recording in an environment compiles the recorder for its torch. This takes a minute or two and is
    reported on stderr; ``python -m pytorch_alloctrace build`` does it beforehand.

    Args:
        path: Trace file, or a folder for it; a path that ends in a slash is created. ``{rank}``, ``{pid}`` and
            ``{host}`` are filled in. Default: ``alloctrace-{rank}-{pid}.alloctrace`` in the working directory. With
            several ranks, a name without ``{rank}`` gets it: ``run.alloctrace`` becomes ``run-rank3.alloctrace``.
        devices: Allocators to record: "cuda", "cpu" or both. A device that torch does not support is left out.
        stacks: "python", or "none" for no stacks.
        on_full: What happens to an event when the writer falls behind and the ring of 262,144 events (16 MiB) is full:
            "wait" (at most 100 ms) or "drop". The trace records how many events were lost, and where.
        report_oom: Print the verdict on the trace so far to stderr the first time that torch.OutOfMemoryError is
            raised, even if the program catches it. The exception is not changed.
        spool_dir: Folder of the spool, a preallocated file of 24 MiB through which events survive a killed process.
            Default: the folder of the trace. Choose a local folder (such as /dev/shm) if the trace is on a network
            file system.
        sources: Store the source lines that occur in stacks.
        modules: Distinguish, in stacks, the instances of torch.nn.Module that are called (``by="module"``).
        overwrite: Replace an existing file.
        max_bytes: Limit on the total size of all files of the recording: bytes, or "256MiB"; at least 64 MiB. Default:
            no limit. The beginning of a long trace is compacted into sums (see docs/long-runs.md): leaks, peaks and
            totals stay exact, single old events are dropped. Below 256 MiB, the spool's ring is half as large.
        keep: With `max_bytes`, events this recent are not compacted: seconds, or "10min". If `max_bytes` has no room
            for them, fewer are kept, and the trace records that. Default: as long as a tenth of `max_bytes` holds.

    Raises:
        SessionError: Already recording, unusable path, unknown option, or no thread or memory available. No files are
            left behind.
        RecorderUnavailableError: There is no torch, or the recorder cannot be compiled for it.
    """
    global _current
    device_names = check_devices(devices)
    check_option("stacks", stacks, STACKS)
    check_option("on_full", on_full, ON_FULL)
    size_limit, keep_ns = parse_max_bytes(max_bytes), parse_keep(keep, max_bytes)
    spool_divisor = 2 if size_limit and size_limit < SMALL_MAX_BYTES else 1
    ring_events, definition_bytes = RING_EVENTS // spool_divisor, DEFINITION_BYTES // spool_divisor
    with _lock:
        if _current is not None:
            raise SessionError(f"already recording to {_current.path}: call disable() first")
        recorder = load_recorder()
        if recorder.is_recording():
            raise SessionError(
                "an earlier import of pytorch_alloctrace is recording in this process: disable() it there, or start a "
                "new process"
            )
        target = resolve_path(path)
        recorded_devices = tuple(name for name in device_names if name == "cpu" or recorder.has_cuda)
        if not recorded_devices:
            raise SessionError(f"devices={device_names!r}: nothing to record: this torch is built without CUDA")
        if "cuda" in device_names and (gpu_platform := program.other_gpu_platform()):
            warnings.warn(
                f"this torch is for {gpu_platform}, whose memory is not recorded: only the CPU's is",
                RuntimeWarning,
                stacklevel=2,
            )
        spool = choose_spool_path(target, spool_dir)
        session = Session(target, recorder, recorded_devices)
        wait_ns = WAIT_NS if on_full == "wait" else 0
        options = {
            "stacks": stacks,
            "on_full": on_full,
            "report_oom": report_oom,
            "sources": sources,
            "modules": modules,
            "ring_events": ring_events,
            "wait_ns": wait_ns,
            "max_bytes": size_limit,
            "keep_ns": keep_ns,
        }
        try:
            if recorder.stack_problem and stacks == "python":
                warnings.warn(recorder.stack_problem, RuntimeWarning, stacklevel=2)
            options["modules"] = start_naming(recorder, modules and stacks == "python")
            header = program.describe(target, spool, recorded_devices, options)
            header["python_storages"] = recorder.records_python_storages()
            recorder_options = RecorderOptions(
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
                cpu="cpu" in recorded_devices,
                cuda="cuda" in recorded_devices,
                cuda_is_initialised=program.cuda_is_initialised(),
                max_bytes=size_limit or 0,
                keep_ns=keep_ns or 0,
                nodes_at_begin=tuple(header["autograd_nodes"]),
            )
            recorder.start(recorder_options)
            session._optimizer_steps.start()
            session._roles.start()
            recorder.publish()
            session._object_scans.start()
            if report_oom:
                session._oom_report = OomReport(target, spool, session._flush)
                session._oom_report.start()
            _current = session
            session._roles.push_notes()
        except BaseException as error:
            _current = None
            session._optimizer_steps.stop()
            session._object_scans.stop()
            session._roles.stop()
            if session._oom_report is not None:
                session._oom_report.stop()
            recorder.discard()
            end_naming()
            if not isinstance(error, Exception) or is_from_signal_handler(error):  # Ctrl-C, or a time limit
                raise
            # First line only: torch's errors continue with a C++ stack.
            raise SessionError((str(error) or repr(error)).splitlines()[0]) from None
        return session


def disable() -> Path | None:
    """End the recording and return the path of its trace; None if nothing is recorded."""
    global _current
    with _lock:
        session = _current
        if session is None:
            return None
        _current = None
        session._stop("disable")
        return session.path


def is_enabled() -> bool:
    """Return whether this process is recording."""
    return _current is not None


def current_session() -> Session | None:
    """Return the session that records in this process; None in a forked child of a recorded process."""
    session = _current
    return session if session is not None and session.is_recording else None


def pluggable_library() -> str:
    """Return the path of the library with `alloctrace_malloc` and `alloctrace_free`: cudaMalloc and cudaFree, recorded.

    Pass it to ``torch.cuda.memory.CUDAPluggableAllocator(pluggable_library(), "alloctrace_malloc", "alloctrace_free")``
    to trace a program without a caching allocator. Both functions record while a session with "cuda" is active.

    Raises:
        RecorderUnavailableError: Recording is not possible here, or torch has no CUDA.
    """
    recorder = load_recorder()
    if not recorder.has_cuda:
        raise RecorderUnavailableError("this torch is built without CUDA: it has no allocator to plug in")
    return str(recorder.__file__)


def step(n: int | None = None) -> None:
    """End step `n` (default: one more than the last, from 0). Everything before the first call is step 0.

    From the first call on, steps are no longer inferred from torch's optimizers, and earlier inferred steps do not
    count. Does nothing when nothing is recorded.

    Raises:
        ValueError: `n` is negative.
    """
    if n is not None and n < 0:
        raise ValueError(f"steps are numbered from 0: n is {n}")
    session = _current
    if session is not None:
        session._end_step(n)


def observe(model: Any, optimizer: Any = None) -> None:
    """Record which blocks hold a model's parameters, buffers and gradients, by name, and which an optimizer's state.

    Rarely needed: torch's optimizers and object scans find parameters, buffers and state. Both objects are referenced
    weakly. Their blocks are looked up now, if something is recorded, at `enable`, at the 1st, 2nd, 4th, 8th,
    ... `step`, and when the recording ends.

    Args:
        model: A torch.nn.Module.
        optimizer: An object with `param_groups` and `state`, as torch's optimizers have them.

    Raises:
        TypeError: An argument is something else.
    """
    if not (hasattr(model, "named_parameters") and hasattr(model, "named_buffers")):
        raise TypeError(f"a {type(model).__name__} has no named_parameters(): pass a torch.nn.Module")
    if optimizer is not None and not (hasattr(optimizer, "param_groups") and hasattr(optimizer, "state")):
        raise TypeError(f"a {type(optimizer).__name__} has no param_groups and state: pass a torch optimizer, or none")
    add_observed(*(subject for subject in (model, optimizer) if subject is not None))
    session = _current
    if session is not None:
        session._roles.push_notes()


def mark(name: str) -> None:
    """Set a named position in the trace ("mark:NAME"). Does nothing when nothing is recorded.

    On the main thread, an object scan runs before it if the time for scans allows.
    """
    session = _current
    if session is not None:
        encoded_name = _encode_name(name)
        session._object_scans.scan_at_mark()
        session._recorder.push_mark(encoded_name)


@contextlib.contextmanager
def region(name: str) -> Iterator[None]:
    """Record the code inside as a named region of the trace. Does nothing when nothing is recorded."""
    session = _current
    if session is not None:
        session._recorder.push_region_begin(_encode_name(name))
    try:
        yield
    finally:
        if session is not None and session is _current:
            session._recorder.push_region_end(_encode_name(name))


def _encode_name(name: str) -> bytes:
    """Escape surrogates, which file names may contain: the program must not get an error."""
    return str(name).encode(errors="backslashreplace")


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


def _reset_in_child() -> None:
    """Drop the parent's session in a forked child. The child may start another."""
    global _current, _lock
    _lock = threading.RLock()
    if _current is not None:
        _current._optimizer_steps.stop()
        _current._object_scans.forget_in_child()
        _current._roles.stop()
        if _current._oom_report is not None:
            _current._oom_report.stop()
    _current = None


atexit.register(_end_at_exit)
os.register_at_fork(after_in_child=_reset_in_child)
