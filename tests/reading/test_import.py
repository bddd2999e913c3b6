"""What `import pytorch_alloctrace` loads: a program that records pays for nothing that reads."""

from __future__ import annotations

import importlib
import json

import pytest

import pytorch_alloctrace as alloctrace

PROGRAM = """
import json, sys
import torch
before = set(sys.modules)
import pytorch_alloctrace as alloctrace
alloctrace.enable("t.alloctrace", devices=("cpu",))
torch.empty(10)
alloctrace.step()
alloctrace.disable()
print(json.dumps(sorted(set(sys.modules) - before)))
"""
READING = ("trace", "reading", "analysis", "report", "analyze", "_replay")


def test_a_program_that_records_loads_nothing_that_reads(run_program) -> None:
    loaded = json.loads(run_program(PROGRAM, fresh=True).stdout)
    assert "pytorch_alloctrace.recording.session" in loaded
    unwanted = {"pandas", "rich", "matplotlib", *(f"pytorch_alloctrace.{name}" for name in READING)}
    found = {".".join(name.split(".")[: 2 if name.startswith("pytorch_alloctrace") else 1]) for name in loaded}
    # torch loads NumPy itself: of NumPy nothing more than it has.
    assert found & {*unwanted, "numpy"} == set()


def test_commands_that_judge_load_no_pandas(run_program) -> None:
    program = """
        import contextlib, io, sys
        import torch, pytorch_alloctrace as alloctrace
        with alloctrace.enable("t.alloctrace", devices=("cpu",)):
            kept = [torch.empty(1000 + number) for number in range(100)]
        from pytorch_alloctrace.__main__ import main
        for command in ([], ["leaks"], ["oom"], ["peak"]):
            with contextlib.redirect_stdout(io.StringIO()) as printed:
                main([*command, "t.alloctrace"])
            assert printed.getvalue(), command
        print("pandas" in sys.modules)
    """
    assert run_program(program, fresh=True).stdout == "False\n"


def test_every_public_name_is_there_and_listed() -> None:
    for name in alloctrace.__all__:
        assert name in dir(alloctrace) and getattr(alloctrace, name).__name__ == name
    fresh = importlib.reload(alloctrace)
    assert {*fresh.__all__} <= {*dir(fresh)}
    names: dict[str, object] = {}
    exec("from pytorch_alloctrace import *", names)
    assert {*fresh.__all__} <= {*names}
    with pytest.raises(AttributeError, match="colour"):
        _ = alloctrace.colour  # type: ignore[attr-defined]
