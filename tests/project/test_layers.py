"""Order of imports in Python and of includes in C++, and system calls of the reading half."""

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
LAYERS = ("errors", "sizes", "gpus", "command", "parser", "reading", "converting", "analysis", "report", "trace")
LAYERS += ("ranks", "analyze")
"""A part may import only the parts before it, also in functions and for type checking."""
RECORDING_IMPORTS = {
    "recording": ("recording", "objects", "errors", "sizes", "command", "parser"),
    "objects": ("objects", "errors"),
}
"""Parts that run in the program under trace may import only these."""
COMPILED = {"_replay": ("reading", "converting", "analysis"), "_record": ("recording",), "_build_info": ("recording",)}
"""Parts that may import a module made by the build. (Analyses take the sizes of torch's allocator from the replay, the
only copy of them.)"""
UNRESTRICTED = ("__init__", "__main__", "notebook", "live", "callbacks", "pytest_plugin", "cost")
"""Parts that may import all others: they both record and read."""
EXCEPTIONS = {
    ("recording.session", "trace"),
    ("recording.session", "report.diagnosis"),
    ("objects.graphs", "recording.loading"),
    ("parser", "__init__"),
    ("analysis.ranks.summary_file", "__init__"),
}
"""`Session.load` and `diagnose` import the reading half when called. `holders()` and `tensors()` load the recorder
module, which reads autograd graphs, when called. --version and summary files need the version."""

CORE, SYSTEM, PYTHON, TORCH = "core", "system", "python/recording", "torch"
FORMAT = ("core/base", "core/format")
REPLAY = (*FORMAT, "core/reading", "core/replay")
INCLUDES = {
    "core/base": FORMAT[:1],
    "core/format": FORMAT,
    "core/reading": REPLAY[:3],
    "core/replay": REPLAY,
    "core/compaction": (*REPLAY, "core/compaction"),
    "core/follow": (*REPLAY, "core/follow"),
    "core/what_if": (*REPLAY, "core/what_if"),
    "core/writing": (*FORMAT, "core/writing"),
    "core/recording": (*FORMAT, "core/recording"),
    "core/bounding": (*REPLAY, "core/compaction", "core/recording", "core/bounding"),
    SYSTEM: (SYSTEM,),
    "python/reading": (CORE, "python/reading"),
    PYTHON: (CORE, SYSTEM, PYTHON),
    TORCH: (CORE, SYSTEM, PYTHON, TORCH),
}
"""Folders of csrc whose headers each folder may include."""
MODULE = "record_module.cpp"
"""Source that may include headers of all folders, and belongs to none: it defines the module."""
BINDINGS = ("torch/graph_reading.h", "torch/graph_reading.cpp")
"""Sources that call torch's Python bindings under torch's locks."""
OF_TORCH = re.compile(r"(c10|ATen|torch)/|cuda_runtime_api\.h")
OF_PYTHON = re.compile(r"Python\.h|frameobject\.h|internal/pycore|pybind11/")
STREAMS = ("fstream", "iomanip", "iostream", "locale", "ostream", "regex", "sstream")
"""Headers of streams, which crash where libstdc++ is linked statically and the process has loaded another release."""
LINUX_ONLY = re.compile(
    r"<linux/[^>]*>|<asm/[^>]*>|<malloc\.h>|<sys/(?:eventfd|prctl|syscall|sysinfo|sendfile)\.h>"
    # On macOS, pthread_setname_np takes only the name, and semaphores have only one clock.
    r"|pthread_setname_np|sem_clockwait|\b(?:posix_fallocate|fallocate|mremap|memfd_create|gettid|fdatasync|MAP_POPULATE|fstat64|open64)\b|/proc/"
)


def imported_modules(name: str, text: str, modules: set[str]) -> set[str]:
    """Return the modules of the package that a module imports, also in functions."""
    imports = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            targets = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = resolve_name("." * node.level + (node.module or ""), f"{PACKAGE}.{name}".rpartition(".")[0])
            targets = [f"{base}.{alias.name}" for alias in node.names]
        else:
            continue
        for parts in (target.split(".")[1:] for target in targets if f"{target}.".startswith(f"{PACKAGE}.")):
            # A module, a package, or a name in either.
            candidates = (parts[:1], parts, [*parts, "__init__"], parts[:-1], [*parts[:-1], "__init__"])
            names = [".".join(candidate) for candidate in candidates]
            imports.add(names[0] if names[0] in COMPILED else next(name for name in names[1:] if name in modules))
    return imports - {name}


@functools.cache
def import_graph() -> dict[str, set[str]]:
    """Return imports by the name of the module in the package: "reading.sites", "analysis.__init__", "trace"."""
    package = ROOT / PACKAGE
    texts = {
        ".".join(path.relative_to(package).with_suffix("").parts): path.read_text()
        for path in sorted(package.rglob("*.py"))
        if "_follow" not in path.parts
    }
    return {name: imported_modules(name, text, {*texts}) for name, text in texts.items()}


def test_imports_follow_order_of_layers() -> None:
    violations = []
    for name, targets in import_graph().items():
        part = name.split(".")[0]
        for target in sorted(targets):
            other = target.split(".")[0]
            if part in UNRESTRICTED or name.endswith("__main__") or (name, target) in EXCEPTIONS:
                continue
            if other in COMPILED:
                allowed = part in COMPILED[other]
            elif part in RECORDING_IMPORTS:
                allowed = other in RECORDING_IMPORTS[part]
            else:
                allowed = other in LAYERS and LAYERS.index(other) <= LAYERS.index(part)
            if not allowed:
                violations.append(f"{name} imports {target}")

    assert violations == []


def test_imports_have_no_cycles() -> None:
    graph = import_graph()
    chains_by_module: dict[str, list[str]] = {}

    def longest_chain(name: str, importers: tuple[str, ...]) -> list[str]:
        """Return the longest chain of imports that begins with a module."""
        assert name not in importers, " -> ".join([*importers[importers.index(name) :], name])
        if name not in chains_by_module:
            targets = [target for target in graph.get(name, ()) if (name, target) not in EXCEPTIONS]
            chains = [longest_chain(target, (*importers, name)) for target in sorted(targets)]
            chains_by_module[name] = [name, *max(chains, key=len, default=[])]
        return chains_by_module[name]

    assert max(len(longest_chain(name, ())) for name in graph) > 5, "no imports were parsed"


def test_includes_follow_order_of_folders() -> None:
    sources = ROOT / "csrc"
    violations, included = [], 0
    for path in sorted([*sources.rglob("*.h"), *sources.rglob("*.cpp")]):
        file = path.relative_to(sources).as_posix()
        if file == MODULE:
            continue
        folder = next((folder for folder in INCLUDES if file.startswith(f"{folder}/")), None)
        if folder is None:
            violations.append(f"{file} is in no folder that has rules")
            continue
        for quote, name in re.findall(r'^\s*#\s*include\s+(["<])([^">]+)[">]', path.read_text(), flags=re.M):
            included += 1
            if quote == '"':
                header = posixpath.normpath(posixpath.join(posixpath.dirname(file), name))
                if not any(header.startswith(f"{allowed}/") for allowed in INCLUDES[folder]):
                    violations.append(f"{file} includes {header}")
            elif (
                (OF_TORCH.match(name) and folder != TORCH)
                or (OF_PYTHON.match(name) and not folder.startswith("python/") and file not in BINDINGS)
                or name in STREAMS
            ):
                violations.append(f"{file} includes <{name}>")

    assert violations == [] and included > 1000


def read_with_headers(file: Path, read: set[Path]) -> None:
    """Add a file and the headers of this project that it includes, directly or indirectly, to `read`."""
    if file in read:
        return
    read.add(file)
    for name in re.findall(r'^#include "([^"]+)"', file.read_text(encoding="utf-8"), re.MULTILINE):
        header = (file.parent / name).resolve()
        if header.is_file():
            read_with_headers(header, read)


def test_reading_half_has_no_linux_calls() -> None:
    """Check for calls that macOS lacks, since no test machine has macOS to compile on."""
    read: set[Path] = set()
    for group in building.reader(ROOT / "csrc", "").groups:
        for source in group.sources:
            read_with_headers(ROOT / "csrc" / source, read)
    names = {path.name for path in read}
    assert "trace_reader.cpp" in names and "spool.cpp" not in names
    assert LINUX_ONLY.search((ROOT / "csrc/core/recording/spool.cpp").read_text(encoding="utf-8"))

    calls_of = {path.name: sorted({*LINUX_ONLY.findall(path.read_text(encoding="utf-8"))}) for path in read}
    # Without /proc, process states are unknown, and files have a name while they are written.
    linux_calls = {name: calls for name, calls in calls_of.items() if calls}
    assert linux_calls == {"process_identity.cpp": ["/proc/"], "unnamed_file.cpp": ["/proc/"]}
