"""enable() and disable(): effects, refused arguments and errors."""

from __future__ import annotations

import os
import resource
import signal
import sys
import warnings
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch
from torch.optim import optimizer

import pytorch_alloctrace as alloctrace
from pytorch_alloctrace.recording import loading, program
from pytorch_alloctrace.recording import session as sessions
from pytorch_alloctrace.recording.loading import load_recorder


@pytest.fixture(autouse=True)
def end_session():
    yield
    if alloctrace.is_enabled():
        alloctrace.disable()


def test_context_manager_ends_only_its_session_after_errors(tmp_path: Path) -> None:
    with pytest.raises(KeyError), alloctrace.enable(tmp_path / "a.alloctrace") as session:
        with pytest.raises(alloctrace.SessionError, match=r"a\.alloctrace"):
            alloctrace.enable(tmp_path / "second.alloctrace")
        assert alloctrace.is_enabled() and session.is_recording
        raise KeyError
    assert not alloctrace.is_enabled() and not session.is_recording
    assert session.load().integrity.state == "complete"
    assert os.listdir(tmp_path) == ["a.alloctrace"], "the spool was not removed"

    # After an inner disable(), the context manager ends no other session.
    with alloctrace.enable(tmp_path / "b.alloctrace") as session:
        assert alloctrace.disable() == session.path
        other = alloctrace.enable(tmp_path / "c.alloctrace")
    assert other.is_recording


def test_stop_ends_only_its_own_session(tmp_path: Path) -> None:
    first = alloctrace.enable(tmp_path / "a.alloctrace", devices=("cpu",))
    assert first.stop() == tmp_path / "a.alloctrace" and not alloctrace.is_enabled()

    with alloctrace.enable(tmp_path / "b.alloctrace", devices=("cpu",)) as second:
        with pytest.raises(alloctrace.SessionError, match="has ended"):
            first.stop()
        assert second.is_recording


def test_relative_path_is_expanded_in_a_folder_whose_name_is_not_utf8(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / os.fsdecode(b"caf\xe9")
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("RANK", "7")

    with alloctrace.enable("x-{rank}-{host}-{pid}.t") as session:
        tensor = torch.empty(10)

    assert session.path == folder / f"x-7-{os.uname().nodename}-{os.getpid()}.t"
    assert list(session.load().live()["address"]) == [tensor.data_ptr()]


def test_existing_path_is_refused_unless_it_is_a_file_and_overwrite_is_set(tmp_path: Path) -> None:
    path = tmp_path / "a.alloctrace"
    path.write_text("precious")
    with pytest.raises(alloctrace.SessionError, match="overwrite"):
        alloctrace.enable(path)
    assert path.read_text() == "precious" and os.listdir(tmp_path) == ["a.alloctrace"]

    alloctrace.enable(path, overwrite=True)
    alloctrace.disable()
    assert alloctrace.load(path).integrity.state == "complete"

    path.unlink()
    os.mkfifo(path)
    with pytest.raises(alloctrace.SessionError, match="not a file"):
        alloctrace.enable(path, overwrite=True)
    assert path.is_fifo() and os.listdir(tmp_path) == ["a.alloctrace"]


def test_path_is_refused_when_another_process_creates_it_during_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check also that the trace and spool of the other process are unchanged."""
    files = [tmp_path / "t.alloctrace", tmp_path / "t.alloctrace.spool"]
    monkeypatch.setattr(sessions.RoleNotes, "start", lambda notes: [path.write_text("another's") for path in files])

    with pytest.raises(alloctrace.SessionError, match="exists already"):
        alloctrace.enable(files[0], devices=("cpu",))

    assert sorted(tmp_path.iterdir()) == files and [path.read_text() for path in files] == ["another's"] * 2


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        *(({"devices": devices}, "devices") for devices in (("tpu",), ())),
        *(({name: "all"}, name) for name in ("stacks", "on_full")),
        ({"keep": "10min"}, "is for recordings with max_bytes"),
        *(({"keep": keep, "max_bytes": "64MiB"}, "is not a time") for keep in ("soon", True, 0, float("nan"))),
        *(({"max_bytes": bound}, "use '64MiB' or more") for bound in (32 << 20, "63MiB", -1)),
        *(({"max_bytes": bound}, "is not a size") for bound in ("many", True)),
    ],
    ids=str,
)
def test_invalid_options_are_refused_before_a_file_is_created(
    tmp_path: Path, options: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(alloctrace.SessionError, match=sentence):
        alloctrace.enable(tmp_path / "a.alloctrace", **options)
    assert os.listdir(tmp_path) == [] and not alloctrace.is_enabled()


def test_existing_trace_is_unchanged_when_the_spool_has_no_room(tmp_path: Path) -> None:
    path = tmp_path / "a.alloctrace"
    path.write_text("precious")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    old_handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, before[1]))
        with pytest.raises(alloctrace.SessionError, match="spool"):
            alloctrace.enable(path, overwrite=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, old_handler)

    assert path.read_text() == "precious" and os.listdir(tmp_path) == ["a.alloctrace"]
    assert not alloctrace.is_enabled()


def test_load_reads_all_events_during_and_after_a_recording(tmp_path: Path) -> None:
    session = alloctrace.enable(tmp_path / "a.alloctrace")
    tensors = [torch.empty(100) for _ in range(10)]

    trace = session.load()
    assert trace.integrity.state == "complete" and not trace.integrity.ended
    assert set(trace.live()["address"]) == {tensor.data_ptr() for tensor in tensors}

    alloctrace.disable()
    with pytest.raises(alloctrace.SessionError, match="ended"):
        session.flush()
    assert session.load().integrity.ended


def test_disable_and_positions_do_nothing_without_a_session() -> None:
    assert alloctrace.disable() is None
    alloctrace.step()
    alloctrace.mark("x")
    with alloctrace.region("y"):
        pass
    with pytest.raises(ValueError, match="0"):
        alloctrace.step(-1)


@pytest.mark.parametrize(("attribute", "gpu"), [("hip", "ROCm"), ("xpu", "XPU")])
def test_warning_names_a_gpu_that_is_not_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, attribute: str, gpu: str
) -> None:
    monkeypatch.setattr(torch.version, attribute, "6.4", raising=False)
    monkeypatch.setattr(load_recorder(), "has_cuda", False)

    with pytest.warns(RuntimeWarning, match=f"this torch is for {gpu}, whose memory is not recorded: only the CPU's"):
        session = alloctrace.enable(tmp_path / "a.alloctrace")
    with session:
        assert session.devices == ("cpu",)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with alloctrace.enable(tmp_path / "b.alloctrace", devices=["cpu"]):
            pass


def test_files_are_private_and_contain_no_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hunter2")
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    before = os.umask(0)

    try:
        with alloctrace.enable(tmp_path / "a.alloctrace") as session:
            modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
    finally:
        os.umask(before)

    assert modes == {"a.alloctrace": 0o600, "a.alloctrace.spool": 0o600}
    header = session.load().header
    assert header["torch"] == torch.__version__ and header["process"] == os.getpid()
    assert header["environment"]["OMP_NUM_THREADS"] == "2"
    assert set(header["environment"]) <= set(program.ENVIRONMENT_ALLOWED)
    assert b"hunter2" not in session.path.read_bytes()


def test_environment_variable_starts_a_recording(run_program, tmp_path: Path) -> None:
    program = "import pytorch_alloctrace, torch\nkept = torch.empty(777, dtype=torch.uint8)\n"

    run_program(program, ALLOCTRACE=str(tmp_path / "e-{pid}.alloctrace"))

    (path,) = tmp_path.glob("e-*.alloctrace")
    assert list(alloctrace.load(path).live()["requested_bytes"]) == [777]


def test_program_runs_when_the_environment_variable_is_invalid(run_program, tmp_path: Path) -> None:
    process = run_program("import pytorch_alloctrace; print('ran')", ALLOCTRACE=str(tmp_path / "no" / "t"))
    assert process.stdout == "ran\n" and "not recording" in process.stderr and "Traceback" not in process.stderr


def test_interrupted_disable_ends_the_recording(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session = alloctrace.enable(tmp_path / "a.alloctrace")

    def interrupt() -> bool:
        raise KeyboardInterrupt

    monkeypatch.setattr(session, "_flush", interrupt)
    with pytest.raises(KeyboardInterrupt):
        alloctrace.disable()
    assert alloctrace.load(session.path).integrity.ended
    with alloctrace.enable(tmp_path / "b.alloctrace"):
        pass


def test_names_with_surrogates_are_escaped(tmp_path: Path) -> None:
    """Guard against a TypeError, raised only during a recording."""
    name = os.fsdecode(b"caf\xe9 \xff")
    with alloctrace.enable(tmp_path / "t.alloctrace"), alloctrace.region(name):
        alloctrace.mark(name + "\ud800")

    trace = alloctrace.load(tmp_path / "t.alloctrace")

    marks = trace.marks()[["kind", "name"]].to_numpy().tolist()
    assert marks == [["region", "caf\\udce9 \\udcff"], ["mark", "caf\\udce9 \\udcff\\ud800"]]


def test_paths_are_accepted_as_bytes(tmp_path: Path) -> None:
    alloctrace.enable(os.fsencode(tmp_path / "t.alloctrace"), spool_dir=os.fsencode(tmp_path))  # type: ignore[arg-type]
    assert alloctrace.disable() == tmp_path / "t.alloctrace"


def test_absolute_path_is_accepted_in_a_removed_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "removed").mkdir()
    monkeypatch.chdir(tmp_path / "removed")
    (tmp_path / "removed").rmdir()

    with alloctrace.enable(tmp_path / "t.alloctrace"):
        torch.empty(10)

    assert alloctrace.load(tmp_path / "t.alloctrace").header["working_directory"] == ""


def recorder_hooks() -> list[object]:
    """Return the hooks that the recorder has registered with torch's optimizers."""
    hooks = [*optimizer._global_optimizer_post_hooks.values(), *optimizer._global_optimizer_pre_hooks.values()]
    return [hook for hook in hooks if "alloctrace" in str(getattr(hook, "__module__", ""))]


def test_recording_ends_when_a_stop_callback_fails(tmp_path: Path) -> None:
    """Guard against a recorder without a session, which blocks each later start."""

    def fail() -> None:
        raise RuntimeError("of a callback")

    alloctrace.enable(tmp_path / "t.alloctrace")._at_stop.append(fail)
    with pytest.raises(RuntimeError, match="of a callback"):
        alloctrace.disable()
    assert alloctrace.load(tmp_path / "t.alloctrace").integrity.state == "complete"
    assert not recorder_hooks()
    with alloctrace.enable(tmp_path / "next.alloctrace"):
        pass


@pytest.mark.parametrize("is_moved", [True, False])
def test_disable_warns_when_the_trace_was_deleted_or_moved(tmp_path: Path, is_moved: bool) -> None:
    alloctrace.enable(tmp_path / "t.alloctrace")
    if is_moved:
        (tmp_path / "t.alloctrace").rename(tmp_path / "elsewhere.alloctrace")
    else:
        (tmp_path / "t.alloctrace").unlink()

    with pytest.warns(RuntimeWarning, match="was deleted or moved while it was recorded"):
        alloctrace.disable()

    if is_moved:
        assert alloctrace.load(tmp_path / "elsewhere.alloctrace").integrity.state == "complete"


def test_recorder_is_not_built_when_loading_runs_out_of_memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Guard against a compiler that is started under RLIMIT_AS and runs out of memory as well."""

    def load(*_: object) -> NoReturn:
        raise ImportError("_record.so: failed to map segment from shared object")

    monkeypatch.delitem(sys.modules, "pytorch_alloctrace._record")
    monkeypatch.setattr(loading.importlib, "import_module", load)
    monkeypatch.setattr(loading, "_load", load)
    monkeypatch.setattr(loading, "_build", lambda *_: pytest.fail("the recorder was built"))
    with pytest.raises(alloctrace.RecorderUnavailableError, match="not enough memory to load the recorder"):
        loading.load_recorder()
