"""Order of imports and includes: both point one way, in Python and in C++. Calls that the reading half may use."""

from __future__ import annotations

import ast
import functools
import posixpath
import re
from importlib.util import resolve_name
from pathlib import Path

from running import ROOT

from pytorch_alloctrace.recording import building

PACKAGE = "pytorch_alloctrace"
LAYERS = ("errors", "sizes", "command", "parser", "reading", "converting", "analysis", "report", "trace", "ranks")
LAYERS += ("analyze",)
"""A part may import those before it, in any place: at the top, in a function, or for types alone."""
BESIDE = {
    "recording": ("recording", "objects", "errors", "sizes", "command", "parser"),
    "objects": ("objects", "errors"),
}
"""What runs in the program under trace imports nothing of these."""
COMPILED = {"_replay": ("reading", "converting", "analysis"), "_record": ("recording",), "_build_info": ("recording",)}
"""Which parts may import what is compiled, or written by the build. (Analyses take the sizes of torch's allocator from
the replay, which has the one copy of them.)"""
ANYTHING = ("__init__", "__main__", "notebook", "live", "callbacks", "pytest_plugin", "cost")
"""They put all together: a notebook, `tensors()`, `status()`, a recorded test, `alloctrace cost` record and read."""
EXCEPTIONS = {
    ("recording.session", "trace"),
    ("recording.session", "report.diagnosis"),
    ("objects.graphs", "recording.loading"),
    ("parser", "__init__"),
    ("analysis.ranks.summary_file", "__init__"),
}
"""`Session.load` and `diagnose` read what it recorded, and import that only when they are called. `holders()` and
`tensors()` load the recorder module when they are called: it reads autograd graphs. --version needs the version, and so
do summary files."""

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
BINDINGS = ("torch/graph_reading.h", "torch/graph_reading.cpp")
"""They call torch's Python bindings under torch's locks."""
OF_TORCH = re.compile(r"(c10|ATen|torch)/|cuda_runtime_api\.h")
OF_PYTHON = re.compile(r"Python\.h|frameobject\.h|internal/pycore|pybind11/")
STREAMS = ("fstream", "iomanip", "iostream", "locale", "ostream", "regex", "sstream")
"""Some compilers link libstdc++ statically: streams then crash in a process that has loaded another release of it."""
LINUX_ONLY = re.compile(
    r"<linux/[^>]*>|<asm/[^>]*>|<malloc\.h>|<sys/(?:eventfd|prctl|syscall|sysinfo|sendfile)\.h>"
    # On macOS, pthread_setname_np takes the name alone, and there is no other clock for semaphores.
    r"|pthread_setname_np|sem_clockwait|\b(?:posix_fallocate|fallocate|mremap|memfd_create|gettid|fdatasync|MAP_POPULATE|fstat64|open64)\b|/proc/"
)


def imported(name: str, text: str, known: set[str]) -> set[str]:
    """Return the modules of the package that a module imports, anywhere in it."""
    found = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            targets = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = resolve_name("." * node.level + (node.module or ""), f"{PACKAGE}.{name}".rpartition(".")[0])
            targets = [f"{base}.{alias.name}" for alias in node.names]
        else:
            continue
        for parts in (target.split(".")[1:] for target in targets if f"{target}.".startswith(f"{PACKAGE}.")):
            # A module, a package, or a name in one of them.
            candidates = (parts[:1], parts, [*parts, "__init__"], parts[:-1], [*parts[:-1], "__init__"])
            names = [".".join(candidate) for candidate in candidates]
            found.add(names[0] if names[0] in COMPILED else next(one for one in names[1:] if one in known))
    return found - {name}


@functools.cache
def import_graph() -> dict[str, set[str]]:
    """Return imports by the name of the module in the package: "reading.sites", "analysis.__init__", "trace"."""
    package = ROOT / PACKAGE
    texts = {
        ".".join(path.relative_to(package).with_suffix("").parts): path.read_text()
        for path in sorted(package.rglob("*.py"))
        if not path.name.startswith("_follow")
    }
    return {name: imported(name, text, {*texts}) for name, text in texts.items()}


def test_imports_point_one_way() -> None:
    wrong = []
    for name, targets in import_graph().items():
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
    assert wrong == []


def test_imports_have_no_circles() -> None:
    graph = import_graph()
    known: dict[str, list[str]] = {}

    def longest(name: str, above: tuple[str, ...]) -> list[str]:
        """Return the longest chain of imports from a module on."""
        assert name not in above, " -> ".join([*above[above.index(name) :], name])
        if name not in known:
            below = [target for target in graph.get(name, ()) if (name, target) not in EXCEPTIONS]
            chains = [longest(target, (*above, name)) for target in sorted(below)]
            known[name] = [name, *max(chains, key=len, default=[])]
        return known[name]

    assert max(len(longest(name, ())) for name in graph) > 5, "the imports were not found"


def test_includes_point_one_way() -> None:
    sources = ROOT / "csrc"
    wrong, included = [], 0
    for path in sorted([*sources.rglob("*.h"), *sources.rglob("*.cpp")]):
        file = path.relative_to(sources).as_posix()
        folder = next((folder for folder in INCLUDES if file.startswith(f"{folder}/")), None)
        if folder is None:
            wrong.append(f"{file} is in no folder that has rules")
            continue
        for quote, name in re.findall(r'^\s*#\s*include\s+(["<])([^">]+)[">]', path.read_text(), flags=re.M):
            included += 1
            if quote == '"':
                header = posixpath.normpath(posixpath.join(posixpath.dirname(file), name))
                if file != MODULE and not any(header.startswith(f"{allowed}/") for allowed in INCLUDES[folder]):
                    wrong.append(f"{file} includes {header}")
            elif (
                (OF_TORCH.match(name) and folder != TORCH)
                or (OF_PYTHON.match(name) and not folder.startswith("python/") and file not in BINDINGS)
                or name in STREAMS
            ):
                wrong.append(f"{file} includes <{name}>")
    assert wrong == [] and included > 1000


def read_with_headers(file: Path, read: set[Path]) -> None:
    """Add a file and the headers of this project that it includes, directly or indirectly, to `read`."""
    if file in read:
        return
    read.add(file)
    for name in re.findall(r'^#include "([^"]+)"', file.read_text(encoding="utf-8"), re.MULTILINE):
        header = (file.parent / name).resolve()
        if header.is_file():
            read_with_headers(header, read)


def test_the_reading_half_has_no_linux_calls() -> None:
    """Check that the reading half uses nothing that macOS lacks: the test machines have no macOS to compile on."""
    read: set[Path] = set()
    for group in building.reader(ROOT / "csrc", "").groups:
        for source in group.sources:
            read_with_headers(ROOT / "csrc" / source, read)
    names = {path.name for path in read}
    assert "trace_reader.cpp" in names and "spool_writer.cpp" not in names
    assert LINUX_ONLY.search((ROOT / "csrc/core/recording/spool_writer.cpp").read_text(encoding="utf-8"))
    calls_of = {path.name: sorted({*LINUX_ONLY.findall(path.read_text(encoding="utf-8"))}) for path in read}
    # Without /proc, the state of every process is unknown, and files have a name while they are made.
    linux_calls = {name: calls for name, calls in calls_of.items() if calls}
    assert linux_calls == {"process_identity.cpp": ["/proc/"], "unnamed_file.cpp": ["/proc/"]}
