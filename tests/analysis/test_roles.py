"""Roles of blocks, compared with the program's own account of its tensors (tests/support/role_account.py)."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from format_reader import TraceFile
from marked_programs import run_analyze
from role_account import PROGRAMS
from running import ROOT, run_python, torch_has_cuda, with_cuda
from shared_recordings import run_source

import pytorch_alloctrace as alloctrace
from pytorch_alloctrace.analysis.usage.live_memory import live_memory
from pytorch_alloctrace.analysis.usage.roles import roles_before
from pytorch_alloctrace.reading.names import KINDS, ROLES
from pytorch_alloctrace.reading.recorded import RecordedTrace

# The CPU is in the slow group: test_examples.py covers its roles.
DEVICES = ["cuda", pytest.param("cpu", marks=pytest.mark.slow("recording"))] if torch_has_cuda() else ["cpu"]
BY_ADDRESS = ("parameter", "buffer", "optimizer state")
ACCOUNT = ROOT / "tests/support/role_account.py"


@pytest.fixture(scope="module", params=DEVICES)
def recorded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    folder = tmp_path_factory.mktemp(f"roles_{request.param}")
    command = [sys.executable, str(ACCOUNT), request.param, *PROGRAMS]
    run_python(folder, with_cuda(command) if request.param == "cuda" else command, True, 600, {})
    return request.param, folder


def role_bytes(trace: alloctrace.Trace, at: str, device: str, column: str = "live_bytes") -> dict[str, int]:
    table = trace.usage(at, device=device, by="role")
    return dict(zip(table["role"], table[column].tolist(), strict=True))


@pytest.mark.parametrize("program", PROGRAMS)
def test_roles_match_program_account(recorded: tuple[str, Path], program: str) -> None:
    device, folder = recorded
    trace = alloctrace.load(folder / f"{program}.alloctrace")
    account = json.loads((folder / f"{program}.json").read_text())
    if program == "sparse":  # the indices of its gradient are its input: one block with one role
        account = {at: expected for at, expected in account.items() if at.startswith("mark:stepped")}
    assert len(account) >= 5
    roles = set()
    for at, expected in account.items():
        actual = role_bytes(trace, at, device)
        assert {role: actual.get(role, 0) for role in expected} == expected, at
        roles.update(role for role, size in expected.items() if size)
    if program == "inference":
        assert roles == {"parameter", "buffer"}
    elif program != "sparse":
        assert roles == {"parameter", "gradient", "optimizer state", "activation", "input"}


def test_roles_by_address_are_exact_and_blocks_are_named(recorded: tuple[str, Path]) -> None:
    device, folder = recorded
    for program in ("plain", "tied", "flat", "inference"):
        trace = alloctrace.load(folder / f"{program}.alloctrace")
        for at in ("peak", "mark:inferred#3" if program == "inference" else "mark:stepped#3"):
            actual, exact = role_bytes(trace, at, device), role_bytes(trace, at, device, "exact_bytes")
            for role in BY_ADDRESS:
                assert exact.get(role, 0) == actual.get(role, 0)
            assert {exact[role] for role in actual if role in ("activation", "input", "temporary", "other")} <= {0}
    # Gradients are looked up at the 1st, 2nd and 4th step; the others are inferred.
    trace = alloctrace.load(folder / "plain.alloctrace")
    for number in range(1, 6):
        actual, exact = (
            role_bytes(trace, f"mark:stepped#{number}", device, name) for name in ("live_bytes", "exact_bytes")
        )
        assert exact["gradient"] == (actual["gradient"] if number in (1, 2, 4) else 0)
    live = alloctrace.load(folder / "inference.alloctrace").live("mark:inferred#3", device=device)
    named = live[live["name"] != ""].set_index("name")
    assert {"first.weight", "first.bias", "norm.weight", "last.weight"} <= {*named.index}
    assert named.loc["first.weight", "requested_bytes"] == 16 * 3 * 9 * 4
    assert named.loc["norm.running_mean", "role"] == "buffer"
    assert named.loc["last.bias", "role"] == "parameter"


def test_timeline_by_role_sums_to_requested_bytes(recorded: tuple[str, Path]) -> None:
    device, folder = recorded
    trace = alloctrace.load(folder / "plain.alloctrace")
    for points in (1, 37, 2000):
        table = trace.timeline(points, by="role", device=device)
        assert [*table.columns[:2]] == ["device", "time_ns"] and {*table.columns[2:]} == {*ROLES}
        requested = trace.timeline(points, device=device)
        assert (table[[*ROLES]].sum(axis=1) == requested["requested_bytes"]).all()
        assert (table["time_ns"] == requested["time_ns"]).all()
    at_end = {role: size for role, size in role_bytes(trace, "end", device).items() if size}
    last = table.iloc[-1][[*ROLES]]
    assert {role: int(size) for role, size in last.items() if size} == at_end
    with pytest.raises(ValueError, match="points=0"):
        trace.timeline(0, by="role")


def test_usage_of_range_by_role_matches_roles_of_blocks(recorded: tuple[str, Path]) -> None:
    """Compare with the role of each block right after its allocation."""
    device, folder = recorded
    for program in ("plain", "inference"):
        trace = alloctrace.load(folder / f"{program}.alloctrace")
        device = next(name for name in trace.devices if name.startswith(device))
        since, until = ("mark:inferred", "end") if program == "inference" else ("mark:stepped", "mark:backward#2")
        allocs = trace.events(since=since, until=until, kinds=("alloc",))
        allocs = allocs[allocs["device"] == device]
        expected: dict[str, list[int]] = {}
        for seq in allocs["seq"].tolist():
            [block] = trace.live(seq, device=device).query("alloc_seq == @seq").to_dict("records")
            sums = expected.setdefault(str(block["role"]), [0, 0, 0, 0])
            size = block["requested_bytes"]
            sums[:] = sums[0] + 1, sums[1] + size, sums[2] + size * block["role_is_exact"], max(sums[3], size)
        assert len(expected) > (0 if program == "inference" else 4)
        columns = ["allocations", "total_bytes", "exact_bytes", "largest_bytes"]
        table = trace.usage(since=since, until=until, by="role", device=device).set_index("role")
        assert table.loc[table["allocations"] > 0, columns].T.to_dict("list") == expected
        before, after = role_bytes(trace, since, device), role_bytes(trace, until, device)
        assert {role: size for role, size in table["live_bytes"].items() if size} == after
        change = {role: after.get(role, 0) - before.get(role, 0) for role in table.index}
        assert table["live_bytes_change"].to_dict() == change
        of_roles, of_sites = (trace.usage(until=until, by=by, device=device) for by in ("role", "line"))
        for name in ("allocations", "total_bytes", "live_bytes", "live_blocks"):
            assert of_roles[name].sum() == of_sites[name].sum()


def test_sites_and_timeline_commands_show_roles(recorded: tuple[str, Path]) -> None:
    device, folder = recorded
    trace = alloctrace.load(folder / "plain.alloctrace")
    options = ("plain.alloctrace", "--by", "role", "--device", device)
    rows = pd.DataFrame(json.loads(run_analyze(folder, "sites", *options, "--since", "mark:stepped", "--json"))["rows"])
    pd.testing.assert_frame_equal(rows, trace.usage(since="mark:stepped", by="role", device=device), check_dtype=False)
    table = pd.read_csv(io.StringIO(run_analyze(folder, "timeline", *options, "--points", "20", "--csv")))
    pd.testing.assert_frame_equal(table, trace.timeline(20, by="role", device=device), check_dtype=False)


NODES_BEFORE = """
import torch, pytorch_alloctrace as alloctrace
weight = torch.ones(100, 100, requires_grad=True)
(weight @ weight).sum().backward()
with alloctrace.enable("t.alloctrace", devices="cpu"):
    for _ in range(2):
        batch = torch.ones(50, 100)
        loss = (batch @ weight).exp().sum()
        alloctrace.mark("forward")
        loss.backward()
"""


def test_autograd_nodes_from_before_recording_do_not_change_roles(tmp_path: Path) -> None:
    run_source(tmp_path, NODES_BEFORE)
    trace = alloctrace.load(tmp_path / "t.alloctrace")
    for number in (1, 2):
        by_role = role_bytes(trace, f"mark:forward#{number}", "cpu")
        assert by_role["input"] == 50 * 100 * 4 and by_role["activation"] == 50 * 100 * 4, number
    for invalid in (None, "x", [1], [1, -2], [1.5, 2], [1, 1 << 70], {"a": 1}):
        trace = alloctrace.load(tmp_path / "t.alloctrace")
        trace.header["autograd_nodes"] = invalid
        assert (
            sum(role_bytes(trace, "mark:forward", "cpu").values())
            == trace.live("mark:forward")["requested_bytes"].sum()
        )


def test_live_and_blocks_have_same_roles(recorded: tuple[str, Path]) -> None:
    device, folder = recorded
    trace = alloctrace.load(folder / "mixed.alloctrace")
    for at in ("peak", "mark:forward#3", "end"):
        live, blocks = trace.live(at, device=device), trace.blocks(at, device=device)
        used = blocks[blocks["state"] == "active_allocated"]
        by_address = used.set_index("address")["role"].astype(str).to_dict()
        assert live.set_index("address")["role"].astype(str).to_dict() == by_address
        assert (blocks.loc[blocks["state"] == "inactive", "role"] == "unknown").all()
        recorded = trace._recorded
        shares = roles_before(recorded, recorded.named_device(device) or "", recorded.first_event_after(at, device))
        assert shares.are_named and sum(part.bytes for part in shares.roles) == live["requested_bytes"].sum()


def test_role_events_match_named_blocks(recorded: tuple[str, Path]) -> None:
    _, folder = recorded
    for program in ("plain", "inference"):
        file = TraceFile(folder / f"{program}.alloctrace")
        events = {number: event for number, event in file.events() if event.kind == KINDS.index("role")}
        named = RecordedTrace(folder / f"{program}.alloctrace").replay.named_blocks()
        assert len(named) > 10 and {*named["seq"]} <= {*events}
        for row in named.rows():
            row_event = events[row["seq"]]
            assert (row_event.address, ROLES[row_event.node_sequence]) == (row["address"], ROLES[row["role"]])
            assert row_event.size == row["name"]


OUT_OF_MEMORY = """\
import sys, torch, pytorch_alloctrace as alloctrace

def main():
    layers = torch.nn.Sequential(*(torch.nn.Linear(1024, 1024) for _ in range(40))).to("cuda")
    optimizer = torch.optim.SGD(layers.parameters())
    for size in map(int, sys.argv[1:]):
        try:
            x = torch.randn(size, 1024, device="cuda")
            layers(x).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        except torch.OutOfMemoryError:
            print("refused")

with alloctrace.enable("t.alloctrace", devices=("cuda",)):
    main()
"""


@pytest.mark.parametrize("sizes", [("65536",), ("64", "64", "65536")])
def test_blocks_of_forward_that_ran_out_of_memory_are_activations(tmp_path: Path, sizes: tuple[str, ...]) -> None:
    (tmp_path / "program.py").write_text(OUT_OF_MEMORY)
    command = with_cuda([sys.executable, "program.py", *sizes], memory="4GiB")
    assert run_python(tmp_path, command, True, 600, {}).stdout == "refused\n"
    trace = alloctrace.load(tmp_path / "t.alloctrace")
    [oom] = trace.events(kinds=("oom",))["seq"]
    blocks = [row for row in trace.live(int(oom), device="cuda").to_dict("records") if row["requested_bytes"] == 2**28]
    roles = [row["role"] for row in sorted(blocks, key=lambda row: row["alloc_seq"])]
    assert len(roles) > 5 and {*roles[1:]} == {"activation"}
    assert "activation" not in roles[:1]  # the input


WITHOUT_BACKWARD = """
import json, torch, pytorch_alloctrace as alloctrace
from torch import nn

F = 4

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.last = nn.Linear(64, 512), nn.Linear(512, 512), nn.Linear(512, 100)
        self.register_buffer("scale", torch.rand(100))

    def forward(self, x):
        return self.last(torch.tanh(self.second(torch.tanh(self.first(x))))) * self.scale

def predict(model, rounds, keep):
    kept = []
    for number in range(rounds):
        x = torch.randn(32, 64)
        output = model(x)
        kept.append(keep(output))
        if number == rounds - 3:
            alloctrace.mark("here")
    return len(kept)

def expect(**roles):
    parameters = sum(parameter.numel() for parameter in model.parameters())
    return {"parameter": parameters * F, "buffer": 100 * F, "input": 32 * 64 * F, **roles}

expected = {}
for name in ("no_grad", "softmax", "grad", "evaluation"):
    with alloctrace.enable(f"{name}.alloctrace", devices=("cpu",)):
        model = Model()
        alloctrace.observe(model)
        if name == "evaluation":
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for _ in range(4):
                model(torch.randn(32, 64)).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
        keep = (lambda output: output) if name == "no_grad" else (lambda output: output.detach().softmax(-1))
        with torch.set_grad_enabled(name == "grad"):
            predict(model, 12, keep)
            alloctrace.mark("between")
            predict(model, 12, keep)
    outputs = 10 if name == "no_grad" else 11
    activations = 2 if name == "grad" else 0  # the results of tanh
    expected[name] = expect(other=outputs * 32 * 100 * F, activation=activations * 32 * 512 * F)
json.dump(expected, open("expected.json", "w"))
"""


@pytest.mark.parametrize("program", ["no_grad", "softmax", "grad", "evaluation"])
def test_roles_without_backward_match_program_account(tmp_path: Path, program: str) -> None:
    run_source(tmp_path, WITHOUT_BACKWARD)
    expected = json.loads((tmp_path / "expected.json").read_text())[program]

    trace = alloctrace.load(tmp_path / f"{program}.alloctrace")

    actual = role_bytes(trace, "mark:here", "cpu")
    assert {role: actual.get(role, 0) for role in expected} == expected


SOLVER = """
import torch, pytorch_alloctrace as alloctrace

class Solver(torch.optim.Optimizer):
    def __init__(self, parameters):
        super().__init__(parameters, {})

    @torch.no_grad()
    def step(self, closure):
        for parameter in self.param_groups[0]["params"]:
            state = self.state[parameter]
            vectors = [torch.zeros(3, *parameter.shape) for _ in range(2)]
            for _ in range(4):
                with torch.enable_grad():
                    closure()
            if not state:
                state["direction"] = torch.zeros_like(parameter)

def main():
    weight = torch.nn.Parameter(torch.ones(64, 64))
    solver = Solver([weight])

    def closure():
        loss = (weight * 2).exp().sum()
        weight.grad = None
        loss.backward()
        alloctrace.mark("closure")

    for _ in range(4):
        solver.step(closure)

with alloctrace.enable("t.alloctrace", devices=("cpu",)):
    main()
"""


def test_vectors_of_an_optimizer_that_live_within_its_step_are_temporary(tmp_path: Path) -> None:
    trace = alloctrace.load(run_source(tmp_path, SOLVER) / "t.alloctrace")

    by_role = role_bytes(trace, "mark:closure#11", "cpu")

    assert by_role["optimizer state"] == 64 * 64 * 4
    assert by_role["temporary"] - 2 * 3 * 64 * 64 * 4 in range(512)  # with the scalars of the loss


def test_roles_are_unknown_without_named_blocks(tmp_path: Path) -> None:
    source = """
import torch, pytorch_alloctrace as alloctrace
for stacks in ("python", "none"):
    with alloctrace.enable(f"{stacks}.alloctrace", devices=("cpu",), stacks=stacks):
        kept = [torch.empty(1000) for _ in range(5)]
    del kept
"""
    run_source(tmp_path, source)
    for stacks in ("python", "none"):
        trace = alloctrace.load(tmp_path / f"{stacks}.alloctrace")
        assert role_bytes(trace, "end", "cpu") == {"unknown": 20_000}
        assert not roles_before(trace._recorded, "cpu", trace._recorded.end_seq).are_named
        assert (trace.live()["name"] == "").all()


def test_roles_of_corrupt_trace_sum_to_live_bytes(recorded: tuple[str, Path], tmp_path: Path) -> None:
    _, folder = recorded
    complete = (folder / "checkpointed.alloctrace").read_bytes()
    random = np.random.default_rng(5)
    for number in range(12):
        corrupt = bytearray(complete[: int(random.integers(len(complete) // 4, len(complete)))])
        corrupt[int(random.integers(200, len(corrupt)))] ^= 0x40
        path = tmp_path / f"{number}.alloctrace"
        path.write_bytes(corrupt)
        with pytest.warns(alloctrace.IncompleteTraceWarning):
            trace = alloctrace.load(path)
        for name in trace.devices:
            live = trace.live("end", device=name)
            requested = live["requested_bytes"].sum()
            assert sum(role_bytes(trace, "end", name).values()) == requested
            # The number of the last event is not the count of events.
            recorded = trace._recorded
            at_end = live_memory(recorded, "end", device=name)
            assert (at_end.step, at_end.requested_bytes) == (
                recorded.positions.step_at(recorded.end_seq - 1),
                requested,
            )
            trace.timeline(10, by="role", device=name)
