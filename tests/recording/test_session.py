"""enable() and disable(), and what they refuse."""

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
def nothing_left_recording():
    yield
    if alloctrace.is_enabled():
        alloctrace.disable()


def test_context_manager_ends_the_session_even_after_an_error_and_a_second_enable(tmp_path: Path) -> None:
    with pytest.raises(KeyError), alloctrace.enable(tmp_path / "a.alloctrace") as session:
        with pytest.raises(alloctrace.SessionError, match=r"a\.alloctrace"):
            alloctrace.enable(tmp_path / "second.alloctrace")
        assert alloctrace.is_enabled() and session.is_recording
        raise KeyError
    assert not alloctrace.is_enabled() and not session.is_recording
    assert session.load().integrity.state == "complete"
    assert os.listdir(tmp_path) == ["a.alloctrace"], "the spool is removed"
    # An inner disable() is fine, and leaving the block then does not end somebody else's session.
    with alloctrace.enable(tmp_path / "b.alloctrace") as session:
        assert alloctrace.disable() == session.path
        other = alloctrace.enable(tmp_path / "c.alloctrace")
    assert other.is_recording


def test_stop_ends_this_session_alone(tmp_path: Path) -> None:
    first = alloctrace.enable(tmp_path / "a.alloctrace", devices=("cpu",))
    assert first.stop() == tmp_path / "a.alloctrace" and not alloctrace.is_enabled()
    with alloctrace.enable(tmp_path / "b.alloctrace", devices=("cpu",)) as second:
        with pytest.raises(alloctrace.SessionError, match="has ended"):
            first.stop()
        assert second.is_recording


def test_relative_path_has_its_placeholders_replaced_in_a_folder_whose_name_is_not_utf8(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / os.fsdecode(b"caf\xe9")
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("RANK", "7")
    with alloctrace.enable("x-{rank}-{host}-{pid}.t") as session:
        kept = torch.empty(10)
    assert session.path == folder / f"x-7-{os.uname().nodename}-{os.getpid()}.t"
    assert list(session.load().live()["address"]) == [kept.data_ptr()]


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


def test_path_that_another_process_takes_during_the_start_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check also that the other one's trace and spool are as they were."""
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
def test_unknown_options_are_refused_before_anything_is_made(
    tmp_path: Path, options: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(alloctrace.SessionError, match=sentence):
        alloctrace.enable(tmp_path / "a.alloctrace", **options)
    assert os.listdir(tmp_path) == [] and not alloctrace.is_enabled()


def test_no_room_for_the_spool_leaves_an_existing_trace_alone(tmp_path: Path) -> None:
    path = tmp_path / "a.alloctrace"
    path.write_text("precious")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    old = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, before[1]))
        with pytest.raises(alloctrace.SessionError, match="spool"):
            alloctrace.enable(path, overwrite=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, old)
    assert path.read_text() == "precious" and os.listdir(tmp_path) == ["a.alloctrace"]
    assert not alloctrace.is_enabled()


def test_flush_and_load_while_recording(tmp_path: Path) -> None:
    session = alloctrace.enable(tmp_path / "a.alloctrace")
    kept = [torch.empty(100) for _ in range(10)]
    trace = session.load()
    assert trace.integrity.state == "complete" and not trace.integrity.ended
    assert set(trace.live()["address"]) == {tensor.data_ptr() for tensor in kept}
    alloctrace.disable()
    with pytest.raises(alloctrace.SessionError, match="ended"):
        session.flush()
    assert session.load().integrity.ended


def test_without_a_session_disable_is_refused_and_positions_do_nothing() -> None:
    with pytest.raises(alloctrace.SessionError, match="enable"):
        alloctrace.disable()
    alloctrace.step()
    alloctrace.mark("x")
    with alloctrace.region("y"):
        pass
    with pytest.raises(ValueError, match="0"):
        alloctrace.step(-1)


@pytest.mark.parametrize(("attribute", "named"), [("hip", "ROCm"), ("xpu", "XPU")])
def test_warning_names_a_gpu_that_is_not_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, attribute: str, named: str
) -> None:
    monkeypatch.setattr(torch.version, attribute, "6.4", raising=False)
    monkeypatch.setattr(load_recorder(), "has_cuda", False)
    with pytest.warns(RuntimeWarning, match=f"this torch is for {named}, whose memory is not recorded: only the CPU's"):
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


def test_enabled_by_the_environment(run_program, tmp_path: Path) -> None:
    program = "import pytorch_alloctrace, torch\nkept = torch.empty(777, dtype=torch.uint8)\n"
    run_program(program, ALLOCTRACE=str(tmp_path / "e-{pid}.alloctrace"))
    (path,) = tmp_path.glob("e-*.alloctrace")
    assert list(alloctrace.load(path).live()["requested_bytes"]) == [777]


def test_refusal_by_the_environment_lets_the_program_run(run_program, tmp_path: Path) -> None:
    process = run_program("import pytorch_alloctrace; print('ran')", ALLOCTRACE=str(tmp_path / "no" / "t"))
    assert process.stdout == "ran\n" and "not recording" in process.stderr and "Traceback" not in process.stderr


def test_interrupted_disable_ends_the_recording(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session = alloctrace.enable(tmp_path / "a.alloctrace")

    def interrupted() -> bool:
        raise KeyboardInterrupt

    monkeypatch.setattr(session, "_flush", interrupted)
    with pytest.raises(KeyboardInterrupt):
        alloctrace.disable()
    assert alloctrace.load(session.path).integrity.ended
    with alloctrace.enable(tmp_path / "b.alloctrace"):
        pass


def test_names_with_surrogates_are_escaped(tmp_path: Path) -> None:
    """They raised a TypeError, and only while something was recorded."""
    name = os.fsdecode(b"caf\xe9 \xff")
    with alloctrace.enable(tmp_path / "t.alloctrace"), alloctrace.region(name):
        alloctrace.mark(name + "\ud800")

    trace = alloctrace.load(tmp_path / "t.alloctrace")

    marks = trace.marks()[["kind", "name"]].to_numpy().tolist()
    assert marks == [["region", "caf\\udce9 \\udcff"], ["mark", "caf\\udce9 \\udcff\\ud800"]]


def test_paths_may_be_bytes(tmp_path: Path) -> None:
    alloctrace.enable(os.fsencode(tmp_path / "t.alloctrace"), spool_dir=os.fsencode(tmp_path))  # type: ignore[arg-type]
    assert alloctrace.disable() == tmp_path / "t.alloctrace"


def test_a_removed_working_directory_does_not_matter_to_an_absolute_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with alloctrace.enable(tmp_path / "t.alloctrace"):
        torch.empty(10)
    assert alloctrace.load(tmp_path / "t.alloctrace").header["working_directory"] == ""


def alloctrace_hooks() -> list[object]:
    """Return what the recorder has registered with torch's optimizers."""
    hooks = [*optimizer._global_optimizer_post_hooks.values(), *optimizer._global_optimizer_pre_hooks.values()]
    return [hook for hook in hooks if "alloctrace" in str(getattr(hook, "__module__", ""))]


def test_a_stop_that_fails_ends_the_recording(tmp_path: Path) -> None:
    """The recorder went on without a session, and no other could be started."""

    def fail() -> None:
        raise RuntimeError("of a callback")

    alloctrace.enable(tmp_path / "t.alloctrace")._at_stop.append(fail)
    with pytest.raises(RuntimeError, match="of a callback"):
        alloctrace.disable()
    assert alloctrace.load(tmp_path / "t.alloctrace").integrity.state == "complete"
    assert not alloctrace_hooks()
    with alloctrace.enable(tmp_path / "next.alloctrace"):
        pass


@pytest.mark.parametrize("moved", [True, False])
def test_disable_warns_that_the_trace_was_deleted_or_moved(tmp_path: Path, moved: bool) -> None:
    alloctrace.enable(tmp_path / "t.alloctrace")
    if moved:
        (tmp_path / "t.alloctrace").rename(tmp_path / "elsewhere.alloctrace")
    else:
        (tmp_path / "t.alloctrace").unlink()

    with pytest.warns(RuntimeWarning, match="was deleted or moved while it was recorded"):
        alloctrace.disable()

    if moved:
        assert alloctrace.load(tmp_path / "elsewhere.alloctrace").integrity.state == "complete"


def test_a_recorder_that_finds_no_memory_is_not_built_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A limit of the process's addresses started a compiler, which found no memory either."""

    def load(*_: object) -> NoReturn:
        raise ImportError("_record.so: failed to map segment from shared object")

    monkeypatch.delitem(sys.modules, "pytorch_alloctrace._record")
    monkeypatch.setattr(loading.importlib, "import_module", load)
    monkeypatch.setattr(loading, "_load", load)
    monkeypatch.setattr(loading, "_build", lambda *_: pytest.fail("it was built"))
    with pytest.raises(alloctrace.RecorderUnavailableError, match="not enough memory to load the recorder"):
        loading.load_recorder()
