"""finish(): completion of the traces of killed processes."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import struct
import subprocess
import sys
import threading
from pathlib import Path

import core_probe
import pandas as pd
import pytest
from command_line import run_command
from marked_programs import run_analyze
from running import ending_without_scan, program_environment

import pytorch_alloctrace as alloctrace

KILLED_PROGRAM = """
import os, threading, torch, pytorch_alloctrace as alloctrace
alloctrace.enable("t.alloctrace", spool_dir={spool_dir!r})
tensors = [torch.empty(100 + number) for number in range({count})]
alloctrace.mark("half")
alloctrace.step()
if {flush}: alloctrace.recording.session._current.flush()
tensors += [torch.empty(200 + number) for number in range({count})]
os.kill(os.getpid(), 9)
"""


def kill_recording(run_program, count: int = 300, flush: bool = False, spool_dir: str | None = None) -> None:
    source = KILLED_PROGRAM.format(count=count, flush=flush, spool_dir=spool_dir)
    assert run_program(source, check=False).returncode == -signal.SIGKILL


def assert_same_events(before: alloctrace.Trace, after: alloctrace.Trace) -> None:
    assert before.events().equals(after.events())
    pd.testing.assert_frame_equal(before.live(), after.live())
    assert before.steps().equals(after.steps()) and before.marks().equals(after.marks())
    stacks = set(before.events()["stack_id"])
    assert [before.frames(stack) for stack in stacks] == [after.frames(stack) for stack in stacks]
    assert before.header == after.header


def test_finished_trace_has_the_same_events_and_no_spool(run_program, tmp_path: Path) -> None:
    kill_recording(run_program, 20_000, flush=True)
    path, spool = tmp_path / "t.alloctrace", tmp_path / "t.alloctrace.spool"
    before = alloctrace.load(path)
    assert before.integrity.spool_read and before._recorded.ending == {}
    before.events()

    out = run_analyze(tmp_path, "finish", "t.alloctrace")

    assert f"{before.integrity.recovered:,} events" in out and "removed" in out and not spool.exists()
    after = alloctrace.load(path)
    assert after._recorded.ending == {"reason": "killed", "uncommitted": 0}
    integrity = after.integrity
    assert integrity.state == "complete" and integrity.ended and integrity.recovered == 0
    assert integrity.events == before.integrity.events
    assert_same_events(before, after)
    content = path.read_bytes()
    assert "nothing to do" in run_analyze(tmp_path, "finish", "t.alloctrace")
    assert path.read_bytes() == content


def test_finish_repairs_truncated_block_and_call_in_progress(run_program, tmp_path: Path) -> None:
    """Truncate the last block, and claim a slot of the spool without filling it."""
    kill_recording(run_program, 300)
    path, spool = tmp_path / "t.alloctrace", tmp_path / "t.alloctrace.spool"
    with path.open("ab") as file:
        file.write(b"ATBK" + bytes(50))
    content = bytearray(spool.read_bytes())
    (offset,) = struct.unpack_from("<Q", content, 32)
    content[offset + 64 * 400 : offset + 64 * 400 + 4] = bytes(4)
    spool.write_bytes(content)
    before = alloctrace.load(path)
    assert before.integrity.uncommitted == 1 and before.integrity.missing_events == 0

    finished = alloctrace.finish(path)

    assert (finished.calls_in_progress, finished.was_ended, finished.spool) == (1, False, spool)
    after = alloctrace.load(path)
    assert after.integrity.state == "complete" and after.integrity.missing_events == 0
    assert after.integrity.truncated_bytes == after.integrity.corrupt_blocks == 0
    events = after.events()
    assert events["kind"][400] == "none"
    others = events[events["kind"] != "none"].reset_index(drop=True)
    pd.testing.assert_frame_equal(before.events().astype({"kind": str}), others.astype({"kind": str}))
    pd.testing.assert_frame_equal(before.live(), after.live())
    assert after.verify().ok


def test_next_finish_completes_trace_when_finish_is_killed(run_program, tmp_path: Path) -> None:
    """Kill the process that finishes at its first write, at its second, and so on."""
    kill_recording(run_program, 60_000, flush=True)
    path, spool = tmp_path / "t.alloctrace", tmp_path / "t.alloctrace.spool"
    before, file, ring = alloctrace.load(path), path.read_bytes(), spool.read_bytes()
    expected = before.events()
    complete_path = tmp_path / "complete.alloctrace"
    complete_path.write_bytes(file)
    (tmp_path / "complete.alloctrace.spool").write_bytes(ring)
    alloctrace.finish(complete_path)
    complete = complete_path.read_bytes()
    assert complete.startswith(file)

    for length in range(len(file), len(complete) + 1, max((len(complete) - len(file)) // 12, 1)):
        path.write_bytes(complete[:length])
        spool.write_bytes(ring)
        assert alloctrace.load(path).events().equals(expected)
        alloctrace.finish(path)
        assert not spool.exists()
        after = alloctrace.load(path)
        assert after.integrity.state == "complete" and after.integrity.end_reason == "killed"
        assert after.events().equals(expected)


@pytest.mark.parametrize("index", [0, 5])
def test_call_in_progress_leaves_no_gap_when_finished(run_program, tmp_path: Path, index: int) -> None:
    """Clear a slot of the spool: the event number of the first was missing in the finished trace."""
    kill_recording(run_program, 300, flush=True)
    path, spool = tmp_path / "t.alloctrace", tmp_path / "t.alloctrace.spool"
    content = bytearray(spool.read_bytes())
    ring, capacity = struct.unpack_from("<QQ", content, 32)
    (tail,) = struct.unpack_from("<Q", content, 192)
    slot = ring + (tail + index) % capacity * 64
    content[slot : slot + 4] = bytes(4)
    spool.write_bytes(content)
    assert alloctrace.load(path).integrity.state == "complete"

    assert alloctrace.finish(path).calls_in_progress == 1

    after = alloctrace.load(path)
    assert (after.integrity.state, after.integrity.missing_events) == ("complete", 0)
    assert after.events()["kind"][tail + index] == "none"


def test_events_are_unchanged_when_finish_is_killed(run_program, tmp_path: Path) -> None:
    """Kill the program after the writer stored the time of a block and before the block was written: once the
    definitions were in the trace, the times of all events in the spool changed."""
    kill_recording(run_program, 300, flush=True)
    path, spool = tmp_path / "t.alloctrace", tmp_path / "t.alloctrace.spool"
    content = bytearray(spool.read_bytes())
    (anchor_number,) = struct.unpack_from("<I", content, 120)
    anchor = 72 + 24 * (anchor_number & 1)
    counter, monotonic, wall = struct.unpack_from("<QQQ", content, anchor)
    struct.pack_into("<QQQ", content, anchor, counter + 3_000_000, monotonic + 2_000_000, wall + 2_000_000)
    file = path.read_bytes()
    spool.write_bytes(content)
    expected, integrity = alloctrace.load(path).events(), alloctrace.load(path).integrity
    alloctrace.finish(path)
    complete = path.read_bytes()

    ends, offset = [], len(file)
    while offset < len(complete):
        offset += 136 + struct.unpack_from("<Q", complete, offset + 16)[0]
        ends.append(offset)
    assert len(ends) == 3  # definitions, events, end
    for end in [end + partial for end in [len(file), *ends[:-1]] for partial in (0, 1, 150)]:
        path.write_bytes(complete[:end])
        spool.write_bytes(content)
        killed = alloctrace.load(path)
        assert killed.events().equals(expected) and killed.integrity.state == integrity.state
        alloctrace.finish(path)
        after = alloctrace.load(path)
        assert after.events().equals(expected) and after.integrity.state == "complete"


@pytest.mark.parametrize(("start", "refused"), [(0, "still being recorded"), (1, ""), (None, "use --force")])
def test_finish_checks_recorder_process_when_file_locks_are_unavailable(
    run_program, tmp_path: Path, start: int | None, refused: str
) -> None:
    """Store this process as the recorder, started `start` ticks later; on another machine if None."""
    kill_recording(run_program)
    path, spool = tmp_path / "t.alloctrace", tmp_path / "t.alloctrace.spool"
    content, file = bytearray(spool.read_bytes()), path.read_bytes()
    machine, _, _ = struct.unpack_from("<QQQ", content, 328)
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    struct.pack_into("<QQQ", content, 328, machine + (start is None), os.getpid(), ticks + (start or 0))
    spool.write_bytes(content)
    environment = {**program_environment(), "LD_PRELOAD": str(core_probe.build_shim("no_locks.c"))}

    def finish(*options: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "pytorch_alloctrace", "finish", "t.alloctrace", *options]
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)

    process = finish()

    assert process.returncode == (2 if refused else 0) and refused in process.stderr
    assert (path.read_bytes() == file and spool.exists()) == bool(refused)
    if start is None:
        assert "is finished" in finish("--force").stdout


def test_finish_waits_while_a_reader_holds_the_lock(run_program, tmp_path: Path) -> None:
    kill_recording(run_program)
    with open(tmp_path / "t.alloctrace", "rb") as reader:
        fcntl.flock(reader, fcntl.LOCK_SH)
        release = threading.Timer(0.05, fcntl.flock, (reader, fcntl.LOCK_UN))
        release.start()

        assert not alloctrace.finish(tmp_path / "t.alloctrace").was_ended
        release.join()


def test_finish_is_refused_while_recording_runs(tmp_path: Path) -> None:
    with alloctrace.enable(tmp_path / "t.alloctrace"):
        integrity = alloctrace.load(tmp_path / "t.alloctrace").integrity
        assert integrity.is_running and "still being recorded; " in str(integrity)
        content = (tmp_path / "t.alloctrace").read_bytes()
        assert "still being recorded" in run_analyze(tmp_path, "finish", "t.alloctrace", status=2)
        assert content in (tmp_path / "t.alloctrace").read_bytes()
        shutil.copy(tmp_path / "t.alloctrace", tmp_path / "copy.alloctrace")
        with pytest.raises(alloctrace.TraceError, match="is in use, by the recording"):
            alloctrace.finish(tmp_path / "copy.alloctrace")
        assert (tmp_path / "t.alloctrace.spool").exists()
    assert ending_without_scan(alloctrace.load(tmp_path / "t.alloctrace")._recorded.ending) == {"reason": "disable"}
    assert "nothing to do" in run_analyze(tmp_path, "finish", "t.alloctrace")


def test_spool_is_unlocked_when_only_a_forked_child_is_alive(run_program, tmp_path: Path) -> None:
    program = KILLED_PROGRAM.replace(
        "os.kill(os.getpid()",
        "child = os.fork()\nif child == 0: os.close(1); os.close(2); __import__('time').sleep(120); os._exit(0)\n"
        "print(child, flush=True)\nos.kill(os.getpid()",
    )
    process = run_program(program.format(spool_dir=None, count=10, flush=False), check=False)

    child = int(process.stdout)
    try:
        assert alloctrace.finish(tmp_path / "t.alloctrace").spool == tmp_path / "t.alloctrace.spool"
    finally:
        os.kill(child, signal.SIGKILL)


def assert_finished(trace: Path) -> None:
    finished = alloctrace.load(trace)
    assert finished.integrity.ended and len(finished.live()) == 600


def test_spool_in_another_folder_is_removed_for_its_own_trace_only(run_program, tmp_path: Path) -> None:
    (tmp_path / "spools").mkdir()
    kill_recording(run_program, spool_dir="spools")
    trace, (spool,) = tmp_path / "t.alloctrace", (tmp_path / "spools").iterdir()
    killed, ring = trace.read_bytes(), spool.read_bytes()

    finished = alloctrace.finish(trace)
    assert (finished.spool, finished.copied_from, spool.exists()) == (spool, None, False)
    assert_finished(trace)

    trace.write_bytes(killed)
    moved_spool = tmp_path / "moved"
    moved_spool.write_bytes(ring)
    assert "its spool is not there" in run_analyze(tmp_path, "finish", "t.alloctrace", status=2)
    assert len(alloctrace.load(trace, spool=moved_spool).live()) == 600
    run_analyze(tmp_path, "finish", "t.alloctrace", "--spool", "moved")
    assert not moved_spool.exists()
    assert_finished(trace)

    trace.write_bytes(killed)
    spool.write_bytes(ring)
    moved = trace.rename(tmp_path / "moved.alloctrace")
    out = run_analyze(tmp_path, "finish", "moved.alloctrace")
    assert f"`alloctrace finish moved.alloctrace --spool {spool}`" in " ".join(out.split()) and spool.exists()
    assert_finished(moved)
    assert alloctrace.finish(moved, spool=spool).was_ended and not spool.exists()


def test_adjacent_spool_is_removed_unless_trace_is_a_copy(run_program, tmp_path: Path) -> None:
    kill_recording(run_program)
    trace, spool, copy = (tmp_path / name for name in ("t.alloctrace", "t.alloctrace.spool", "copy.alloctrace"))
    killed, ring = trace.read_bytes(), spool.read_bytes()
    shutil.copy(trace, copy)
    for arguments in (["t.alloctrace"], ["leaks", "t.alloctrace", "--json"]):
        process = run_command(tmp_path, arguments)
        assert process.returncode == 0 and process.stderr.count("finish t.alloctrace") == 1

    out = run_analyze(tmp_path, "finish", "copy.alloctrace")
    assert f"The spool {spool} was kept: it belongs to {trace}, of which this trace is a copy." in " ".join(out.split())
    assert_finished(copy)
    assert alloctrace.finish(copy).was_ended and spool.exists()
    alloctrace.finish(trace)
    assert not spool.exists() and trace.read_bytes() == copy.read_bytes()
    assert run_command(tmp_path, ["t.alloctrace"]).stderr == ""

    trace.write_bytes(killed)
    spool.write_bytes(ring)
    folder = tmp_path / "moved"
    folder.mkdir()
    moved, moved_spool = trace.rename(folder / trace.name), spool.rename(folder / spool.name)
    finished = alloctrace.finish(moved)
    assert (finished.spool, finished.copied_from, moved_spool.exists()) == (moved_spool, None, False)
    assert_finished(moved)


def test_finish_raises_when_file_is_no_trace_or_absent(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no trace")
    for name, message in (("text", "not an alloctrace trace"), ("absent", "absent")):
        with pytest.raises(alloctrace.TraceError, match=message):
            alloctrace.finish(tmp_path / name)
    assert (tmp_path / "text").read_text() == "no trace"
