"""The --json output of every command, validated with docs/json-schema.json, and docs/json.md, generated from it."""

from __future__ import annotations

import importlib.util
import json
import pickle
import re
import shutil
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from child_programs import program_with_child
from command_line import TRACE_COMMANDS, run_command
from made_up_ranks import Rank
from made_up_snapshots import MIB, DeviceHistory, snapshot, training
from running import ROOT, needs_cuda_build, run_python
from shared_recordings import record_once, record_report, run_source

from pytorch_alloctrace.analysis.free_memory.program_memory import CAUSES
from pytorch_alloctrace.analysis.leaks.leak import Doubt
from pytorch_alloctrace.cost import ALLOCTRACE, PLAIN
from pytorch_alloctrace.cost.measuring import Costs, Rounds
from pytorch_alloctrace.reading.names import ROLES_SHOWN

pytestmark = needs_cuda_build
SCHEMA = json.loads((ROOT / "docs/json-schema.json").read_text())
FORMATS = {reference["$ref"].rpartition("/")[2] for reference in SCHEMA["oneOf"]}
PROGRAM = """
import os, sys
from pathlib import Path
import torch
import pytorch_alloctrace as alloctrace

if not os.fork():
    alloctrace.enable("killed.alloctrace", devices="cpu")
    held = [torch.empty(100 + number) for number in range(300)]
    os.kill(os.getpid(), 9)
os.wait()

package = Path("site-packages/library").absolute()
package.mkdir(parents=True)
(package / "__init__.py").write_text("import torch\\ndef large():\\n    return torch.empty(1_000_000)\\n")
sys.path.insert(0, str(package.parent))
import library

kept = []
with alloctrace.enable("cpu.alloctrace", devices="cpu"):
    model = torch.nn.Linear(100, 100)
    weights = library.large()
    for epoch in range(2):
        with alloctrace.region("epoch"):
            for step in range(40):
                kept.append(torch.empty(5000))
                model(torch.ones(10, 100)).sum().backward()
                alloctrace.step()
"""
COSTLY_SETTINGS = """
import torch
import pytorch_alloctrace as alloctrace

torch.cuda.memory._set_allocator_settings("expandable_segments:True,max_split_size_mb:128")
answers = []
with alloctrace.enable("costly.alloctrace", devices=("cuda",)):
    for _ in range(30):
        scores, hidden, answer = (torch.empty(size << 20, dtype=torch.uint8, device="cuda") for size in (92, 46, 2))
        answers.append(answer)
        del scores, hidden
"""
TRACE_COMMAND_LINES = (
    "diagnose",
    "leaks",
    *("peak", "peak --tree", *(f"peak --by {by}" for by in ("stack", "file", "role", "age", "phase"))),
    *("sites", "sites --since 40", "sites --by role", "sites --by role --since 40"),
    *("segments", "blocks", "timeline --points 20", "timeline --points 20 --by role"),
    *(f"diff --since 40 --by {by}" for by in ("line", "role", "age", "phase")),
    *("fragmentation --at peak", "oom", "live", "verify", "holders"),
)
"""Commands that are run on report.alloctrace (two CUDA devices) and cpu.alloctrace."""
ALL_FRAMES = ("diagnose", "leaks", "peak", "peak --tree", "sites", "blocks", "diff --since 40")
"""Commands that are also run on cpu.alloctrace with --all-frames."""
COMMAND_LINES = (
    *(f"{command} {trace}.alloctrace" for command in TRACE_COMMAND_LINES for trace in ("report", "cpu")),
    *(f"{command} cpu.alloctrace --all-frames" for command in ALL_FRAMES),
    *(f"{command} report.alloctrace --all-frames" for command in ("diagnose", "oom")),
    "diagnose killed.alloctrace --all-frames",
    "diagnose family.alloctrace",
    *(f"diagnose child.alloctrace{option}" for option in ("", " --all-frames")),  # inconclusive growth
    "annotate report.alloctrace report_program.py",
    "peak cpu.alloctrace --by module",
    "peak report.alloctrace --since step:10",
    "peak report.alloctrace --at end",
    "leaks cpu.alloctrace --in epoch",
    *(f"diff cpu.alloctrace killed.alloctrace --by {by}" for by in ("line", "stack", "role", "age", "phase")),
    "diff cpu.alloctrace killed.alloctrace --all-frames",
    "what-if report.alloctrace --setting expandable_segments:True --memory 400MiB",
    "what-if costly.alloctrace",
    "fit report.alloctrace",
    "report cpu.alloctrace",
    "export cpu.alloctrace --to collapsed",
    "ranks ranks --no-summaries --jobs 1",
    *(f"{command} {trace}.alloctrace" for command in ("diagnose", "live", "verify") for trace in ("cut", "killed")),
    "compact report.alloctrace --until step:20 -o compacted.alloctrace",
    *(f"{command} compacted.alloctrace" for command in ("diagnose", "sites", "oom", "timeline --points 20 --by role")),
    *("convert begun.pickle", "blocks begun.alloctrace", "fragmentation begun.alloctrace --all-frames"),
    "holders begun.alloctrace",
    *("convert paused.pickle", "verify paused.alloctrace"),
    "finish killed.alloctrace",
    *("oom oom127.alloctrace", "sites --by role hang-812.alloctrace"),  # hostile: no cached, no allocated bytes
    "cost --device cpu",
)
"""Command lines in order: some read files that earlier ones write."""


GROWING = "kept = []\n    for _ in range(12):\n        kept.append(torch.zeros(1000))\n        alloctrace.step()"


def record_family(folder: Path) -> None:
    """Record a program with a child, each of which has a trace."""
    (folder / "program.py").write_text(program_with_child(GROWING))
    command = [sys.executable, "-m", "pytorch_alloctrace", "run", "--follow", "--output", "run.alloctrace"]
    run_python(folder, [*command, "program.py"], True, 600, {})
    [child] = folder.glob("run-*.alloctrace")
    child.rename(folder / "child.alloctrace")
    (folder / "run.alloctrace").rename(folder / "family.alloctrace")


def write_inputs(folder: Path) -> None:
    """Write the traces and snapshots that COMMAND_LINES name."""
    run_source(folder, PROGRAM)
    run_source(folder, COSTLY_SETTINGS, cuda=True)
    report = record_once("report", record_report) / "run.alloctrace"
    shutil.copy(report, folder / "report.alloctrace")
    for trace in record_once("family", record_family).glob("*.alloctrace"):
        shutil.copy(trace, folder)
    for name in ("oom127", "hang-812"):
        shutil.copy(ROOT / f"tests/corpus/hostile/{name}.alloctrace", folder)
    data = report.read_bytes()
    (folder / "cut.alloctrace").write_bytes(data[: len(data) * 2 // 3])
    mid_run, paused = DeviceHistory("2.11"), training("2.11")
    mid_run.allocate(MIB, 11)  # pins the segment; older than the entries left of the history
    for _ in range(9):
        mid_run.free(mid_run.allocate(MIB, 12))
    mid_run.oom(64 * MIB)
    del paused.history[5]
    del paused.history[-5:-3]
    (folder / "begun.pickle").write_bytes(pickle.dumps(snapshot("2.11", mid_run, last=10), protocol=4))
    (folder / "paused.pickle").write_bytes(pickle.dumps(snapshot("2.11", paused), protocol=4))
    (folder / "ranks").mkdir()
    faults: dict[int, dict[str, int]] = {1: {"leaks_from": 5}, 2: {"larger_from": 15}, 3: {"oom_at": 39}}
    for rank in (0, *range(1, 9), 10):
        Rank(rank, 11, **faults.get(rank, {})).write(folder / "ranks")
    (folder / "ranks/other.alloctrace").write_text("of something else")


def build_costs() -> Costs:
    figures = {"wall": 1.0, "own_cpu": 1.0, "other_cpu": 0.0, "process_cpu": 1.0}
    rounds = Rounds({PLAIN: [figures], ALLOCTRACE: [figures]})
    machine = {"processor": "x86_64", "cores": 2, "python": "3.11.7", "device": "cpu", "torch": "2.11.0"}
    return Costs("cpu", machine, rounds, {20: rounds}, rounds, 6.5)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("json")


@pytest.fixture(scope="module")
def documents(folder: Path) -> dict[str, Any]:
    """Return the parsed output of each of COMMAND_LINES."""
    write_inputs(folder)
    parsed = {}
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("pytorch_alloctrace.cost.command.loading.load_recorder", lambda: None)
        patched.setattr("pytorch_alloctrace.cost.command.measure", lambda device, seconds: build_costs())
        for case in COMMAND_LINES:
            run = run_command(folder, [*case.split(), "--json"])
            assert run.returncode == (1 if case.startswith("verify") and '"ok": false' in run.stdout else 0), (
                f"{case}: {run.stderr}"
            )
            assert run.stdout.isascii(), case
            parsed[case] = json.loads(run.stdout, parse_constant=lambda word, case=case: pytest.fail(f"{case}: {word}"))
    return parsed


def format_of(document: dict[str, Any]) -> str:
    return document["format"].removeprefix("pytorch_alloctrace.")


def values_in(value: Any) -> Iterator[Any]:
    yield value
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from values_in(inner)


def find_object_schemas(schema: Any) -> list[dict[str, Any]]:
    """Return every schema of an object with fixed fields."""
    return [each for each in values_in(schema) if isinstance(each, dict) and isinstance(each.get("properties"), dict)]


def test_schema_is_valid_and_describes_every_field() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    for schema in find_object_schemas(SCHEMA):
        assert schema["additionalProperties"] is False and set(schema["required"]) <= set(schema["properties"]), schema
        for name, field in schema["properties"].items():
            assert field.get("description", "").endswith("."), f"{name}: {field}"


def test_every_output_validates_against_its_format(documents: dict[str, Any]) -> None:
    validators = {
        name: jsonschema.Draft202012Validator({"$ref": f"#/$defs/{name}", "$defs": SCHEMA["$defs"]}) for name in FORMATS
    }

    errors = [
        f"{case}: {error.json_path}: {jsonschema.exceptions.best_match([error]).message}"
        for case, document in documents.items()
        for error in validators[format_of(document)].iter_errors(document)
    ]

    assert not errors, "\n".join(errors)


def test_every_command_has_a_format_and_every_format_has_rows(documents: dict[str, Any]) -> None:
    # serve prints no JSON: it runs until Ctrl-C.
    assert {case.split()[0] for case in documents} == {*TRACE_COMMANDS, "cost"} - {"serve"}
    assert {format_of(document) for document in documents.values()} == FORMATS
    with_rows = {format_of(document) for document in documents.values() if document.get("rows")}
    assert with_rows == {name for name in FORMATS if "rows" in SCHEMA["$defs"][name]["properties"]}


def test_every_field_of_the_schema_occurs_in_an_output(documents: dict[str, Any]) -> None:
    shapes = {frozenset(schema) for schema in values_in([*documents.values()]) if isinstance(schema, dict)}

    missing = []
    for schema in find_object_schemas(SCHEMA["$defs"]):
        required, allowed = set(schema["required"]), set(schema["properties"])
        occurring = set().union(*(shape for shape in shapes if required <= shape <= allowed))
        missing += [(sorted(required)[:4], sorted(allowed - occurring))] if allowed - occurring else []

    assert missing == []


def test_roles_of_schema_are_those_shown() -> None:
    assert SCHEMA["$defs"]["role"]["enum"] == [*ROLES_SHOWN]


def test_json_page_is_up_to_date() -> None:
    spec = importlib.util.spec_from_file_location("json_docs", ROOT / "tools/json_docs.py")
    json_docs = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(json_docs)

    assert json_docs.PAGE.read_text() == json_docs.page(), "out of date: run tools/json_docs"


def test_examples_of_json_page_run(
    documents: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    examples = re.findall(r"(?m)^    import json\n(?:(?:    .*)?\n)+", (ROOT / "docs/json.md").read_text())
    shutil.copy(ROOT / "docs/json-schema.json", tmp_path)
    (tmp_path / "leaks.json").write_text(json.dumps(documents["leaks cpu.alloctrace"]))
    monkeypatch.chdir(tmp_path)

    for example in examples:
        exec(textwrap.dedent(example), {})

    assert len(examples) == 2
    assert "program.py:26: 20,000 bytes per step" in capsys.readouterr().out


def test_schema_lists_every_doubt_and_every_cause_of_out_of_memory() -> None:
    fields = [schema["properties"] for schema in find_object_schemas(SCHEMA)]
    doubts = [set(field["doubt"]["enum"]) for field in fields if "doubt" in field]
    causes = [set(field["cause"]["enum"]) for field in fields if "enum" in field.get("cause", {})]
    assert doubts == [{doubt.value for doubt in Doubt}] and causes == [{*CAUSES, None}]
