"""Output in IPython and notebooks: %%alloctrace, diagnose(), and the verdict as HTML, in a real shell."""

from __future__ import annotations

import copy
import json
import re
from html import unescape
from pathlib import Path

import pytest

import pytorch_alloctrace as alloctrace
from pytorch_alloctrace.analysis.summary import Program
from pytorch_alloctrace.report.site_names import SiteNames

# Runs each cell as a user would, and writes its output to shown.json.
SHELL = r"""
import json, re
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output

shell = InteractiveShell.instance()
shown = []
for cell in {cells!r}:
    with capture_output() as captured:
        result = shell.run_cell(cell, store_history=True)
    shown.append({{
        "html": [output.data.get("text/html", "") for output in captured.outputs],
        "plain": [output.data.get("text/plain", "") for output in captured.outputs],
        "out": re.sub(r"\x1b\[[0-9;]*m", "", captured.stdout + captured.stderr),
        "ok": result.success,
    }})
with open("shown.json", "w") as file:
    json.dump(shown, file)
"""
LOAD = "%load_ext pytorch_alloctrace"
START = "import torch, pytorch_alloctrace as a\nsession = a.enable('t.alloctrace', devices=('cpu',))\n"
TRAIN = """\
%%alloctrace
import torch
kept = []
for _ in range(3):
    kept.append(torch.empty(5 << 20, dtype=torch.uint8))  # <b>&amp;</b>
"""


@pytest.fixture
def run_cells(run_program, tmp_path: Path):  # type: ignore[no-untyped-def]
    """Return a function that runs cells one after the other and returns the output of each."""

    def run(*cells: str) -> list[dict[str, object]]:
        run_program(SHELL.format(cells=list(cells)), timeout=600)
        return json.loads((tmp_path / "shown.json").read_text())

    return run


def text_of(html: str) -> str:
    """Return the text of a page, with single blanks."""
    return " ".join(unescape(re.sub(r"<[^>]*>", "", html)).split())


def test_cell_is_recorded_and_diagnosed_even_if_it_fails(run_cells, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    loaded, train, after, failing, invalid_path = run_cells(
        LOAD,
        TRAIN,
        "import pytorch_alloctrace as a; print(a.is_enabled(), len(kept))",
        TRAIN + "raise ValueError('on purpose')\n",
        "%%alloctrace nowhere/t.alloctrace\nran = True",
    )
    assert loaded["ok"] and train["ok"] and after["out"] == "False 3\n"

    [html] = train["html"]
    text = text_of(html)
    assert "cpu: peak 15.0 MiB allocated" in text
    assert "In[2]:5" in text, "cell number of the notebook"
    assert "kept.append(torch.empty(5 << 20, dtype=torch.uint8)) # <b>&amp;</b>" in text, "escaped"
    assert "<b>" not in html and "<script" not in html

    [output] = train["plain"]
    assert "In[2]:5" in output and "\x1b" not in output, "same text as in a terminal"
    assert list(tmp_path.glob("*.alloctrace*")) == [], "a temporary trace was not deleted"
    assert "ValueError: on purpose" in failing["out"] and "15.0 MiB" in text_of(failing["html"][0])
    assert "UsageError" in invalid_path["out"] and "Traceback" not in invalid_path["out"] and invalid_path["html"] == []


def test_cell_is_a_region_when_recording_is_running(run_cells, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    before = "early = torch.empty(40 << 20, dtype=torch.uint8)\ndel early\nlast = torch.empty(1 << 20)"
    _, _, train, other_path, second, nothing, full, ended, separate = run_cells(
        START + before,
        LOAD,
        TRAIN,
        "%%alloctrace other.alloctrace\nran = True",
        "%%alloctrace\nkept.clear()",
        "%%alloctrace\npass",
        "diagnosis = a.diagnose(); print(diagnosis)\ndisplay(diagnosis)",
        "%%alloctrace\nx = torch.empty(3 << 20, dtype=torch.uint8)\na.disable()",
        "%%alloctrace kept.alloctrace\ny = torch.empty(2 << 20, dtype=torch.uint8)",
    )
    text = text_of(train["html"][0])
    assert "PEAK cpu: 19.0 MiB allocated" in text, "live blocks count, freed blocks do not"
    assert "MORE cpu: +15.0 MiB requested (4.00 MiB to 19.0 MiB" in text
    assert "already recording to" in other_path["out"] and other_path["html"] == []
    assert "LESS cpu: -15.0 MiB" in text_of(second["html"][0])
    assert "It allocated nothing." in text_of(nothing["html"][0])
    for whole in (" ".join(full["out"].split()), text_of(full["html"][0])):
        assert "cpu: peak 40.0 MiB allocated" in whole
    assert "MORE cpu: +3.00 MiB" in text_of(ended["html"][0]), "the cell ends the recording"
    assert "cpu: peak 2.00 MiB allocated" in text_of(separate["html"][0])

    trace = alloctrace.load(tmp_path / "t.alloctrace")
    regions = trace.marks()
    assert trace.integrity.is_complete and regions["name"].tolist()[:3] == ["In[3]", "In[5]", "In[6]"]
    assert set(regions["kind"]) == {"region"}


def test_cell_magic_is_not_a_caller(run_cells, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    cell = """\
%%alloctrace
def grow():
    kept.append(torch.empty(5 << 20, dtype=torch.uint8))
    a.step()
for _ in range(21):
    grow()
"""
    _, _, grown, _, _ = run_cells(
        START + "kept = []", LOAD, cell, cell.replace("%%alloctrace", "%%time"), "a.disable()"
    )
    text = text_of(grown["html"][0])
    assert "LEAK In[3]:3" in text and "Called from: In[3]:6 grow()" in text and "run_cell_magic" not in text

    trace = alloctrace.load(tmp_path / "t.alloctrace")
    assert "run_cell_magic" not in str(trace.diagnose())

    callers = trace.usage("end", by="call", device="cpu")
    assert not callers["source"].fillna("").str.contains("run_cell_magic").any()
    assert callers[callers["function"] == "grow"]["live_bytes"].sum() == 2 * 21 * (5 << 20)

    # Complete stacks contain the magic.
    magic = [frame for stack in trace.live()["stack_id"].unique() for frame in trace.frames(stack)]
    assert any("run_cell_magic" in (frame.source or "") for frame in magic)


def test_trace_and_findings_show_the_verdict_as_html(run_program, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    run_program("""
        import torch, pytorch_alloctrace as alloctrace
        leaked = []
        with alloctrace.enable("t.alloctrace", devices=("cpu",)):
            for number in range(60):
                leaked.append(torch.empty(1 << 20, dtype=torch.uint8))  # "<script>"
                alloctrace.step()
    """)
    trace = alloctrace.load(tmp_path / "t.alloctrace")
    diagnosis = trace.diagnose()
    html = trace._repr_html_()
    assert html == diagnosis._repr_html_() and html.startswith("<pre style=")
    assert "<script>" not in html and "&lt;script&gt;" in html
    assert "LEAK program.py:6: +1.00 MiB per step" in text_of(html)
    assert str(diagnosis).startswith("program.py ")

    [leak] = diagnosis
    assert isinstance(diagnosis, tuple) and leak.kind == "leak" and copy.copy(diagnosis) == diagnosis

    text = text_of(leak._repr_html_())
    assert text.startswith(f"LEAK {leak.title}") and leak.sentences[0] in text and "GROWTH" not in text

    # Every colour is legible on a light and on a dark page.
    colours = set(re.findall(r"color: #([0-9a-f]{6})", html))
    assert len(colours) > 2
    for colour in colours:
        on_white, on_dark = 1.05 / (luminance(colour) + 0.05), (luminance(colour) + 0.05) / (luminance("111111") + 0.05)
        assert min(on_white, on_dark) >= 3.9, colour


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (0, 2, 4)]
    linear = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_import_loads_no_notebook_package(run_program) -> None:  # type: ignore[no-untyped-def]
    run_program(
        """
        import sys, pytorch_alloctrace
        pytorch_alloctrace.load_ipython_extension
        assert not {"IPython", "pandas", "rich", "torch"} & set(sys.modules)
        try:
            pytorch_alloctrace.diagnose()
        except pytorch_alloctrace.SessionError as error:
            assert "nothing is recorded" in str(error)
        else:
            raise AssertionError
    """,
        fresh=True,
    )


def test_program_of_notebook_kernel_is_named_notebook() -> None:
    other = "/home/user/my_launcher.py"
    launchers = ("/lib/site-packages/ipykernel_launcher.py", "-m ipykernel_launcher", "/lib/colab_kernel_launcher.py")

    for path in (*launchers, other):
        arguments = ("-f", "/run/kernel-1.json")
        program = Program(path, arguments, "", "2.11.0", "", "3.11.7", "host", 1, "0", ("cpu",), "python")
        name = f"{other} -f /run/kernel-1.json" if path == other else "notebook"
        assert SiteNames("").command(program) == name, path
