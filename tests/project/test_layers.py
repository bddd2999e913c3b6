"""Which part may import which: the data flows one way, and so do the imports, in Python and in C++."""

from __future__ import annotations

import ast
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from running import ROOT

PACKAGE = "pytorch_alloctrace"
LAYERS = ("errors", "command", "reading", "converting", "analysis", "report", "trace", "ranks", "analyze")
"""A part may import those before it, in any place: at the top, in a function, or for types alone."""
BESIDE = {"recording": ("recording", "objects", "errors", "command"), "objects": ("objects", "errors")}
"""What runs in the program under trace imports nothing of these."""
COMPILED = {"_replay": ("reading", "converting", "analysis"), "_record": ("recording",), "_build_info": ("recording",)}
"""Which parts may import what is compiled, or written by the build. (Analyses take the sizes of torch's allocator from
the replay, which has the one copy of them.)"""
ANYTHING = ("__init__", "__main__", "notebook", "live", "callbacks", "pytest_plugin", "cost")
"""They put all together: a notebook, `tensors()`, `status()`, a recorded test, `alloctrace cost` record and read."""
EXCEPTIONS = {
    ("recording.session", "trace"),
    ("analyze.command_line", "__init__"),
    ("analysis.ranks.kept", "__init__"),
}
"""`Session.load` reads what it recorded, and imports that only when it is called. --version needs the version, and so
does what is kept of a trace."""

CORE, SYSTEM, PYTHON, TORCH = "core", "system", "python/recording", "torch"
INCLUDES = {
    CORE: (CORE,),
    SYSTEM: (SYSTEM,),
    "python/reading": (CORE, "python/reading"),
    PYTHON: (CORE, SYSTEM, PYTHON),
    TORCH: (CORE, SYSTEM, PYTHON, TORCH),
}
"""Which folders of csrc may include headers of which."""
MODULE = "python/recording/record_module.cpp"
"""The module puts all together: it may include headers of ours from everywhere."""
OF_TORCH = re.compile(r"(c10|ATen|torch)/|cuda_runtime_api\.h")
OF_PYTHON = re.compile(r"Python\.h|frameobject\.h|internal/pycore|pybind11/")


def modules(package: Path) -> dict[str, ast.Module]:
    """By name without the package's own: "reading.sites", "analysis.__init__", "trace"."""
    found = {}
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package).with_suffix("").parts
        if not any(part.startswith("_follow") for part in parts):
            found[".".join(parts)] = ast.parse(path.read_text())
    return found


def imported(name: str, tree: ast.Module, known: set[str]) -> Iterator[str]:
    """The modules of the package that a module imports, anywhere in it."""

    def module_of(parts: list[str]) -> str:
        return ".".join(parts) if ".".join(parts) in known else ".".join([*parts, "__init__"])

    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == PACKAGE:
                    yield module_of(alias.name.split(".")[1:])
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                base = name.split(".")[: -node.level]
            elif (node.module or "").split(".")[0] == PACKAGE:
                base = []
            else:
                continue
            path = (node.module or "").split(".") if node.module else []
            base = [*base, *(path if node.level else path[1:])]
            for alias in node.names:
                parts = [*base, alias.name]
                if parts[0] in COMPILED:
                    yield parts[0]
                    continue
                is_module = ".".join(parts) in known or ".".join([*parts, "__init__"]) in known
                yield module_of(parts if is_module else base)


def import_graph(package: Path) -> dict[str, set[str]]:
    trees = modules(package)
    return {name: set(imported(name, tree, set(trees))) - {name} for name, tree in trees.items()}


def wrong_imports(package: Path) -> list[str]:
    wrong = []
    for name, targets in import_graph(package).items():
        part = name.split(".")[0]
        for target in sorted(targets):
            other = target.split(".")[0]
            if part in ANYTHING or name.endswith("__main__") or (name, target) in EXCEPTIONS:
                continue
            if other in COMPILED:
                allowed = part in COMPILED[other]
            elif part in BESIDE:
                allowed = other in BESIDE[part]
            else:
                allowed = other in LAYERS and LAYERS.index(other) <= LAYERS.index(part)
            if not allowed:
                wrong.append(f"{name} imports {target}")
    return wrong


def longest_path(package: Path) -> list[str]:
    """The longest chain of imports. Raises ValueError for a circle."""
    graph = import_graph(package)
    known: dict[str, list[str]] = {}

    def longest(name: str, above: tuple[str, ...]) -> list[str]:
        if name in above:
            raise ValueError(" -> ".join([*above[above.index(name) :], name]))
        if name not in known:
            below = [target for target in graph.get(name, ()) if (name, target) not in EXCEPTIONS]
            chains = [longest(target, (*above, name)) for target in sorted(below)]
            known[name] = [name, *max(chains, key=len, default=[])]
        return known[name]

    return max((longest(name, ()) for name in graph), key=len)


def wrong_includes(sources: Path) -> list[str]:
    wrong = []
    for path in sorted([*sources.rglob("*.h"), *sources.rglob("*.cpp")]):
        file = path.relative_to(sources).as_posix()
        folder = next((folder for folder in INCLUDES if file.startswith(f"{folder}/")), None)
        if folder is None:
            wrong.append(f"{file} is in no folder that has rules")
            continue
        for quote, name in re.findall(r'^\s*#\s*include\s+(["<])([^">]+)[">]', path.read_text(), flags=re.M):
            if quote == '"':
                target = (path.parent / name).resolve()
                if not target.is_relative_to(sources.resolve()):
                    wrong.append(f"{file} includes {name}")
                    continue
                header = target.relative_to(sources.resolve()).as_posix()
                if file != MODULE and not any(header.startswith(f"{allowed}/") for allowed in INCLUDES[folder]):
                    wrong.append(f"{file} includes {header}")
            elif (OF_TORCH.match(name) and folder != TORCH) or (
                OF_PYTHON.match(name) and not folder.startswith("python/")
            ):
                wrong.append(f"{file} includes <{name}>")
    return wrong


def test_imports_point_one_way() -> None:
    assert wrong_imports(ROOT / PACKAGE) == []


def test_there_are_no_circles() -> None:
    path = longest_path(ROOT / PACKAGE)
    print(f"the longest path of imports has {len(path)} modules: {' -> '.join(path)}")
    assert len(path) > 5, "the imports were not found"


def test_includes_point_one_way() -> None:
    assert wrong_includes(ROOT / "csrc") == []


@pytest.mark.parametrize(
    ("file", "line", "found"),
    [
        ("reading/sites.py", "from ..analysis.usage import peak", "reading.sites imports analysis.usage.peak"),
        ("reading/sites.py", "def f():\n    from ..trace import load", "reading.sites imports trace"),
        (
            "analysis/usage/peak.py",
            "if TYPE_CHECKING:\n    from ...report.units import size",
            "analysis.usage.peak imports report.units",
        ),
        ("report/units.py", "import pytorch_alloctrace.trace", "report.units imports trace"),
        ("report/units.py", "from .. import _replay", "report.units imports _replay"),
        ("recording/steps.py", "from ..reading.kinds import KINDS", "recording.steps imports reading.kinds"),
        ("recording/steps.py", "from ..trace import load", "recording.steps imports trace"),
        ("objects/walk.py", "from ..reading.kinds import KINDS", "objects.walk imports reading.kinds"),
        ("objects/walk.py", "from ..recording import steps", "objects.walk imports recording.steps"),
        ("reading/sites.py", "from ..objects import walk", "reading.sites imports objects.walk"),
        ("errors.py", "from .reading import kinds", "errors imports reading.kinds"),
        ("trace.py", "from pytorch_alloctrace.analyze import verb", "trace imports analyze.verb"),
        ("analysis/summary.py", "from .. import compare", "analysis.summary imports __init__"),
    ],
)
def test_an_import_that_is_turned_round_is_found(tmp_path: Path, file: str, line: str, found: str) -> None:
    shutil.copytree(ROOT / PACKAGE, tmp_path / PACKAGE, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    changed = tmp_path / PACKAGE / file
    changed.write_text(f"{changed.read_text()}\n{line}\n")
    assert wrong_imports(tmp_path / PACKAGE) == [found]


def test_a_circle_is_found(tmp_path: Path) -> None:
    shutil.copytree(ROOT / PACKAGE, tmp_path / PACKAGE, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    changed = tmp_path / PACKAGE / "reading/kinds.py"
    changed.write_text(f"{changed.read_text()}\ndef f():\n    from .recorded import RecordedTrace\n")
    with pytest.raises(ValueError, match=r"reading\.kinds -> reading\.recorded"):
        longest_path(tmp_path / PACKAGE)


@pytest.mark.parametrize(
    ("file", "line", "found"),
    [
        ("core/base/clock.cpp", '#include "../../system/nvml.h"', "core/base/clock.cpp includes system/nvml.h"),
        (
            "core/base/clock.cpp",
            "#include <c10/core/Allocator.h>",
            "core/base/clock.cpp includes <c10/core/Allocator.h>",
        ),
        ("system/nvml.cpp", '#include "../core/base/clock.h"', "system/nvml.cpp includes core/base/clock.h"),
        ("torch/cpu_allocator.cpp", "#include <Python.h>", "torch/cpu_allocator.cpp includes <Python.h>"),
        (
            "python/recording/session.h",
            '#include "../../torch/record_event.h"',
            "python/recording/session.h includes torch/record_event.h",
        ),
        (
            "python/recording/record_module.cpp",
            "#include <ATen/ATen.h>",
            "python/recording/record_module.cpp includes <ATen/ATen.h>",
        ),
    ],
)
def test_an_include_that_is_turned_round_is_found(tmp_path: Path, file: str, line: str, found: str) -> None:
    shutil.copytree(ROOT / "csrc", tmp_path / "csrc")
    changed = tmp_path / "csrc" / file
    changed.write_text(f"{line}\n{changed.read_text()}")
    assert wrong_includes(tmp_path / "csrc") == [found]
