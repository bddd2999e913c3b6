"""Source lines in the trace, also when reading files is slow or hangs, as on network file systems."""

from __future__ import annotations

from pathlib import Path

import core_probe
import pytest

import pytorch_alloctrace as alloctrace

MODEL = "import torch\ndef layer(): return torch.empty(10)\n"


@pytest.fixture
def slow_home(tmp_path: Path) -> dict[str, str]:
    """Return an environment in which the recorder's threads need SLOW_MS to open a file of tmp_path/home."""
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "model.py").write_text(MODEL)
    return {"LD_PRELOAD": str(core_probe.build_shim("faulty_files.c")), "SLOW_FOLDER": str(tmp_path / "home")}


def test_no_event_is_lost_when_source_files_hang(run_program, tmp_path: Path, slow_home: dict[str, str]) -> None:
    """Record more events than the ring's capacity after a file that hangs, then fork and exit."""
    process = run_program(
        """
        import os, sys, torch
        sys.path.insert(0, "home")
        import pytorch_alloctrace as alloctrace
        from model import layer
        with alloctrace.enable("t.alloctrace") as session:
            layer()
            session.flush()
            for _ in range(200_000): torch.empty(10)
            if os.fork() == 0: sys.exit(0)
            assert os.wait()[1] == 0
        print("ended")
        """,
        SLOW_MS="86400000",
        timeout=100,
        **slow_home,
    )  # fmt: skip

    assert process.stdout == "ended\n"
    trace = alloctrace.load(tmp_path / "t.alloctrace")
    assert trace.integrity.lost == 0 and trace.integrity.state == "complete"
    events = trace.events(kinds=["alloc"])
    assert len(events) == 200_001
    inner, outer = trace.frames(events["stack_id"].iloc[0])[:2]
    assert inner.filename.endswith("model.py") and inner.source is None
    assert outer.filename.endswith("program.py") and outer.source == "    layer()"


def test_source_lines_are_complete_when_files_are_slow(run_program, tmp_path: Path, slow_home: dict[str, str]) -> None:
    process = run_program(
        """
        import sys, torch
        sys.path.insert(0, "home")
        import pytorch_alloctrace as alloctrace
        from model import layer
        with alloctrace.enable("flushed.alloctrace") as session:
            layer()
            flushed = session.load()
            events = flushed.events(kinds=["alloc"])
            print(flushed.frames(events["stack_id"].iloc[0])[0].source)
        alloctrace.enable("ended.alloctrace")
        layer()
        """,
        SLOW_MS="300",
        fresh=True, **slow_home)  # fmt: skip

    line = MODEL.splitlines()[1]
    assert process.stdout == line + "\n"
    trace = alloctrace.load(tmp_path / "ended.alloctrace")
    assert trace.frames(trace.events(kinds=["alloc"])["stack_id"].iloc[0])[0].source == line
