"""Choice of the tests that a change may break, for tools/test --changed.

    python tests/support/affected_tests.py [--base REV]    prints paths, and reasons on stderr

Changed files are new or differ from REV, by default the commit that this clone began with. A changed file affects

- the tests of its subject: SUBJECTS maps path prefixes to tests;
- tests that import or name it, directly or through tests, programs and modules of its folder, but not through FACADES.

A changed file without such tests affects all. C++ has only subjects: nearly all tests run through nearly all of csrc.
"""

from __future__ import annotations

import argparse
import ast
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = "pytorch_alloctrace"
FACADES = {f"{PACKAGE}/{name}.py" for name in ("__init__", "__main__", "trace", "ranks", "parser")}
ALL = ("",)
READING = ("format", "reading", "replay")
RECORDING = ("recording", "objects")
TOOLS_WITHOUT_TESTS = (
    *("api_docs", "bench", "check_releases", "checks", "demo", "fuzz", "gpu_check", "json_docs", "lint", "mutants"),
    *("picture", "release_tests", "test", "web"),
)
"""Tools that affect only the tests that name them."""
SUBJECTS: Mapping[str, tuple[str, ...]] = {
    ".ci/": (),
    ".clang-format": (),
    ".gitattributes": (),
    ".gitignore": (),
    "DEVELOPING.md": ("project/test_site.py",),
    "LICENSE": ("project/test_install.py",),
    "MANIFEST.in": ("project/test_install.py",),
    "README.md": ("project/test_site.py", "project/test_api_docs.py"),
    "benchmarks/": (),
    "benchmarks/results/gpu": ("recording/test_gpu_sequences.py",),
    "csrc/core/base/": (*READING, *RECORDING, "converting"),
    "csrc/core/bounding/": ("reading/test_compaction.py", "recording/test_size_limit.py"),
    "csrc/core/compaction/": ("reading/test_compaction.py", "recording/test_size_limit.py"),
    "csrc/core/follow/": ("reading", "recording/test_status.py"),
    "csrc/core/format/": (*READING, *RECORDING),
    "csrc/core/reading/": (*READING, "recording/test_kill.py"),
    "csrc/core/recording/": ("format", "recording"),
    "csrc/core/replay/": (*READING, "analysis", "recording/test_roles_recorded.py", "recording/test_status.py"),
    "csrc/core/what_if/": ("what_if",),
    "csrc/core/writing/": ("converting",),
    "csrc/python/reading/": (*READING, "converting", "what_if"),
    "csrc/python/recording/": RECORDING,
    "csrc/record_module.cpp": RECORDING,
    "csrc/system/": RECORDING,
    "csrc/torch/": (*RECORDING, "replay", "analysis/test_roles.py"),
    "docs/": ("project/test_site.py", "project/test_api_docs.py"),
    "examples/": ("project/test_examples.py",),
    "mkdocs.yml": ("project/test_site.py",),
    "pyproject.toml": ALL,
    f"{PACKAGE}/__init__.py": ALL,
    f"{PACKAGE}/__main__.py": ("command_line", "recording/test_run.py", "recording/test_cost.py"),
    f"{PACKAGE}/analysis/": ("analysis",),
    f"{PACKAGE}/analysis/ranks/": ("ranks",),
    f"{PACKAGE}/analysis/what_if/": ("what_if",),
    f"{PACKAGE}/analyze/": ("command_line",),
    f"{PACKAGE}/callbacks/": ("recording/test_status_loggers.py", "recording/test_steps.py"),
    f"{PACKAGE}/command.py": ("command_line",),
    f"{PACKAGE}/converting/": ("converting",),
    f"{PACKAGE}/cost/": ("recording/test_cost.py",),
    f"{PACKAGE}/errors.py": ALL,
    f"{PACKAGE}/live/": ("objects", "recording/test_status.py"),
    f"{PACKAGE}/notebook.py": ("report/test_notebook.py",),
    f"{PACKAGE}/objects/": (
        "objects",
        *(f"recording/test_{name}.py" for name in ("object_scans", "oom_report", "scan_interference")),
    ),
    f"{PACKAGE}/parser.py": ("command_line", "recording/test_run.py", "recording/test_cost.py"),
    f"{PACKAGE}/pytest_plugin.py": ("recording/test_pytest_plugin.py",),
    f"{PACKAGE}/ranks.py": ("ranks",),
    f"{PACKAGE}/reading/": READING,
    f"{PACKAGE}/recording/": ("recording",),
    f"{PACKAGE}/report/": ("report", "command_line/test_screens.py", "command_line/test_command_outputs.py"),
    f"{PACKAGE}/report/page/": ("report/test_report_page.py", "report/test_report_browser.py", "report/test_serve.py"),
    f"{PACKAGE}/report/web/": ("report/test_report_page.py", "report/test_report_browser.py"),
    f"{PACKAGE}/trace.py": ("analysis", "replay", "reading", "report"),
    "setup.py": ("project",),
    "tests/conftest.py": ALL,
    "tests/support/affected_tests.py": ("project/test_selection.py",),
    "tests/command_line/screens/": ("command_line/test_screens.py",),
    "tests/corpus/": ("analysis/test_third_party.py", "ranks/test_ranks_third_party.py", "format"),
    **dict.fromkeys((f"tools/{name}" for name in TOOLS_WITHOUT_TESTS), ()),
    "tools/environment": ALL,
    "tools/simcuda/": ("simcuda", "recording"),
}
"""Tests by path prefix. The longest prefix applies."""
TESTS_OF_SOURCES = ("tests/project/test_layers.py", "tests/project/test_mutants.py")
"""Tests that read all sources."""


def is_test(path: str) -> bool:
    return re.fullmatch(r"tests/\w+/test_\w+\.py", path) is not None


def find_subject_tests(path: str) -> tuple[str, ...] | None:
    prefixes = [prefix for prefix in SUBJECTS if path.startswith(prefix)]
    return SUBJECTS[max(prefixes, key=len)] if prefixes else None


def direct_dependencies(path: str, files: Mapping[str, str]) -> set[str]:
    """Return the files that a file imports or names."""
    text = files[path]
    dependencies = set()
    if path.endswith(".py"):
        for module in imported_modules(path, text):
            dependencies |= {*module_files(module), f"{subject_of(path)}/{module.partition('.')[0]}.py"}
    if path.startswith("tests/"):
        # Also in programs and commands inside strings.
        for module in re.findall(rf"\b{PACKAGE}(?:\.\w+)+", text):
            dependencies |= module_files(module)
        names = {*re.findall(r"(?:[\"'/]|\b(?:from|import|-m) |, )+([\w-]+)", text)}
        dependencies |= {file for file in files if file.startswith("tests/support/") and Path(file).stem in names}
        dependencies |= files.keys() & {*re.findall(r"[\w.-]+(?:/[\w.-]+)+", text)}
    else:
        dependencies = {other for other in dependencies if subject_of(other) == subject_of(path)}
    return (dependencies & files.keys()) - {path}


def module_files(module: str) -> set[str]:
    """Return the files that may define a dotted name: a module or package for each of its prefixes."""
    parts = module.split(".")
    names = ["/".join(parts[:end]) for end in range(1, len(parts) + 1)]
    return {file for name in names for file in (f"{name}.py", f"{name}/__init__.py", f"tests/support/{name}.py")}


def subject_of(path: str) -> str:
    return "/".join(path.split("/")[:2])


def imported_modules(path: str, text: str) -> Iterator[str]:
    """Yield the modules that a file imports at run time, and the names that it imports from them."""
    folders = path.split("/")[:-1]
    nodes: list[ast.AST] = [ast.parse(text)]
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            start = folders[: len(folders) - node.level + 1] if node.level else []
            module = ".".join([*start, *filter(None, [node.module])])
            yield from (f"{module}.{alias.name}" for alias in node.names)
        elif not (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)):
            statements = (ast.stmt, ast.excepthandler, ast.match_case)
            nodes += (child for child in ast.iter_child_nodes(node) if isinstance(child, statements))


def files_reached_by_tests(files: Mapping[str, str]) -> dict[str, set[str]]:
    """Return all files that each test imports or names, directly or not. files: code by path, "" for other files."""
    graph = {path: set() if path in FACADES else direct_dependencies(path, files) for path in files}
    return {test: reachable(graph, test) for test in sorted(filter(is_test, files))}


def affected_tests(changed: Iterable[str], reached: Mapping[str, set[str]]) -> tuple[dict[str, str], list[str]]:
    """Return a changed file for each affected test, and the changed files that affect all tests.

    Args:
        changed: paths, from the root.
        reached: what `files_reached_by_tests` returns.
    """
    tests = [*reached]
    affected: dict[str, str] = {}
    affects_all = []
    for path in changed:
        subject = find_subject_tests(path)
        path_tests = [
            test
            for test in tests
            if path in reached[test] or any(test.startswith(f"tests/{part}") for part in subject or ())
        ]
        if subject == ALL or (subject is None and not path_tests and not is_test(path)):
            affects_all.append(path)
            path_tests = tests
        elif path.startswith((f"{PACKAGE}/", "csrc/")):
            path_tests += TESTS_OF_SOURCES
        affected |= {test: path for test in path_tests if test not in affected}
    return affected, affects_all


def reachable(graph: Mapping[str, set[str]], start: str) -> set[str]:
    reached, pending = {start}, [start]
    while pending:
        unvisited = graph[pending.pop()] - reached
        reached |= unvisited
        pending += unvisited
    return reached


def changed_files(base: str) -> list[str]:
    different = git("diff", "--name-only", "--no-renames", base, "--")
    return sorted({*different, *git("ls-files", "--others", "--exclude-standard")})


def git(*arguments: str) -> list[str]:
    command = ["git", "-c", "core.quotePath=false", *arguments]
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.splitlines()


def read_files() -> dict[str, str]:
    names = [name for name in git("ls-files", "--cached", "--others", "--exclude-standard") if (ROOT / name).is_file()]
    code = {name for name in names if re.fullmatch(rf"({PACKAGE}|tests)/.*\.(py|c|cpp|h)", name)}
    return {name: (ROOT / name).read_text() if name in code else "" for name in names}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--base")
    base = parser.parse_args().base or next(reversed(git("reflog", "show", "--format=%H", "HEAD")), None)
    if base is None:
        parser.error("the reflog does not contain this clone's first commit: pass --base REV")
    changed, files = changed_files(base), read_files()
    affected, affects_all = affected_tests(changed, files_reached_by_tests(files))
    reason = f", all because of {', '.join(affects_all)}" if affects_all else ""
    since = git("log", "-1", "--format=%h of %cs", base)[0]
    counts = f"{len(changed)} files affect {len(affected)} files of tests{reason}"
    print(f"changed: since {since}, {counts}", file=sys.stderr)
    groups = {group for test in affected for group in re.findall(r'mark\.slow\("(\w+)"\)', files[test])}
    if groups:
        commands = "; ".join(f"tools/test --slow={group}" for group in sorted(groups))
        print(f"changed: run their slow tests with: {commands}", file=sys.stderr)
    print(*affected, sep="\n")


if __name__ == "__main__":
    main()
