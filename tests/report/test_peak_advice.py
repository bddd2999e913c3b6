"""Advice on a peak that one thing makes: forwards that wait for one backward, inputs, matrices of all pairs."""

from __future__ import annotations

from pathlib import Path

import pytest
from marked_programs import run_analyze
from running import needs_cuda_build
from shared_recordings import run_source

from pytorch_alloctrace.analysis.usage.operations import Operation, find_operation
from pytorch_alloctrace.reading.sites import Frame, Site

pytestmark = needs_cuda_build
PROGRAM = """
import math, torch
import pytorch_alloctrace as alloctrace
from pytorch_alloctrace.recording import object_scans
from torch import nn

def make_model():
    return nn.Sequential(*[layer for _ in range(6) for layer in (nn.Linear(512, 512), nn.ReLU())]).cuda()

def train(batches_of_step):
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters())
    for _ in range(8):
        losses = [model(torch.ones(8192, 512, device="cuda")).mean() for _ in range(batches_of_step)]
        sum(losses).backward()
        optimizer.step()
        optimizer.zero_grad()

def micro_batches():
    train(6)

def pairs_of_images():
    train(2)

def inputs():
    model = make_model()
    for _ in range(4):
        batches = [batch.cuda() for batch in [torch.ones(8192, 512) for _ in range(24)]]
        with torch.no_grad():
            for batch in batches:
                model(batch[:64])
        del batches, batch

def temporaries():
    model = make_model()
    for _ in range(4):
        heads, relations = torch.ones(64, 1, 256, device="cuda"), torch.ones(1, 2000, 256, device="cuda")
        with torch.no_grad():
            (model[0].weight.sum() * 0 + heads - relations).abs().sum(-1)
        alloctrace.step()

def forces():
    model = make_model()
    for _ in range(8):
        positions = torch.ones(8192, 512, device="cuda", requires_grad=True)
        energy = model(positions).square().sum()
        (force,) = torch.autograd.grad(energy, positions, create_graph=True)
        force.sum().item()

def penalties():
    model = nn.Sequential(*[nn.Linear(4096, 4096) for _ in range(4)]).cuda()
    for _ in range(8):
        positions = torch.ones(64, 4096, device="cuda", requires_grad=True)
        energy = model(positions).square().sum()
        (slope,) = torch.autograd.grad(energy, positions, create_graph=True)
        slope.square().sum().backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.sub_(parameter.grad, alpha=0.001)
                parameter.grad.zero_()

def large_weights():
    weights = torch.ones(8192, 8192, device="cuda", requires_grad=True)
    for _ in range(4):
        with torch.no_grad():
            first = weights[:4096].abs()
            second = weights[4096:].abs()
            third = weights[4096:].square()
            del first, second, third
        alloctrace.step()

def all_pairs(rows=7001):
    model = make_model()
    for _ in range(8):
        risk = model(torch.ones(rows, 512, device="cuda"))[:, 0]
        with torch.no_grad():
            (risk[:, None] >= risk[None]).float().sum(0).log().mean()
        alloctrace.step()

def wide_images():
    all_pairs(7040)

def stages():
    recognizer = nn.Sequential(*[nn.Linear(4096, 4096) for _ in range(3)]).cuda()
    aligner = None
    with torch.no_grad():
        for number in range(240):
            if number == 80:
                aligner = nn.Sequential(nn.Linear(4096, 4096), nn.Tanh()).cuda()
            (aligner or recognizer)(torch.ones(16, 4096, device="cuda")).sum()
            alloctrace.step()

class Waves(nn.Module):
    def forward(self, image):
        for _ in range(40):
            image = torch.tanh(image * 0.5)
        return image

class Skeleton(nn.Sequential):
    pass

def losses(skeleton=Skeleton(*[nn.Tanh() for _ in range(40)])):
    model = nn.Linear(1024, 1024).cuda()
    for _ in range(40):
        skeleton(model(torch.ones(1024, 1024, device="cuda"))).mean().backward()
        model.zero_grad()
        alloctrace.step()

def waves():
    losses(Waves())

def checkpoints():
    model = nn.Sequential(make_model(), make_model(), make_model())
    for _ in range(8):
        x = torch.ones(32768, 512, device="cuda", requires_grad=True)
        torch.utils.checkpoint.checkpoint(model, x, use_reentrant=False).mean().backward()

RUNS = (stages, losses, waves, micro_batches, pairs_of_images, inputs, temporaries, forces, penalties, large_weights)
RUNS += (all_pairs, wide_images, checkpoints)
for run in RUNS:
    object_scans.FIRST_SCAN_EVENTS = math.inf if run is inputs else 500  # a scan would name the list of batches
    with alloctrace.enable(f"{run.__name__}.alloctrace", devices=("cuda",)):
        run()
    torch.cuda.empty_cache()
"""
FORWARDS, INPUTS, PAIRS = (
    "whose graphs wait for one backward",
    "Inputs are ",
    "if these are all pairs of items",
)
ACTIVATIONS, TEMPORARIES = "Activations make this peak", "Temporaries are "
REDUCES, UPCASTS = "only to reduce them", "makes copies in higher precision"
IDLE = "is not called any more, at least in the last third of the run"
GRADIENTS = "Gradients with graphs (create_graph=True at "


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_source(tmp_path_factory.mktemp("advice"), PROGRAM, cuda=True)


@pytest.mark.parametrize(
    ("case", "advice"),
    [
        ("micro_batches", FORWARDS),
        ("pairs_of_images", ACTIVATIONS),
        ("inputs", INPUTS),
        ("stages", IDLE),
        ("temporaries", REDUCES),
        ("forces", GRADIENTS),
        ("penalties", ""),
        ("all_pairs", PAIRS),
        ("wide_images", UPCASTS),  # a multiple of 64 may be a product of widths
    ],
)
def test_peak_has_the_advice_that_fits(folder: Path, case: str, advice: str) -> None:
    text = " ".join(run_analyze(folder, f"{case}.alloctrace").split())

    hints = (FORWARDS, INPUTS, PAIRS, ACTIVATIONS, TEMPORARIES, GRADIENTS, REDUCES, UPCASTS, IDLE)
    assert [hint for hint in hints if hint in text] == ([advice] if advice else [])
    if advice == FORWARDS:
        assert "activations of 6 forwards at " in text and "(loss / n).backward() for each micro-batch" in text
    if advice == INPUTS:
        assert " of this peak, mostly of program.py:" in text
    if advice == IDLE:
        assert text.partition(IDLE)[0].endswith("192 MiB of it is a model from program.py:84 in stages that ")
    if advice == PAIRS:
        assert "7,001 x 7,001 elements" in text


@pytest.mark.parametrize(
    ("source", "operation"),
    [
        ("loss = F.cross_entropy(logits.float().flatten(0, 1), labels)", Operation.LOSS),
        ("masks = F.interpolate(masks, shape, mode='bilinear')", Operation.RESIZE),
        ("scores = scores.to(torch.float32)", Operation.UPCAST),
        ("return self.head(self.norm(x)).float()", Operation.LOGITS),
        ("logits = F.linear(x, self.embed.weight)", Operation.LOGITS),
        ("planes = F.one_hot(labels, 36)", Operation.ONE_HOT),
        ("weight = torch.addmm(self.weight, self.up, self.down)", Operation.MERGE),
        ("return torch.linalg.norm(self.base.weight + self.scaling * update, dim=1)", Operation.MERGE),
        ("patches = F.unfold(features, 9, padding=4)", Operation.WINDOWS),
        ("values, order = scores.sort(dim=1)", Operation.SORT),
        ("adjacency = adjacency.to_dense()", Operation.DENSE),
        ("batch = pad_sequence(waves, batch_first=True)", Operation.PAD),
        ("messages = torch.bmm(neighbours, weight[graph.rel])", Operation.GATHER),
        ("memory = memory.expand(8, -1, -1).contiguous()", Operation.REPEAT),
        ("return 0.5 * x * (1.0 + torch.tanh(inner))", Operation.WRITTEN_OUT),
        ("return self.layers[self.index](x)", None),
        ("logits = self.net(x).squeeze()", None),
        ("x = self.blocks[idx](x)", None),
        ("z = mu + torch.exp(0.5 * logvar) * torch.randn_like(mu)", None),
        ("return x * self.weight + self.bias", None),
        ("buffer = buffers[x.device]", None),
        ("masters = [p.clone().float().detach() for p in group['params']]", Operation.UPCAST),
        ('pair = torch.einsum("ni,nj,ijk->nk", left, right, self.core)', Operation.CONTRACT),
        ('pair = torch.einsum("nik,nkj->nij", left, right)', None),
        ("return torch.pow(x - y, 2).sum(3)", Operation.REDUCE),
        ("return (a[:, None] - b[None]).abs().mean(-1)", Operation.REDUCE),
        ("union = area1[:, None] + area2 - inter", Operation.BROADCAST),
        ("scores = x.unsqueeze(2) * y.unsqueeze(1)", Operation.BROADCAST),
        ("preds = torch.cat([preds, batch])", Operation.JOIN),
        ("background = background.repeat(height * width, 1)", Operation.REPEAT),
        ("loss = (x - y).pow(2).mean()", None),  # every loss
        ("x = self.layers(x)", None),
        ("loss = float(total)", None),
        ("y = experts(x).mean(dim=0)", None),
        ("cache = torch.empty(1 << 30, dtype=torch.float32, device=device)", Operation.ALLOCATE),
        ("loss = model(torch.zeros(8, 4, device=device)).mean()", None),
        (None, None),
    ],
)
def test_operation_is_read_from_the_source_of_a_line(source: str | None, operation: Operation | None) -> None:
    assert find_operation(Site("train.py", 1, "train", source, True), []) is operation


def test_operation_is_read_from_the_function_of_torch_that_a_line_calls() -> None:
    site = Site("train.py", 9, "train", "loss = self.criterion(logits, labels)", True)
    inner, own = Frame("cross_entropy", "functional.py", 3, None), Frame("train", "train.py", 9, None)

    assert find_operation(site, [inner, own]) is Operation.LOSS
    assert find_operation(site, [own, inner]) is None


def test_copies_in_the_step_of_an_optimizer_are_an_operation() -> None:
    site = Site("train.py", 9, "train", "optimizer.step()", True)
    inner, own = Frame("_multi_tensor_adam", "adam.py", 3, None), Frame("train", "train.py", 9, None)

    assert find_operation(site, [inner, own]) is Operation.STEP


@pytest.mark.parametrize("source", ["loss = F.cross_entropy(model(x), y)", "y = model(x.float())"])
def test_source_of_a_line_says_nothing_of_a_module_that_it_calls(source: str) -> None:
    site = Site("train.py", 9, "train", source, True)
    frames = [Frame("forward", "conv.py", 3, None), Frame("_call_impl", "module.py", 5, None)]

    assert find_operation(site, [*frames, Frame("train", "train.py", 9, None)]) is None


@pytest.mark.parametrize(
    ("function", "source", "operation"),
    [
        ("Attention.forward", "weights = scores.softmax(-1)", Operation.ATTENTION),
        ("attend", "scores = query @ key.transpose(-2, -1)", Operation.ATTENTION),
        ("Block.forward", "x = self.drop(attn.softmax(-1)) @ v", Operation.ATTENTION),
        ("Attention.forward", "dots = torch.matmul(q, k.transpose(-1, -2)) * self.scale", Operation.ATTENTION),
        ("Attention.forward", "dots = torch.einsum('bhid,bhjd->bhij', q, k)", Operation.ATTENTION),
        ("Attention.forward", "q, k, v = self.qkv(x).chunk(3, -1)", None),
        ("Attention.forward", "x = (attn @ v).transpose(1, 2).reshape(b, n, c)", None),
        ("Attention.forward", "q = x @ self.w_q.t()", None),
        ("Attention.forward", "q = torch.einsum('bnd,dhk->bhnk', x, self.w_q)", None),
        ("LinearAttention.forward", "q = q.softmax(-1)", None),
        ("AttentionPool.forward", "weights = torch.softmax(self.score(x), dim=1)", None),
        ("GraphAttention.forward", "alpha = softmax(e, edge_index[1])", None),
        ("Attention.forward", "return F.scaled_dot_product_attention(q, k, v.transpose(1, 2))", None),
        ("Head.forward", "return x.softmax(-1)", None),
    ],
)
def test_matrices_of_an_attention_are_an_operation(function: str, source: str, operation: Operation | None) -> None:
    assert find_operation(Site("net.py", 9, function, source, True), []) is operation


@pytest.mark.parametrize(
    ("function", "source", "operation"),
    [
        ("softmax", "ret = input.softmax(dim)", Operation.ATTENTION),
        ("multi_head_attention_forward", "attn_output = scaled_dot_product_attention(", None),
    ],
)
def test_attention_of_torch_stores_its_matrices_only_for_weights(
    function: str, source: str, operation: Operation | None
) -> None:
    site, own = Site("net.py", 9, "forward", "x, _ = self.mix(x, x, x)", True), Frame("forward", "net.py", 9, None)
    call, attention = Frame("_call_impl", "module.py", 5, None), Frame("multi_head_attention_forward", "f.py", 4, None)

    assert find_operation(site, [Frame(function, "f.py", 3, source), attention, call, own]) is operation


def test_weights_that_a_parametrization_computes_are_an_operation() -> None:
    site, own = Site("net.py", 9, "forward", "h = self.gate(h)", True), Frame("forward", "net.py", 9, None)
    call = Frame("_call_impl", "module.py", 5, None)
    parametrized = Frame("get_parametrized", "/torch/nn/utils/parametrize.py", 4, None)

    assert find_operation(site, [call, parametrized, call, own]) is Operation.PARAMETRIZED


def test_last_segment_of_checkpoint_sequential_is_an_operation() -> None:
    site, own = Site("net.py", 9, "forward", "x = self.norm(x)", True), Frame("forward", "net.py", 9, None)
    sequential = Frame("checkpoint_sequential", "/torch/utils/checkpoint.py", 4, None)
    checkpoint = Frame("checkpoint", "/torch/utils/checkpoint.py", 2, None)

    assert find_operation(site, [own, sequential]) is Operation.LAST_SEGMENT
    assert find_operation(site, [own, checkpoint, sequential]) is None


def test_resized_features_are_a_part_of_a_model() -> None:
    site = Site("net.py", 9, "forward", "return F.interpolate(x, scale_factor=2)", True)
    own, call = Frame("forward", "net.py", 9, None), Frame("_call_impl", "module.py", 5, None)

    assert find_operation(site, [own, call]) is None
    assert find_operation(site, [own]) is Operation.RESIZE
    assert find_operation(site, [Frame("interpolate", "functional.py", 3, None), call, own]) is Operation.RESIZE


def test_module_without_parameters_is_named_where_its_activations_make_the_peak(folder: Path) -> None:
    text = " ".join(run_analyze(folder, "losses.alloctrace").split())

    assert "activation checkpointing of Skeleton (torch.utils.checkpoint" in text


def test_checkpoint_of_a_whole_model_is_named_by_the_line_that_calls_it(folder: Path) -> None:
    text = " ".join(run_analyze(folder, "checkpoints.alloctrace").split())

    line = 1 + next(n for n, source in enumerate(PROGRAM.splitlines()) if "checkpoint.checkpoint(model" in source)
    assert f"program.py:{line} in checkpoints checkpoints a large part, and backward computes all its" in text
    assert "What lowers it: checkpoint smaller parts" in text


def test_loop_within_a_forward_is_checkpointed_by_iterations(folder: Path) -> None:
    text = " ".join(run_analyze(folder, "waves.alloctrace").split())

    assert "or torch.utils.checkpoint of the iterations of the loop that runs program.py:" in text
    assert "in Waves.forward (40 blocks are live)" in text


def test_line_of_other_blocks_is_not_blamed_for_temporaries(folder: Path) -> None:
    text = " ".join(run_analyze(folder, "large_weights.alloctrace").split())

    assert "Temporaries are " in text and " of this peak. What lowers it" in text
