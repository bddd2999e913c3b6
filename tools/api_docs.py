"""Generator of docs/api.md: every public name with its signature and the first paragraph of its docstring.

tests/project/test_api_docs.py fails if the page is out of date; then run tools/api_docs, or without a build
`PYTHONPATH=. .venv/bin/python tools/api_docs.py`.
"""

from __future__ import annotations

import ast
import builtins
import functools
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytorch_alloctrace as alloctrace
from pytorch_alloctrace._replay import AllocatorSettings
from pytorch_alloctrace.analysis.free_memory.allocator import MemoryLimit
from pytorch_alloctrace.analysis.free_memory.autocast_cache import AutocastMemory
from pytorch_alloctrace.analysis.free_memory.failed_allocations import FailedAllocation
from pytorch_alloctrace.analysis.free_memory.forwards import Forwards
from pytorch_alloctrace.analysis.free_memory.fragmentation import Fragmentation
from pytorch_alloctrace.analysis.free_memory.oom import OutOfMemory
from pytorch_alloctrace.analysis.free_memory.program_memory import (
    FormerTraining,
    GrowingRequests,
    LargeParameter,
    MadeModels,
    ProgramMemory,
)
from pytorch_alloctrace.analysis.leaks.leak import (
    Doubt,
    Growth,
    HeldContainer,
    Holder,
    Leak,
    LeakingSite,
    LeakVerdict,
    NoHolder,
)
from pytorch_alloctrace.analysis.leaks.outside_growth import OutsideGrowth
from pytorch_alloctrace.analysis.usage.held_rows import HeldRow
from pytorch_alloctrace.analysis.usage.operations import Operation
from pytorch_alloctrace.analysis.usage.package_lines import LibraryCall
from pytorch_alloctrace.analysis.usage.peak import PeakMemory
from pytorch_alloctrace.analysis.usage.recomputed import Recomputed
from pytorch_alloctrace.analysis.usage.roles import ModelOrigin
from pytorch_alloctrace.analysis.what_if.fitting import Fit, Fitting, OnGpu
from pytorch_alloctrace.analysis.what_if.model import Check, Gpu
from pytorch_alloctrace.analysis.what_if.prediction import CostlyChanges, Outcome, SimulatedFailure, WhatIf
from pytorch_alloctrace.analysis.what_if.settings import Setting
from pytorch_alloctrace.converting.convert import Converted
from pytorch_alloctrace.live.changes import Changes
from pytorch_alloctrace.live.footprint import Footprint
from pytorch_alloctrace.objects.chains import Chain
from pytorch_alloctrace.objects.containers import Container
from pytorch_alloctrace.objects.holders import Holders
from pytorch_alloctrace.objects.stores import Store
from pytorch_alloctrace.reading.replay import Contradiction, Verification
from pytorch_alloctrace.reading.sites import Site, SiteBytes
from pytorch_alloctrace.reading.table import Table
from pytorch_alloctrace.reading.trace_files import Compacted, Finished
from pytorch_alloctrace.report.diagnosis import Diagnosis
from pytorch_alloctrace.report.finding import Finding
from pytorch_alloctrace.report.page.report import Report
from pytorch_alloctrace.report.ranks import RankReport

ROOT = Path(__file__).resolve().parents[1]
PAGE, STUB = ROOT / "docs/api.md", ROOT / "pytorch_alloctrace/_replay.pyi"
NATIVE = AllocatorSettings.__module__
INTRODUCTION = """\
# Every public name

This page is made from the signatures and docstrings: `tools/api_docs` writes it, and a test fails when it is out of
date. `help(alloctrace.Trace.live)` prints the details of a name: columns, units, errors.

    import pytorch_alloctrace as alloctrace

Sizes are integers of bytes and times integers of nanoseconds, both int64. A **position** is `"end"`, `"peak"`,
`"peak:reserved"`, an event number (the state after it), `"step:12"` (the end of that step), `"mark:NAME"`,
`"region:NAME"`, `"region:NAME:end"`, `"12.5s"`, `"100ms"`, `"2min"` (after the recording began) or a datetime;
`"mark:NAME#3"` is the third of that name. A **range** is everything after `since`, up to and including `until`.
A **device** is spelled as in torch:
`"cpu"`, `"cuda:0"`; and `"pinned"`. `by` groups rows: `"line"`, `"function"`, `"file"`, `"stack"`,
`"module"`, `"module:2"` or `"role"`; at a position also `"phase"`, `"age"` and, in `usage`, `"call"`.
"""
RECORDING = ("enable", "disable", "is_enabled", "step", "mark", "region", "observe", "pluggable_library")
IN_THE_PROGRAM = ("status", "holders", "tensors", "changes", "footprint", "diagnose")
READING = ("load", "load_ranks", "compare", "plot_timeline")
FILES = ("finish", "compact", "convert")
TRACE = {
    "The file": (
        *(
            "path",
            "header",
            "integrity",
            "begin_ns",
            "end_ns",
            "devices",
            "hardware",
            "threads",
            "children",
            "events",
            "frames",
        ),
    ),
    "Memory at a position, and what used it": (
        *("live", "blocks", "segments", "usage", "garbage", "annotate", "holders", "peak", "diff"),
    ),
    "Memory over time": ("timeline", "driver_memory", "steps", "marks"),
    "What is wrong, and what would help": (
        *("diagnose", "leaks", "ooms", "settings_that_help", "fragmentation", "what_if", "fit", "verify"),
    ),
    "Other formats": ("report", "export"),
}
ERRORS = (
    *("AlloctraceError", "SessionError", "RecorderUnavailableError", "TraceError", "PositionError", "UserPathError"),
    "CompactedError",
    "IncompleteTraceWarning",
    "MissingPackageError",
    "ReportError",
    "SettingError",
    "NotPredictableError",
    "SchedulerError",
)
VALUES: tuple[tuple[type, str], ...] = (
    (Holders, "`alloctrace.holders()`"),
    (Chain, "each of `Holders.chains`"),
    (Container, "each of `Chain.containers`"),
    (Store, "`Chain.store`"),
    (Changes, "`alloctrace.changes()`"),
    (Footprint, "`alloctrace.footprint()`"),
    (PeakMemory, "`trace.peak()`"),
    (alloctrace.LeakReport, "`trace.leaks()`"),
    (LeakVerdict, "each of `LeakReport.verdicts`"),
    (Growth, "each of `LeakVerdict.undecided` and `LeakVerdict.notes`"),
    (Doubt, "`Growth.doubt`"),
    (Leak, "each of `LeakReport.leaks` and `LeakVerdict.leaks`"),
    (LeakingSite, "each of `Leak.sites`"),
    (Holder, "`Leak.holder` and `Growth.holder`"),
    (NoHolder, "`Leak.no_holder` and `Growth.no_holder`"),
    (HeldContainer, "each of `Holder.containers`"),
    (OutsideGrowth, "each of `LeakReport.outside_growth`"),
    (Fragmentation, "`trace.fragmentation()`"),
    (OutOfMemory, "each of `trace.ooms()`"),
    (FailedAllocation, "`OutOfMemory.request`"),
    (ProgramMemory, "`OutOfMemory.program`"),
    (Forwards, "`ProgramMemory.forwards`"),
    (AutocastMemory, "`ProgramMemory.autocast`"),
    (MadeModels, "`ProgramMemory.models`"),
    (FormerTraining, "`ProgramMemory.former_training`"),
    (Recomputed, "`ProgramMemory.recomputed`"),
    (Operation, "`ProgramMemory.request_operation`"),
    (GrowingRequests, "`ProgramMemory.growing_requests`"),
    (LargeParameter, "`ProgramMemory.large_parameter`"),
    (HeldRow, "`ProgramMemory.holder`"),
    (ModelOrigin, "`ProgramMemory.model_origin`"),
    (SiteBytes, "each of `OutOfMemory.top_sites`"),
    (LibraryCall, "`OutOfMemory.library_call`"),
    (AllocatorSettings, "`OutOfMemory.settings` and `Fragmentation.settings`"),
    (MemoryLimit, "`OutOfMemory.limit`"),
    (WhatIf, "`trace.what_if()`"),
    (CostlyChanges, "`WhatIf.costly`"),
    (Outcome, "each of `WhatIf.outcomes`"),
    (SimulatedFailure, "`Outcome.failure`"),
    (Setting, "`Outcome.setting`"),
    (Gpu, "`Outcome.gpu`"),
    (Check, "`WhatIf.check`, `Fit.check`"),
    (Fit, "`trace.fit()`"),
    (Fitting, "each of `Fit.fittings`"),
    (OnGpu, "each of `Fitting.gpus`"),
    (alloctrace.Ranks, "`alloctrace.load_ranks()`"),
    (RankReport, "each of `Ranks.findings()`"),
    (Diagnosis, "`trace.diagnose()` and `alloctrace.diagnose()`"),
    (Finding, "each of `trace.diagnose()`"),
    (Report, "`trace.report()`"),
    (Verification, "`trace.verify()`"),
    (Contradiction, "each of `Verification.differences` and `Verification.contradiction_list`"),
    (Finished, "`alloctrace.finish()`"),
    (Compacted, "`alloctrace.compact()`"),
    (Converted, "`alloctrace.convert()`"),
    (alloctrace.Integrity, "`trace.integrity`"),
    (alloctrace.Frame, "each of `trace.frames()`"),
    (Site, "a `site` of the values above"),
    (Table, "`Fragmentation.segments` and its other tables"),
)
"""Classes that the interface returns, and the members that return them."""

ELSEWHERE = {
    *dir(builtins),
    *("Any", "Axes", "Callable", "Column", "DataFrame", "Figure", "Iterable", "Iterator", "Literal", "Mapping"),
    *("Module", "NDArray", "Optimizer", "Path", "PathLike", "Position", "Progress", "Sequence", "Tensor"),
}
"""Names in signatures that Python or other packages define, and aliases of such names."""

EXAMPLES = {
    "Recording": """
        import torch

        import pytorch_alloctrace as alloctrace

        device = "cuda" if torch.cuda.is_available() else "cpu"
        model = torch.nn.Linear(1024, 1024, device=device)
        losses = []

        def train(steps):
            for _ in range(steps):
                loss = model(torch.randn(512, 1024, device=device)).square().mean()
                losses.append(loss)  # a leak: keeps the tensors of its graph
                alloctrace.step()

        alloctrace.enable("run.alloctrace")
        alloctrace.observe(model)  # the trace gets the names of its parameters
        train(20)
        alloctrace.mark("trained")
        with alloctrace.region("validation"):
            model(torch.randn(512, 1024, device=device))
        print(alloctrace.is_enabled())  # True
        print(alloctrace.disable())  # run.alloctrace, with its folder
        if torch.backends.cuda.is_built():
            print(alloctrace.pluggable_library())  # the file for torch.cuda.memory.CUDAPluggableAllocator
        """,
    "Session": """
        session: alloctrace.Session = alloctrace.enable("short.alloctrace")
        print(session.path, session.devices)
        losses.clear()
        train(10)
        session.flush()  # everything up to here is in the file now
        session.snapshot()  # and the blocks of the CUDA allocator; False if nothing uses CUDA
        print(session.load().peak().bytes)  # the peak so far; the recording goes on
        print(session.diagnose())  # the verdict so far, as text
        session.stop()
        print(session.is_recording)  # False
        """,
    "In the program": """
        with alloctrace.enable("watched.alloctrace"):
            with alloctrace.changes() as step_changes:
                train(1)
            print(step_changes)  # the tensors that the step left behind, with names and lines
            print(alloctrace.status())  # numbers for a logger: events, bytes, leaks
            print(alloctrace.diagnose())  # the verdict so far, as text
        train(1)
        since: alloctrace.Changes = alloctrace.changes()
        print(since.change_bytes)  # growth since the previous call: 4194308
        held: alloctrace.Holders = alloctrace.holders(losses[0])
        print(held)  # losses[0], and that losses is a global variable of train.py
        print(alloctrace.tensors().head())  # the five largest tensors
        sizes: alloctrace.Footprint = alloctrace.footprint(model)
        print(sizes.parameter_bytes)  # 4198400
        """,
    "Reading": """
        trace: alloctrace.Trace = alloctrace.load("run.alloctrace")
        shorter = alloctrace.load("short.alloctrace")
        print(alloctrace.compare(shorter, trace, at="end"))  # the line that holds more after 20 steps than after 10
        alloctrace.plot_timeline(trace.timeline()).savefig("memory.png")
        ranks: alloctrace.Ranks = alloctrace.load_ranks(["run.alloctrace", "short.alloctrace"])  # or a folder
        print(ranks.verdict())  # which rank differs, and where
        """,
    "Files": """
        compacted = alloctrace.compact("run.alloctrace", "small.alloctrace", until="step:10")
        print(compacted.events)  # the number of events that are only in sums now
        finished = alloctrace.finish("run.alloctrace")  # for recordings that were killed
        print(finished.was_ended)  # True: this recording was not killed
        converted = alloctrace.convert("snapshot.pickle")  # from torch.cuda.memory._dump_snapshot
        print(converted.trace)  # snapshot.alloctrace
        """,
    "The file": """
        print(trace.path, trace.header["program"], trace.header["torch"])
        print((trace.end_ns - trace.begin_ns) / 1e9)  # seconds
        integrity: alloctrace.Integrity = trace.integrity
        print(integrity.is_complete)  # True: nothing is missing
        print(trace.devices)  # ["cpu"], or with a GPU ["cuda:0", "cpu"]
        print(trace.hardware())  # a row for each GPU
        print(trace.threads())  # a row for each thread that allocated or freed
        print(trace.children())  # a row for each process that the program started
        allocations = trace.events(kinds=["alloc"], until="step:0")
        innermost: alloctrace.Frame = trace.frames(allocations["stack_id"].iloc[-1])[0]
        print(innermost.function, innermost.line, innermost.source)
        """,
    "Memory at a position, and what used it": """
        print(trace.live("step:12"))  # a row for each live block
        print(trace.blocks("peak"))  # and the free blocks of the CUDA allocator
        print(trace.segments("peak"))  # none on the CPU
        peak = trace.peak()
        print(peak.bytes, peak.step)
        print(trace.usage("peak", by="role"))  # parameters, activations, ...
        print(trace.garbage())  # what reference cycles held until the garbage collector ran
        print(trace.diff("step:0", "step:12").head())  # the lines that hold more after step 12
        print(trace.annotate("train.py"))  # a row for each line of the file
        print(trace.holders()[["holder", "blocks", "containers", "nodes"]])  # at each object scan
        """,
    "Memory over time": """
        trace.timeline(by="role").to_csv("timeline.csv")
        print(trace.driver_memory())  # the memory of the whole device, by the driver
        print(trace.steps()["live_bytes"])  # grows by what each step leaves behind
        print(trace.marks(peaks=True))  # "trained", and "validation" with its peak
        """,
    "What is wrong, and what would help": """
        print(trace.diagnose())  # the verdict, as text
        print(trace.leaks().to_frame())  # the line that fills losses
        print(trace.fragmentation("peak").external_fragmentation)  # 0.0 to 1.0
        print(trace.verify().ok)  # True: the trace agrees with itself
        for oom in trace.ooms():  # failed allocations
            print(oom, trace.settings_that_help(oom))
        try:
            print(trace.what_if(["expandable_segments:True"]).to_frame())  # the same run under another setting
            print(trace.fit().to_frame())  # the smallest GPU memory that the run fits on
        except alloctrace.NotPredictableError as error:
            print(error)  # the run used no GPU
        """,
    "Other formats": """
        trace.report().write("report.html")
        trace.export("run.speedscope.json", to="speedscope", at="peak")  # for https://speedscope.app
        """,
    "LeakReport": """
        report: alloctrace.LeakReport = trace.leaks()
        print(report.conclusive)  # True: the trace was long enough, and complete
        for leak in report.leaks:
            print(leak.line.line, leak.bytes_per_unit, leak.unit, leak.holder)  # and that losses holds them
        print(report.verdicts[trace.devices[0]].undecided)  # growth of one device that may be a leak
        print(report.outside_growth)  # of the process, outside torch
        report.to_frame().to_csv("leaks.csv")
        """,
    "Errors": """
        import os
        import warnings

        warnings.simplefilter("error", alloctrace.IncompleteTraceWarning)  # stop at an incomplete trace
        try:
            alloctrace.enable("run.alloctrace")
        except (alloctrace.SessionError, alloctrace.RecorderUnavailableError) as error:
            print(error)  # the file exists already; the program goes on
        try:
            alloctrace.load("small.alloctrace").live("step:2")
        except alloctrace.CompactedError as error:
            print(error)  # only sums are left of step 2
        except alloctrace.PositionError as error:
            print(error)  # the run ended before step 2
        try:
            alloctrace.load("run.alloctrace", user_paths=["elsewhere"])
        except (alloctrace.TraceError, alloctrace.UserPathError) as error:
            print(error)  # no file of the trace is in elsewhere
        try:
            trace.what_if(["expandable_segments:perhaps"])
        except (alloctrace.SettingError, alloctrace.NotPredictableError) as error:
            print(error)  # neither True nor False
        try:
            trace.report().write("train.py/report.html")
        except alloctrace.ReportError as error:
            print(error)  # train.py is no folder
        try:
            alloctrace.load_ranks(["run.alloctrace", "short.alloctrace"], scheduler=os.environ.get("DASK_SCHEDULER"))
        except (alloctrace.MissingPackageError, alloctrace.SchedulerError) as error:
            print(error)  # dask is not installed, or the scheduler does not answer
        except alloctrace.AlloctraceError as error:
            print(error)  # any other
        """,
}
"""Examples by section title. Together they are one program, in the order of the page; each uses every name that its
section lists."""


def first_paragraph(text: str | None) -> str:
    return " ".join(inspect.cleandoc(text or "").split("\n\n")[0].split())


def signature(function: Callable[..., Any], name: str) -> str:
    """Return a signature as it is written, without `self`."""
    parameters, has_star = [], False
    python_signature = inspect.signature(function)
    for parameter in python_signature.parameters.values():
        if parameter.name == "self":
            continue
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY and not has_star:
            parameters.append("*")
            has_star = True
        stars = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
        has_star = has_star or stars == "*"
        text = f"{stars}{parameter.name}: {parameter.annotation}"
        if parameter.default is not inspect.Parameter.empty:
            default = parameter.default
            text += f" = {default!r}".replace("'", '"')
        parameters.append(text)
    annotation = python_signature.return_annotation
    return f"{name}({', '.join(parameters)}) -> {annotation}".replace("pd.DataFrame", "DataFrame")


def attributes(kind: type) -> Iterator[tuple[str, str, str]]:
    """Yield name, type and docstring of a class's fields and of the attributes that its __init__ sets, in order."""
    [tree] = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(tree, ast.ClassDef)
    bodies = [tree.body, *(node.body for node in tree.body if getattr(node, "name", "") == "__init__")]
    for body in bodies:
        for index, node in enumerate(body):
            target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
            name = target.attr if isinstance(target, ast.Attribute) else getattr(target, "id", "_")
            if name.startswith("_"):
                continue
            annotation = ast.unparse(node.annotation) if isinstance(node, ast.AnnAssign) else ""
            following = body[index + 1] if index + 1 < len(body) else None
            text = ""
            if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
                text = str(following.value.value)
            yield name, annotation, first_paragraph(text)


def native_class(kind: type) -> ast.ClassDef:
    """Return the stub of a class of the native module."""
    tree = ast.parse(STUB.read_text())
    [stub] = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == kind.__name__]
    return stub


def docstring(kind: type) -> str:
    """Return the first paragraph of a class's docstring."""
    is_native = kind.__module__ == NATIVE
    return first_paragraph(ast.get_docstring(native_class(kind)) if is_native else kind.__doc__)


def native_members(kind: type) -> Iterator[tuple[str, str]]:
    """Yield the code and the docstring of each member of a native class, from the stub."""
    for node in native_class(kind).body:
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
            arguments = ast.unparse(node.args).removeprefix("self").removeprefix(", ")
            declaration = node.name if node.decorator_list else f"{node.name}({arguments})"
            arrow = ": " if node.decorator_list else " -> "
            yield (
                f"{declaration}{arrow}{ast.unparse(node.returns or ast.Constant(None))}",
                first_paragraph(ast.get_docstring(node)),
            )


def members(kind: type) -> Iterator[tuple[str, str]]:
    """Yield the code and the docstring of each member of an instance; members of our base classes come last."""
    if kind.__module__ == NATIVE:
        yield from native_members(kind)
        return
    for base in [base for base in kind.__mro__ if base.__module__.startswith("pytorch_alloctrace")]:
        for name, annotation, text in attributes(base):
            yield f"{name}: {annotation}".rstrip(": "), text
        for name, member in vars(base).items():
            if name.startswith("_"):
                continue
            if isinstance(member, (property, functools.cached_property)):
                getter = member.fget if isinstance(member, property) else member.func
                annotation = inspect.signature(getter).return_annotation  # type: ignore[arg-type]
                yield f"{name}: {annotation}".replace("pd.DataFrame", "DataFrame"), first_paragraph(member.__doc__)
            elif inspect.isfunction(member):
                yield signature(member, name), first_paragraph(member.__doc__)


def page() -> str:
    lines = [INTRODUCTION]

    def section(title: str, text: str = "", level: str = "##") -> None:
        lines.append(f"\n{level} {title}\n" + (f"\n{text}\n" if text else ""))
        if title in EXAMPLES:
            lines.append(f"```python\n{textwrap.dedent(EXAMPLES[title]).strip()}\n```\n")

    def entry(code: str, text: str) -> None:
        lines.append(f"- `{code}`\n" + (textwrap.indent(textwrap.fill(text, 118), "  ") + "\n" if text else ""))

    def functions(names: tuple[str, ...]) -> None:
        for name in names:
            function = getattr(alloctrace, name)
            entry(signature(function, f"alloctrace.{name}"), first_paragraph(function.__doc__))

    section("Recording")
    functions(RECORDING)
    section("Session", first_paragraph(alloctrace.Session.__doc__))
    for code, text in members(alloctrace.Session):
        entry(code, text)
    section("In the program", "Tensors in memory now and their referrer paths, with or without a recording.")
    functions(IN_THE_PROGRAM)
    section("Reading")
    functions(READING)
    section("Files")
    functions(FILES)
    section("Trace", first_paragraph(alloctrace.Trace.__doc__))
    entries = {re.match(r"\w+", code)[0]: (code, text) for code, text in members(alloctrace.Trace)}  # type: ignore[index]
    for task, names in TRACE.items():
        section(task, level="###")
        for name in names:
            entry(*entries.pop(name))
    assert not entries, f"members of a trace without a task: {', '.join(entries)}"
    for kind, origin in VALUES:
        section(kind.__name__, f"{docstring(kind)} From {origin}.")
        for code, text in members(kind):
            entry(code, text)
    section("Errors")
    for name in ERRORS:
        error = getattr(alloctrace, name)
        entry(f"alloctrace.{name}({error.__base__.__name__})", first_paragraph(error.__doc__))
    return "\n".join(lines)


def undocumented() -> set[str]:
    """Return public names of the package, and classes in its signatures, that the page omits."""
    classes = {"Session", "Trace", *(kind.__name__ for kind, _ in VALUES)}
    names = {name for code in re.findall(r"(?m)^- `(.*)`$", page()) for name in re.findall(r"\b[A-Z]\w*[a-z]\w*", code)}
    documented = {*RECORDING, *IN_THE_PROGRAM, *READING, *FILES, *ERRORS, *classes}
    return ({*alloctrace.__all__} | names) - documented - ELSEWHERE


if __name__ == "__main__":
    PAGE.write_text(page())
