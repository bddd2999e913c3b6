"""Forward lines of backward allocations, found by the autograd numbers in the events."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd

import pytorch_alloctrace as alloctrace

COLUMNS = ["seq", "kind", "device", "stack_id", "thread", "autograd_seq", "node_seq", "node_thread", "node_type"]

# An oracle independent of allocations: autograd's own numbers of the nodes that each line of forward creates. Under
# checkpoint, the same functions run again in backward's own thread.
PROGRAM = """
import json, sys, threading
import torch, torch.nn.functional as F
import pytorch_alloctrace as alloctrace
from torch.utils.checkpoint import checkpoint

noted = {}

def note(tensor):
    thread, line = threading.get_native_id(), sys._getframe(1).f_lineno
    todo = [tensor.grad_fn]
    while todo:
        node = todo.pop()
        if node is None or node.name() == "torch::autograd::AccumulateGrad": continue
        key = (thread, node._sequence_nr())
        if key in noted: continue
        noted[key] = (line, node.name())
        todo += [following for following, _ in node.next_functions]
    return tensor

class Cubed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x * x
    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return 3 * grad * x * x

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(100, 64)
        self.weight = torch.nn.Parameter(torch.randn(64, 64))
        self.conv = torch.nn.Conv2d(1, 4, 3, padding=1)
        self.last = torch.nn.Linear(64, 10)

    def forward(self, tokens):
        x = note(self.table(tokens))
        x = note(x @ self.weight)
        x = note(F.gelu(x))
        x = note(Cubed.apply(x))
        query = note(x.view(8, 16, 4, 16).transpose(1, 2))
        x = note(F.scaled_dot_product_attention(query, query, query))
        x = note(x.transpose(1, 2).reshape(8, 1, 16, 64))
        x = note(self.conv(x))
        x = note(x.mean(1))
        x = note(checkpoint(self.block, x, use_reentrant=False))
        x = note(x[:, :5])
        x = note(self.last(x))
        return note(F.cross_entropy(x.reshape(40, 10), torch.zeros(40, dtype=torch.long, device=x.device)))

    def block(self, x):
        x = note(torch.tanh(x))
        x = note(x @ self.weight)
        return note(F.silu(x))

def train(device, steps):
    torch.manual_seed(0)
    model = Model().to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(steps):
        loss = model(torch.randint(100, (8, 16), device=device))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

with alloctrace.enable("before.alloctrace"):  # in which these types have other numbers
    x = torch.ones(8, 8, requires_grad=True)
    (Cubed.apply(x).sin() @ x).tanh().sum().backward()
alloctrace.enable("t.alloctrace")
train("cuda", 3)
threads = [threading.Thread(target=train, args=(device, 4)) for device in ("cuda", "cuda", "cpu")]
for thread in threads: thread.start()
for thread in threads: thread.join()
alloctrace.disable()
json.dump([[*key, *value] for key, value in noted.items()], open("noted.json", "w"))

weight = torch.nn.Parameter(torch.randn(64, 64, device="cuda"))
x = torch.randn(64, 64, device="cuda")
alloctrace.enable("account.alloctrace", devices=("cuda",))
h = x @ weight  # the product
part = h[:, :10]
noise = torch.zeros(640, device="cuda")  # no node
(part * 2).sum().backward()
assert weight.grad is not None
alloctrace.disable()
"""

# Views allocate nothing in forward: the next allocation on their thread belongs to another node.
VIEWS = (
    *("View", "UnsafeView", "Transpose", "T", "Permute", "Slice", "Select", "Split", "SplitWithSizes", "Chunk"),
    *("Expand", "Unsqueeze", "Squeeze", "ReshapeAlias", "Reshape", "Alias", "AsStrided", "Unbind", "Narrow", "Detach"),
)


def is_view(node_type: str) -> bool:
    return node_type.rsplit("::", 1)[-1].removesuffix("0").removesuffix("1").removesuffix("Backward") in VIEWS


def join_forward(events: pd.DataFrame, autograd_thread: pd.Series) -> pd.DataFrame:
    """Return each backward allocation with the stack of its forward allocation, or NaN (docs/recording.md)."""
    allocs = events[(events["kind"] == "alloc") & (events["stack_id"] != 0)]
    first = allocs.drop_duplicates(["thread", "autograd_seq"])[["thread", "autograd_seq", "stack_id", "seq"]]
    first = first.assign(node_seq=first["autograd_seq"] - 1).drop(columns="autograd_seq")
    first.columns = ["forward_thread", "forward_stack_id", "forward_event", "node_seq"]
    backward = events[(events["kind"] == "alloc") & (events["node_type"] != "")].copy()
    backward["forward_thread"] = backward["node_thread"].map(autograd_thread)
    return backward.merge(first, how="left", on=["forward_thread", "node_seq"])


@dataclass
class Comparison:
    counts: Counter[str] = field(default_factory=Counter)
    joined: Counter[str] = field(default_factory=Counter)
    """Correct allocations by device and node type."""
    without_forward: set[str] = field(default_factory=set)
    wrong: list[str] = field(default_factory=list)


def compare_lines(trace: alloctrace.Trace, nodes: dict[tuple[int, int], tuple[int, str]], script: str) -> Comparison:
    """Compare each backward allocation with line and name of its node, which autograd reported by thread and number."""
    result = Comparison()
    autograd_threads = trace.threads().set_index("autograd_id")["thread"]
    for row in join_forward(trace.events(columns=COLUMNS), autograd_threads).itertuples():
        node = row.node_type.rsplit("::", 1)[-1]
        if node == "AccumulateGrad":  # of a parameter: no line of forward creates it
            result.counts["accumulated"] += 1
            continue
        line, name = nodes.get((row.forward_thread, row.node_seq), (0, "no such node"))
        if name.rsplit("::", 1)[-1] != node:
            result.wrong.append(f"node {row.node_seq} of {row.forward_thread}: {node} in the trace, {name} in autograd")
        elif is_view(node):
            result.counts["of views"] += 1
        elif pd.isna(row.forward_stack_id):
            result.counts["without allocation in forward"] += 1
            result.without_forward.add(node)
        elif line in [frame.line for frame in trace.frames(row.forward_stack_id) if frame.filename == script]:
            result.counts["correct"] += 1
            result.joined[f"{row.device.split(':')[0]} {node}"] += 1
        else:
            result.wrong.append(f"{node}: created in line {line}, not in {trace.frames(row.forward_stack_id)[:3]}")
    return result


def test_backward_allocations_have_their_forward_line(run_cuda_program, tmp_path: Path) -> None:
    run_cuda_program(PROGRAM, timeout=200)

    trace = alloctrace.load(tmp_path / "t.alloctrace")
    assert trace.integrity.state == "complete" and trace.verify().missed_frees == 0
    threads = trace.threads().set_index("native_id")["thread"].to_dict()
    nodes = {
        (threads[native], number): (line, name)
        for native, number, line, name in json.loads((tmp_path / "noted.json").read_text())
        if native in threads
    }
    comparison = compare_lines(trace, nodes, str(tmp_path / "program.py"))
    print(dict(comparison.counts), dict(comparison.joined))
    assert not comparison.wrong, f"{len(comparison.wrong)} wrong\n" + "\n".join(sorted(set(comparison.wrong))[:30])
    assert comparison.counts["correct"] > 150
    # Only the addition of Linear's bias, in place, allocates nothing of its own.
    assert comparison.without_forward <= {"AddBackward0"}
    node_types = ("Mm", "Silu", "Tanh", "Gelu", "Embedding", "Convolution")
    for name in (*(f"{node}Backward0" for node in node_types), "NllLossBackward0", "CubedBackward"):
        # At least once a step.
        assert comparison.joined[f"cuda {name}"] >= 11 and comparison.joined[f"cpu {name}"] >= 4, name
    assert_memory_is_charged_to_forward(tmp_path)


def assert_memory_is_charged_to_forward(folder: Path) -> None:
    """Assert that backward's memory is charged to its forward line, and none to the line after a view."""
    lines = (folder / "program.py").read_text().splitlines()
    trace = alloctrace.load(folder / "account.alloctrace")
    live = trace.live(device="cuda:0")
    # The size excludes cuBLAS's workspace.
    (gradient,) = live[live["backward"] & (live["requested_bytes"] == 64 * 64 * 4)].itertuples()
    assert lines[trace.frames(gradient.stack_id)[0].line - 1].endswith("# the product")
    sites = trace.usage(device="cuda:0")
    product, noise = (sites[[lines[line - 1].endswith(mark) for line in sites["line"]]] for mark in ("product", "node"))
    assert product["live_backward_bytes"].sum() >= 64 * 64 * 4
    assert noise["allocations"].sum() == 1, "the slice's backward was charged to the line after it"
