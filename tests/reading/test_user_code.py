"""Files that count as the user's code, names of their lines, and lines of packages that they call."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from textwrap import dedent

import pytest
from marked_programs import line_with, run_analyze
from running import program_environment, run_python

import pytorch_alloctrace as alloctrace
from pytorch_alloctrace.reading.source_code import UserCode, package_of
from pytorch_alloctrace.report import units

PROGRAM = """
import linecache, sys, types
import torch
import pytorch_alloctrace as alloctrace

class Cells:  # as IPython's compiler of cells, which knows the number of each
    def format_code_name(self, name):
        return ("Cell", "In[7]") if name == "/tmp/ipykernel_12/345.py" else None

if "with_ipython" in sys.argv:
    shell = types.SimpleNamespace(compile=Cells())
    sys.modules["IPython"] = types.SimpleNamespace(get_ipython=lambda: shell)

def run_in(filename, source):
    linecache.cache[filename] = (len(source), None, source.splitlines(True), filename)
    names = {"torch": torch}
    exec(compile(source, filename, "exec"), names)
    return names

alloctrace.enable("run.alloctrace")
import library
model = library.Model()
kept = model(30_000)
kept += run_in("/tmp/ipykernel_12/345.py", "\\n\\nkept = [torch.empty(1000)]")["kept"]
kept += run_in("/tmp/ipykernel_12/678.py", "kept = [torch.empty(1001)]")["kept"]
kept += run_in("<ipython-input-3-0123456789ab>", "kept = [torch.empty(1002)]")["kept"]
generated = run_in("/tmp/torchinductor_user/ab/cab.py", "def call():\\n    return [torch.empty(1003)]")
kept += generated["call"]()  # the line that calls what torch.compile made
traced = torch.fx.symbolic_trace(lambda x: x + 1)
kept.append(traced(kept[0]))  # the line that calls what torch.fx made

class Outer:
    class Inner:
        def make(self):
            return [torch.empty(1004) for _ in range(1)]

kept += Outer.Inner().make()
alloctrace.disable()
"""
LIBRARY = {
    "__init__.py": "from .model import Model\n",
    "model.py": """
        import torch
        from . import layers
        class Model(torch.nn.Module):
            def forward(self, n):
                return [layers.big(n), layers.big(n), layers.small(n)]
        """,
    "layers.py": """
        import torch
        def big(n):
            return torch.empty(4 * n)
        def small(n):
            return torch.empty(n)
        """,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Record run.alloctrace, bare.alloctrace without IPython, and other.alloctrace without the package."""
    folder = tmp_path_factory.mktemp("user_code")
    package = folder / "site-packages" / "library"
    package.mkdir(parents=True)
    for name, text in LIBRARY.items():
        (package / name).write_text(dedent(text))
    (folder / "program.py").write_text(PROGRAM)
    run_with_library(folder, "program.py")
    (folder / "run.alloctrace").rename(folder / "bare.alloctrace")
    run_with_library(folder, "program.py", "with_ipython")
    (folder / "other.py").write_text(
        "import torch, pytorch_alloctrace as alloctrace\nalloctrace.enable('other.alloctrace')\nkept = torch.empty(9)\n"
    )
    run_with_library(folder, "other.py")
    return folder


def run_with_library(folder: Path, *arguments: str, fresh: bool = False) -> None:
    """Run a program that can import modules of the folder and the package that is installed there."""
    path = os.pathsep.join([f"{folder / 'site-packages'}", f"{folder}", program_environment()["PYTHONPATH"]])
    run_python(folder, [sys.executable, *arguments], True, 600, {"PYTHONPATH": path}, fresh)


def read_sites(trace: alloctrace.Trace) -> dict[int, tuple[str, int, str]]:
    """Return file, line and function of each site on the CPU, by its bytes."""
    return {
        row.live_bytes: (Path(row.filename).name, row.line, row.function)
        for row in trace.usage(device="cpu").itertuples()
    }


def test_lines_of_cells_and_generated_code_are_named(folder: Path) -> None:
    """Cells have IPython's number or a running count. Generated code has the line that calls it."""
    trace = alloctrace.load(folder / "run.alloctrace")
    places = read_sites(trace)
    assert places[4000] == ("In[7]", 3, "<module>") and places[4008] == ("In[3]", 1, "<module>")
    assert trace.usage(device="cpu").query("live_bytes == 4000")["source"].item() == "kept = [torch.empty(1000)]"

    bare = read_sites(alloctrace.load(folder / "bare.alloctrace"))
    assert [bare[4000][0], bare[4004][0], bare[4008][0]] == ["cell#1", "cell#2", "In[3]"]
    for size, comment in ((4012, "what torch.compile made"), (480_000, "what torch.fx made")):
        assert places[size][:2] == ("program.py", line_with(comment, PROGRAM)), places

    # Functions have qualified names.
    expected = "Outer.Inner.make.<locals>.<listcomp>" if sys.version_info < (3, 12) else "Outer.Inner.make"
    assert places[4016][2] == (expected if sys.version_info >= (3, 11) else "<listcomp>")


def test_lines_of_package_are_shown_below_calling_line(folder: Path) -> None:
    for command in (("diagnose", "--verbose"), ("sites",)):
        text = run_analyze(folder, *command, "run.alloctrace", "--device", "cpu", "--width", "120")
        inner, other, note = text.partition("kept = model(30_000)")[2].splitlines()[1:4]
        assert "938 KiB" in inner and "library/layers.py:4 in big" in inner, text
        assert "117 KiB" in other and "library/layers.py:6 in small" in other, text
        assert "--user-path library" in note, text

    data = json.loads(run_analyze(folder, "peak", "run.alloctrace", "--device", "cpu", "--json"))
    package_lines = data["composition"][0]["inside"]
    assert (package_lines["package"], package_lines["bytes"]) == ("library", 9 * 4 * 30_000)
    assert [line["function"] for line in package_lines["lines"]] == ["big", "small"]


def test_freed_memory_of_package_is_shown_below_calling_line(folder: Path) -> None:
    """In a training run the activations of a library's model are churn, and none is live at the end."""
    (folder / "train.py").write_text(
        dedent("""
            import torch, pytorch_alloctrace as alloctrace
            from library import Model
            with alloctrace.enable("train.alloctrace", devices=("cpu",)), alloctrace.region("training"):
                model = Model()
                for _ in range(5):
                    model(30_000)
                    alloctrace.step()
        """)
    )
    run_with_library(folder, "train.py")
    for options, times_by_title in (((), {"CHURN": 1}), (("--in", "training"), {"ALLOCATED": 5, "CHURN": 1})):
        text = run_analyze(folder, "sites", "train.alloctrace", "--width", "120", *options)
        sections = {section.split()[0]: section for section in text.split("\n\n")}
        for title, times in times_by_title.items():
            _, _, after = sections[title].partition("model(30_000)\n")
            inner, other = after.splitlines()[:2]
            assert units.size(times * 2 * 480_000) in inner and "library/layers.py:4 in big" in inner, text
            assert units.size(times * 120_000) in other and "library/layers.py:6 in small" in other, text
        assert text.count("--user-path library shows") == 1  # below the first table
        assert "--user-path library shows" in sections[next(iter(times_by_title))]

    text = run_analyze(folder, "sites", "train.alloctrace", "--user-path", "library")
    assert "library/layers.py:4 in big" in text and "--user-path library shows" not in text


def test_user_path_accepts_package_module_or_path(folder: Path) -> None:
    assert read_sites(alloctrace.load(folder / "run.alloctrace"))[9 * 120_000][0] == "program.py"
    # A relative path begins at the program's working directory, wherever the trace is read.
    for name in ("library", "library.layers", "site-packages/library", "site-packages/library/layers.py"):
        sites = read_sites(alloctrace.load(folder / "run.alloctrace", user_paths=[name]))
        assert sites[8 * 120_000] == ("layers.py", 4, "big"), name

    text = run_analyze(folder.parent, "peak", str(folder / "run.alloctrace"), "--user-path", name)
    assert "library/layers.py:4 in big" in text and "--user-path library shows" not in text


def test_user_path_without_file_raises_user_path_error(folder: Path) -> None:
    with pytest.raises(alloctrace.UserPathError, match=r"'libra'.*library") as error_info:
        alloctrace.load(folder / "run.alloctrace", user_paths=["library", "libra"])
    assert error_info.value.paths == ("libra",)

    error = run_analyze(folder, "run.alloctrace", "--user-path", "libra", status=2)
    assert error.count("\n") == 1 and "library" in error

    # One of two traces may lack the package.
    traces = ("diff", "other.alloctrace", "run.alloctrace", "--device", "cpu", "--user-path")
    assert "library/layers.py" in run_analyze(folder, *traces, "library")
    assert "libra'" in run_analyze(folder, *traces, "libra", status=2)


@pytest.mark.parametrize(
    ("filename", "is_users"),
    [
        ("/home/me/train.py", True),
        ("/home/me/torchinductor.py", True),
        ("/tmp/torchinductor_me/7c/c7c.py", False),
        ("/home/me/.triton/cache/ab/kernel.py", False),
        ("<eval_with_key>.12", False),
        ("<frozen importlib._bootstrap>", False),
        ("<string>", True),
        ("<stdin>", True),
        ("/env/lib/python3.11/site-packages/einops/einops.py", False),
        ("", False),
    ],
)
def test_user_file_is_recognised_by_path(filename: str, is_users: bool) -> None:
    assert UserCode(["/env/lib/"]).is_user_file(filename) is is_users


def test_user_path_does_not_match_longer_folder_name() -> None:
    code = UserCode(["/env/lib/"], ["/env/lib/mine"])
    assert code.is_user_file("/env/lib/mine/train.py") and not code.is_user_file("/env/lib/mined/train.py")


def test_package_has_its_import_name() -> None:
    assert package_of("/env/lib/python3.11/site-packages/einops/einops.py") == "einops"
    assert package_of("/env/lib/python3.11/site-packages/six.py") == "six"
    assert package_of("/home/me/train.py") == ""


def test_entry_point_script_is_not_a_caller(folder: Path) -> None:
    """pip writes such a script for a command. A user's program may also be in a folder named bin."""
    (folder / "bin").mkdir(exist_ok=True)
    (folder / "bin" / "launch").write_text("import sys\nfrom launched import main\nsys.exit(main())\n")
    (folder / "bin" / "own").write_text("from launched import main\nmain()\n")
    (folder / "launched.py").write_text(
        "import sys, torch, pytorch_alloctrace as alloctrace\n"
        "def main():\n"
        "    with alloctrace.enable(sys.argv[1] + '.alloctrace', devices=('cpu',), overwrite=True):\n"
        "        kept = torch.empty(1000)\n"
    )
    callers = {}

    for name in ("launch", "own"):
        run_with_library(folder, f"bin/{name}", name, fresh=True)
        trace = alloctrace.load(folder / f"{name}.alloctrace")
        callers[name] = [Path(file).name for file in trace.usage("peak", by="call")["filename"]]
        assert len(trace.frames(int(trace.live("peak")["stack_id"].iloc[0]))) == 2
    assert callers == {"launch": ["launched.py"], "own": ["own", "launched.py"]}
