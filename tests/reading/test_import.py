"""Modules loaded by `import pytorch_alloctrace`: a recording program loads no module of the reading half."""

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


def test_recording_program_loads_no_reading_module(run_program) -> None:
    loaded = json.loads(run_program(PROGRAM, fresh=True).stdout)
    assert "pytorch_alloctrace.recording.session" in loaded

    unwanted = {"pandas", "rich", "matplotlib", *(f"pytorch_alloctrace.{name}" for name in READING)}
    packages = {".".join(name.split(".")[: 2 if name.startswith("pytorch_alloctrace") else 1]) for name in loaded}
    # torch itself loads NumPy: no further module of NumPy may be loaded.
    assert packages & {*unwanted, "numpy"} == set()


def test_diagnostic_commands_load_no_pandas(run_program) -> None:
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


def test_public_names_are_defined_and_listed() -> None:
    for name in alloctrace.__all__:
        assert name in dir(alloctrace) and getattr(alloctrace, name).__name__ == name

    fresh = importlib.reload(alloctrace)
    assert {*fresh.__all__} <= {*dir(fresh)}

    names: dict[str, object] = {}
    exec("from pytorch_alloctrace import *", names)
    assert {*fresh.__all__} <= {*names}
    with pytest.raises(AttributeError, match="colour"):
        _ = alloctrace.colour  # type: ignore[attr-defined]
