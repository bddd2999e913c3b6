"""Lines of forward for allocations of backward, by what the events record of autograd."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd

import pytorch_alloctrace as alloctrace

COLUMNS = ["seq", "kind", "device", "stack_id", "thread", "autograd_seq", "node_seq", "node_thread", "node_type"]

# Every line of forward that makes nodes is noted with their numbers, as autograd itself reports them: an oracle that
# knows nothing of allocations. The same functions run again in backward's own thread, under checkpoint.
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

# Nodes of views allocate nothing in forward. What happens to come next on their thread is not theirs.
VIEWS = (
    *("View", "UnsafeView", "Transpose", "T", "Permute", "Slice", "Select", "Split", "SplitWithSizes", "Chunk"),
    *("Expand", "Unsqueeze", "Squeeze", "ReshapeAlias", "Reshape", "Alias", "AsStrided", "Unbind", "Narrow", "Detach"),
)


def is_view(node_type: str) -> bool:
    return node_type.rsplit("::", 1)[-1].removesuffix("0").removesuffix("1").removesuffix("Backward") in VIEWS


def join(events: pd.DataFrame, autograd_thread: pd.Series) -> pd.DataFrame:
    """Return each allocation of backward with the stack of its allocation of forward, or NaN (docs/recording.md)."""
    allocs = events[(events["kind"] == "alloc") & (events["stack_id"] != 0)]
    first = allocs.drop_duplicates(["thread", "autograd_seq"])[["thread", "autograd_seq", "stack_id", "seq"]]
    first = first.assign(node_seq=first["autograd_seq"] - 1).drop(columns="autograd_seq")
    first.columns = ["maker", "forward_stack_id", "forward_event", "node_seq"]
    backward = events[(events["kind"] == "alloc") & (events["node_type"] != "")].copy()
    backward["maker"] = backward["node_thread"].map(autograd_thread)
    return backward.merge(first, how="left", on=["maker", "node_seq"])


@dataclass
class Judgement:
    counts: Counter[str] = field(default_factory=Counter)
    joined: Counter[str] = field(default_factory=Counter)
    """Node types of the right ones, with the device."""
    without_forward: set[str] = field(default_factory=set)
    wrong: list[str] = field(default_factory=list)


def judge(trace: alloctrace.Trace, noted: dict[tuple[int, int], tuple[int, str]], script: str) -> Judgement:
    """Compare each allocation of backward with what autograd reported: `noted`, by thread and number of the node."""
    result = Judgement()
    made_by = trace.threads().set_index("autograd_id")["thread"]
    for row in join(trace.events(columns=COLUMNS), made_by).itertuples():
        node = row.node_type.rsplit("::", 1)[-1]
        if node == "AccumulateGrad":  # of a parameter: no line of forward makes it
            result.counts["accumulated"] += 1
            continue
        line, name = noted.get((row.maker, row.node_seq), (0, "no such node"))
        if name.rsplit("::", 1)[-1] != node:
            result.wrong.append(f"node {row.node_seq} of thread {row.maker}: {node} in the trace, {name} in autograd")
        elif is_view(node):
            result.counts["of views"] += 1
        elif pd.isna(row.forward_stack_id):
            result.counts["without allocation in forward"] += 1
            result.without_forward.add(node)
        elif line in [frame.line for frame in trace.frames(row.forward_stack_id) if frame.filename == script]:
            result.counts["right"] += 1
            result.joined[f"{row.device.split(':')[0]} {node}"] += 1
        else:
            result.wrong.append(f"{node}: made in line {line}, not in {trace.frames(row.forward_stack_id)[:3]}")
    return result


def test_every_allocation_of_backward_finds_its_line(run_cuda_program, tmp_path: Path) -> None:
    run_cuda_program(PROGRAM, timeout=200)
    trace = alloctrace.load(tmp_path / "t.alloctrace")
    assert trace.integrity.state == "complete" and trace.verify().missed_frees == 0
    by_native = trace.threads().set_index("native_id")["thread"].to_dict()
    noted = {
        (by_native[native], number): (line, name)
        for native, number, line, name in json.loads((tmp_path / "noted.json").read_text())
        if native in by_native
    }
    judgement = judge(trace, noted, str(tmp_path / "program.py"))
    print(dict(judgement.counts), dict(judgement.joined))
    assert not judgement.wrong, f"{len(judgement.wrong)} wrong\n" + "\n".join(sorted(set(judgement.wrong))[:30])
    assert judgement.counts["right"] > 150
    # A bias that Linear adds in place is the only one of these lines that allocates nothing of its own.
    assert judgement.without_forward <= {"AddBackward0"}
    nodes = ("Mm", "Silu", "Tanh", "Gelu", "Embedding", "Convolution")
    for name in (*(f"{node}Backward0" for node in nodes), "NllLossBackward0", "CubedBackward"):
        # Once a step at least.
        assert judgement.joined[f"cuda {name}"] >= 11 and judgement.joined[f"cpu {name}"] >= 4, name
    check_account(tmp_path)


def check_account(folder: Path) -> None:
    """Check that backward's memory is charged to its line of forward, and none to the line after a view."""
    lines = (folder / "program.py").read_text().splitlines()
    trace = alloctrace.load(folder / "account.alloctrace")
    live = trace.live(device="cuda:0")
    # Not cuBLAS's workspace.
    (gradient,) = live[live["backward"] & (live["requested_bytes"] == 64 * 64 * 4)].itertuples()
    assert lines[trace.frames(gradient.stack_id)[0].line - 1].endswith("# the product")
    sites = trace.usage(device="cuda:0")
    product, noise = (sites[[lines[line - 1].endswith(mark) for line in sites["line"]]] for mark in ("product", "node"))
    assert product["live_backward_bytes"].sum() >= 64 * 64 * 4
    assert noise["allocations"].sum() == 1, "the slice's backward is not of the line after it"
