"""Programs that fill a device of 2 GiB in different ways.

    python oom_cause_programs.py TRACE_FOLDER CASE...

records the cases one after another. The comment CHANGE marks the line that the verdict must name.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import gc
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.utils.checkpoint
from cuda_programs import give_back_everything
from torch import nn

import pytorch_alloctrace as alloctrace

MIB = 2**20
DEVICE = "cuda:0"


def make_layers(count: int, width: int) -> nn.Sequential:
    return nn.Sequential(*[nn.Sequential(nn.Linear(width, width), nn.ReLU()) for _ in range(count)])


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, rows: int, width: int) -> None:
    loss = model(torch.empty(rows, width, device=DEVICE)).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def batch_grows() -> None:
    model = make_layers(16, 1024).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters())
    for step in range(6):
        rows = 1024 if step < 5 else 32768
        out = model(torch.empty(rows, 1024, device=DEVICE))  # CHANGE
        optimizer.zero_grad()
        out.mean().backward()
        optimizer.step()


def kept_exceptions() -> None:
    model = make_layers(8, 1024).to(DEVICE)
    failures = {}
    for rows in (200_000, 100_000, 50_000, 25_000, 12_500):
        try:
            batch = torch.empty(rows, 1024, device=DEVICE)
            model(batch).mean().backward()
        except torch.OutOfMemoryError as error:
            failures[rows] = error  # CHANGE
    raise failures[rows]


def failed_trial_of_a_search() -> None:
    model = make_layers(8, 1024).to(DEVICE)
    failure, rows = None, 20_000
    while failure is None:
        try:
            model(torch.empty(rows, 1024, device=DEVICE)).mean().backward()
        except torch.OutOfMemoryError as error:
            failure = error  # CHANGE
        rows *= 2
    model(torch.empty(rows // 4, 1024, device=DEVICE)).mean().backward()


def first_backward_fails() -> None:
    model = nn.Sequential(nn.Conv2d(3, 64, 3), nn.ReLU(), nn.Conv2d(64, 64, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1))
    model.to(DEVICE)
    out = model(torch.empty(44, 3, 192, 192, device=DEVICE))  # CHANGE
    out.mean().backward()


def time_steps_in_first_forward() -> None:
    cell = nn.GRUCell(256, 1024).to(DEVICE)
    inputs = torch.empty(400, 512, 256, device=DEVICE)
    hidden = torch.zeros(512, 1024, device=DEVICE)
    for row in inputs:
        hidden = cell(row, hidden)  # CHANGE


class Recurrent(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cells = torch.nn.ModuleList([torch.nn.LSTMCell(512, 512), torch.nn.LSTMCell(512, 512)])
        self.head = torch.nn.Linear(512, 512)

    def forward(self, sequence: torch.Tensor) -> torch.Tensor:
        states: list[Any] = [None, None]
        outputs = []
        for x in sequence:
            for number, cell in enumerate(self.cells):
                states[number] = cell(x, states[number])
                x = states[number][0]
            outputs.append(self.head(x))
        return torch.stack(outputs)


def recurrent_model() -> None:
    model = Recurrent().to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters())
    for length in (10, 10, 10, 2500):
        loss = model(torch.empty(length, 64, 512, device=DEVICE)).sum()  # CHANGE
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def first_validation() -> None:
    model = make_layers(16, 1024).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters())
    for _ in range(6):
        train_step(model, optimizer, 256, 1024)
    model(torch.empty(32768, 1024, device=DEVICE))  # CHANGE


def joined_collection() -> None:
    collected = []
    for _ in range(60):
        collected.append(torch.empty(5 << 20, device=DEVICE))  # CHANGE
    torch.cat(collected)


def soup_of_copies() -> None:
    model = make_layers(16, 1024).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters())
    soup = []
    for _ in range(40):
        train_step(model, optimizer, 256, 1024)
        soup.append(copy.deepcopy(model))  # CHANGE


def dense_adjacency() -> None:
    nodes = 22_003
    torch.zeros(nodes, nodes, device=DEVICE)  # CHANGE


def layers_in_first_forward() -> None:
    layers = make_layers(40, 1024).to(DEVICE)
    x = torch.empty(8192, 1024, device=DEVICE)
    for layer in layers:
        x = x + layer(x)  # CHANGE


def evaluation_without_no_grad() -> None:
    model = make_layers(8, 1024).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters())
    outputs = []
    for _ in range(3):
        train_step(model, optimizer, 1024, 1024)
    while True:
        x = torch.empty(1024, 1024, device=DEVICE)
        outputs.append(model(x))  # CHANGE


def inference_without_no_grad() -> None:
    model = make_layers(8, 1024).to(DEVICE)
    results = []
    while True:
        x = torch.empty(2048, 1024, device=DEVICE)
        results.append(model(x).mean())  # CHANGE


def running_mean_with_its_graph() -> None:
    class Statistics:
        def __init__(self) -> None:
            self.mean = torch.zeros((), device=DEVICE)

        def update(self, value: torch.Tensor) -> None:
            self.mean = 0.9 * self.mean + 0.1 * value  # CHANGE

    model, statistics = make_layers(8, 1024).to(DEVICE), Statistics()
    while True:
        statistics.update(model(torch.empty(2048, 1024, device=DEVICE)).mean())


def gradients_of_single_samples() -> None:
    model = make_layers(4, 1024).to(DEVICE)

    def loss(parameters: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(model, parameters, (x,)).mean()

    gradients = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))
    gradients(dict(model.named_parameters()), torch.empty(200, 1024, device=DEVICE))  # CHANGE


def former_model_in_the_cache_of_a_method() -> None:
    class Encoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = make_layers(70, 2048).to(DEVICE)

        @functools.lru_cache(maxsize=4)  # CHANGE  # noqa: B019
        def positions(self, length: int) -> torch.Tensor:
            return torch.zeros(length, device=DEVICE)

    for _ in range(2):
        encoder = Encoder()
        encoder.positions(64)
        del encoder


def losses_are_added_up() -> None:
    model = make_layers(8, 1024).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters())
    for step in range(4):
        loss = torch.zeros((), device=DEVICE)
        for _ in range(2 if step < 3 else 200):
            x = torch.empty(1024, 1024, device=DEVICE)
            loss = loss + model(x).mean()  # CHANGE
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def losses_of_micro_batches() -> None:
    model = make_layers(8, 1024).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters())
    for rows in (128, 128, 128, 2048):
        losses = [model(torch.empty(rows, 1024, device=DEVICE)).mean() for _ in range(16)]  # CHANGE
        torch.stack(losses).mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def chunks_of_a_batch() -> None:
    model = make_layers(8, 1024).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters())
    for rows in (2048, 2048, 2048, 49152):
        batch, loss = torch.empty(rows, 1024, device=DEVICE), torch.zeros((), device=DEVICE)
        for chunk in batch.chunk(16):
            loss = loss + model(chunk).square().mean()  # CHANGE
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def first_micro_batches() -> None:
    model = make_layers(8, 1024).to(DEVICE)
    losses = []
    for _ in range(32):
        losses.append(model(torch.empty(2048, 1024, device=DEVICE)).mean())  # CHANGE
    torch.stack(losses).mean().backward()


def checkpoint_beside_the_model() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "checkpoint.pt")
        torch.save(make_layers(16, 2048).state_dict(), path)
        model = make_layers(16, 2048).to(DEVICE)
        checkpoint = torch.load(path, map_location=DEVICE)  # CHANGE
    model.load_state_dict(checkpoint)
    optimizer = torch.optim.Adam(model.parameters())
    train_step(model, optimizer, 16, 2048)


def checkpoint_before_the_model() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "checkpoint.pt")
        torch.save(make_layers(16, 2048).state_dict(), path)
        checkpoints = [torch.load(path, map_location=DEVICE) for _ in range(2)]  # CHANGE
        models = [make_layers(16, 2048).to(DEVICE) for _ in range(5)]
    del checkpoints, models


def first_step_of_adam() -> None:
    model = make_layers(24, 2048).to(DEVICE)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.empty(16, 2048, device=DEVICE)).mean().backward()
    optimizer.step()  # CHANGE


def large_batch_of_a_cached_model() -> None:
    @functools.cache
    def load() -> nn.Module:
        return make_layers(40, 2048).to(DEVICE).requires_grad_(False)

    embed = nn.Linear(1024, 2048).to(DEVICE)
    for rows in (64, 8192):
        out = load()(embed(torch.empty(rows, 1024, device=DEVICE)))  # CHANGE
        out.mean().backward()


def large_batch_beside_a_late_average() -> None:
    model = make_layers(8, 2048).to(DEVICE)
    optimizer = torch.optim.Adam(model.parameters())
    averages = []
    for rows in (64, 64, 64, 8192):
        out = model(torch.empty(rows, 2048, device=DEVICE))  # CHANGE
        optimizer.zero_grad(set_to_none=False)
        out.mean().backward()
        optimizer.step()
        if not averages:
            averages.append(copy.deepcopy(model))


def first_step_of_sgd_with_momentum() -> None:
    model = make_layers(37, 2048).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), momentum=0.9)
    model(torch.empty(16, 2048, device=DEVICE)).mean().backward()
    optimizer.step()  # CHANGE


def copies_in_a_step_of_adam() -> None:
    model = make_layers(21, 2048).to(DEVICE)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.empty(16, 2048, device=DEVICE)).mean().backward()
    optimizer.step()  # CHANGE


def optimizer_of_a_second_stage() -> None:
    stages = []
    for layers, width in ((32, 1024), (22, 2048)):
        model = make_layers(layers, width).to(DEVICE)
        optimizer = torch.optim.Adam(model.parameters())
        stages.append((model, optimizer))  # CHANGE
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.empty(16, width, device=DEVICE)).mean().backward()
            optimizer.step()


def copies_of_the_model() -> None:
    model = make_layers(20, 2048).to(DEVICE)
    models = []
    for _ in range(3):
        models.append(copy.deepcopy(model))
    models.append(copy.deepcopy(model))  # CHANGE


def models_of_a_search() -> None:
    trials = []
    for _ in range(9):
        model = make_layers(10, 1536).to(DEVICE)
        optimizer = torch.optim.Adam(model.parameters())
        train_step(model, optimizer, 16, 1536)
        trials.append((model, optimizer))  # CHANGE


def models_of_many_layers() -> None:
    versions = []
    for _ in range(16):
        model = make_layers(100, 768).to(DEVICE)
        with torch.no_grad():
            model(torch.empty(16, 768, device=DEVICE))
        versions.append(model)  # CHANGE


def models_of_threads() -> None:
    serve_in_threads(30, layers=10, goes_on=False)


def threads_that_go_on() -> None:
    serve_in_threads(150, layers=4, goes_on=True)


def serve_in_threads(count: int, layers: int, goes_on: bool) -> None:
    sessions = {}

    def answer(user: int) -> None:
        model = make_layers(layers, 1536).to(DEVICE)  # CHANGE
        sessions[user] = model
        with torch.no_grad():
            model(torch.empty(16, 1536, device=DEVICE))

    for user in range(count):
        thread = threading.Thread(target=answer, args=(user,))
        thread.start()
        thread.join()
        if user not in sessions and not goes_on:
            return


def model_does_not_fit() -> None:
    make_layers(120, 2048).to(DEVICE)  # CHANGE


def broadcast_of_losses() -> None:
    model = nn.Linear(32, 1).to(DEVICE)
    for rows in (1000, 1000, 30000):
        target = torch.empty(rows, device=DEVICE)
        prediction = model(torch.empty(rows, 32, device=DEVICE))
        loss = (prediction - target).pow(2).mean()  # CHANGE
        loss.backward()


def attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    scores = query @ key.transpose(-2, -1)
    return scores.softmax(-1) @ value  # CHANGE


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(128, 384)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return attend(*self.project(x).chunk(3, -1))


def long_attention() -> None:
    model = Attention().to(DEVICE)
    for length in (1024, 1024, 14000):
        model(torch.empty(1, length, 128, device=DEVICE)).mean().backward()


def attend_scaled(query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    return (query @ key.transpose(-2, -1) / 8).softmax(-1)  # CHANGE


def scaled_attention() -> None:
    project = nn.Linear(128, 256).to(DEVICE)
    for length in (1024, 1024, 14500):
        attend_scaled(*project(torch.empty(1, length, 128, device=DEVICE)).chunk(2, -1)).mean().backward()


def layers_of_attention() -> None:
    model = nn.Sequential(*[Attention() for _ in range(12)]).to(DEVICE)
    for length in (512, 512, 6144):
        out = model(torch.empty(1, length, 128, device=DEVICE))  # CHANGE
        out.mean().backward()


def all_pairs() -> None:
    items = torch.empty(4000, 64, device=DEVICE)
    (items[:, None] - items[None]).pow(2)  # CHANGE


def preallocated_cache() -> None:
    model = make_layers(4, 1024).to(DEVICE)
    cache = [torch.zeros(14000, 1024, device=DEVICE) for _ in range(24)]  # CHANGE
    with torch.no_grad():
        model(torch.empty(32768, 1024, device=DEVICE))
    cache.clear()


def inference_of_a_large_batch() -> None:
    model = make_layers(3, 4096).to(DEVICE)
    with torch.no_grad():
        model(torch.empty(1000, 4096, device=DEVICE))
        model(torch.empty(30000, 4096, device=DEVICE))  # CHANGE


def frozen_layers_of_a_large_batch() -> None:
    frozen = make_layers(4, 2048).requires_grad_(False)
    model = nn.Sequential(frozen, nn.Linear(2048, 10)).to(DEVICE)
    for rows in (1000, 1000, 60000):
        model(torch.empty(rows, 2048, device=DEVICE)).mean().backward()  # CHANGE


def large_request_beside_stranded_memory() -> None:
    blocks, pinning = [], []
    for _ in range(8):  # each round fills a segment of 20 MiB
        blocks += [torch.empty(15 * MIB // 2, dtype=torch.uint8, device=DEVICE) for _ in range(2)]
        pinning.append(torch.empty(5 * MIB, dtype=torch.uint8, device=DEVICE))
    del blocks
    for _ in range(60):
        torch.empty(2 * MIB, dtype=torch.uint8, device=DEVICE)
    torch.empty(50_000, device=DEVICE) - torch.empty(50_000, 1, device=DEVICE)  # CHANGE


def models_in_one_autocast_region() -> None:
    with torch.autocast("cuda", dtype=torch.bfloat16):  # CHANGE
        while True:
            model = make_layers(4, 2048).to(DEVICE)
            model(torch.empty(16, 2048, device=DEVICE)).mean().item()


def unrolled_simulation() -> None:
    gain, state, cost = torch.ones(1, device=DEVICE, requires_grad=True), torch.empty(MIB, device=DEVICE), 0
    for _ in range(400):
        state = torch.tanh(state * gain)
        cost = cost + state.square().mean()
    cost.backward()


class Rollout(nn.Module):
    def forward(self, state: torch.Tensor, gain: torch.Tensor) -> torch.Tensor:
        for _ in range(600):
            state = torch.tanh(state * gain)
        return state


def rollout_of_a_model() -> None:
    model, rollout = nn.Linear(256, 256).to(DEVICE), Rollout()
    inputs = torch.empty(16, 256, device=DEVICE)
    out = rollout(torch.empty(MIB, device=DEVICE), model(inputs).mean())  # CHANGE
    out.mean().backward()


def leak_beside_the_model() -> None:
    model = make_layers(8, 2048).to(DEVICE)
    optimizer = torch.optim.Adam(model.parameters())
    outputs = []
    while True:
        out = model(torch.empty(1024, 2048, device=DEVICE))  # CHANGE
        optimizer.zero_grad()
        out.mean().backward()
        optimizer.step()
        outputs.append(out.detach())  # STORE


def join_to_cache(past: torch.Tensor | None, new: torch.Tensor) -> torch.Tensor:
    return new if past is None else torch.cat((past, new), 1)  # CHANGE


class CachedLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(1024, 1024)

    def forward(self, x: torch.Tensor, past: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
        new = self.inner(x)
        past = join_to_cache(past, new)
        return past.mean(1, keepdim=True), past


def generation_with_a_cache() -> None:
    layer = CachedLayer().to(DEVICE)
    past, x = None, torch.empty(512, 1, 1024, device=DEVICE)
    with torch.no_grad():
        while True:
            x, past = layer(x, past)


def rows_of_a_jacobian() -> None:
    torch.autograd.functional.jacobian(lambda x: (2 * x)[:200], torch.empty(4 * MIB, device=DEVICE))  # CHANGE


def misfits_of_a_line_search() -> None:
    gain, misfits = torch.ones(1, device=DEVICE, requires_grad=True), []
    data = torch.empty(48 * MIB, device=DEVICE)
    (data * gain).tanh().exp().mean().backward()
    for number in range(4):
        misfits.append((data * (gain + number)).tanh().exp().mean())  # CHANGE
    min(misfits).backward()


def one_checkpoint_of_all_layers() -> None:
    layers = make_layers(24, 1024).to(DEVICE)

    def trunk(x: torch.Tensor) -> torch.Tensor:
        for layer in layers:
            x = layer(x)
        return x

    x = torch.empty(16384, 1024, device=DEVICE, requires_grad=True)
    torch.utils.checkpoint.checkpoint(trunk, x, use_reentrant=False).mean().backward()  # CHANGE


def one_hot_beside_fragments() -> None:
    large = torch.empty(200 * MIB, device=DEVICE)
    del large
    pin = torch.empty(16 * MIB, device=DEVICE)
    for voxels in (2_500_000, 9_400_000):
        nn.functional.one_hot(torch.zeros(voxels, dtype=torch.long, device=DEVICE), 15)  # CHANGE
    del pin


def steps_of_second_order() -> None:
    weight = torch.empty(3072, 3072, device=DEVICE, requires_grad=True)
    inputs = torch.empty(256, 3072, device=DEVICE)

    def adapt(fast: torch.Tensor, steps: int) -> torch.Tensor:
        for _ in range(steps):
            loss = (inputs @ fast).square().mean() + fast.pow(3).mean()
            (gradient,) = torch.autograd.grad(loss, fast, create_graph=True)  # CHANGE
            fast = fast - 0.1 * gradient
        return fast

    for _ in range(3):
        (inputs @ adapt(weight, 2)).square().mean().backward()
    adapt(weight, 40)


def weight_norm_in_a_loop() -> None:
    cell = nn.utils.parametrizations.weight_norm(nn.Linear(2048, 2048)).to(DEVICE)
    state = torch.empty(4, 2048, device=DEVICE)
    for _ in range(200):
        state = cell(state)  # CHANGE


def copies_of_agents_with_replay() -> None:
    class Agent:
        def __init__(self) -> None:
            self.net = make_layers(4, 512).to(DEVICE)
            self.replay = torch.empty(40 * MIB, device=DEVICE)

    agent, members = Agent(), []
    for _ in range(12):
        with torch.no_grad():
            agent.net(torch.empty(16, 512, device=DEVICE))
        member = copy.deepcopy(agent)
        members.append(member)  # CHANGE


def graphs_of_a_generator() -> None:
    model = make_layers(6, 1024).to(DEVICE)
    with torch.no_grad():
        outputs = (model(torch.empty(8192, 1024, device=DEVICE)).mean() for _ in range(64))  # CHANGE
    list(outputs)


def hessian_of_all_rows() -> None:
    x = torch.empty(2048, device=DEVICE)
    torch.autograd.functional.hessian(lambda x: (x[:, None] * x.sin()).square().sum(), x, vectorize=True)  # CHANGE


def trainers_that_are_garbage() -> None:
    class Decay:
        def __init__(self, trainer: Trainer) -> None:
            self.trainer = trainer  # CHANGE

    class Trainer:
        def __init__(self) -> None:
            self.model = make_layers(24, 1024).to(DEVICE)
            self.optimizer = torch.optim.Adam(self.model.parameters())
            self.callbacks = [Decay(self)]

    gc.disable()
    try:
        while True:
            trainer = Trainer()
            train_step(trainer.model, trainer.optimizer, 16, 1024)
    finally:
        gc.enable()
        gc.collect()


def embedding_with_many_rows() -> None:
    table = nn.Embedding(1_500_000, 128).to(DEVICE)  # CHANGE
    model = nn.Sequential(table, nn.Linear(128, 1).to(DEVICE))
    optimizer = torch.optim.SGD(model.parameters(), momentum=0.9)
    for _ in range(2):
        loss = model(torch.zeros(64, dtype=torch.long, device=DEVICE)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def prepared_in_variables() -> None:
    wave = torch.empty(100 * MIB, device=DEVICE)
    spectrum = torch.stack((wave, wave))  # CHANGE
    features = spectrum[0, : 1024 * 1024].clone()
    model = make_layers(16, 1024).to(DEVICE)
    for _ in range(3):
        model(features.view(1024, 1024).repeat(50, 1)).mean().backward()


def outputs_of_rollouts() -> None:
    model = make_layers(4, 1024).to(DEVICE)
    rollouts: list[dict[str, torch.Tensor]] = []
    with torch.no_grad():
        while len(rollouts) < 6:
            inputs = torch.empty(49152, 1024, device=DEVICE)
            rollouts.append({"logits": model(inputs), "rewards": torch.empty(100, device=DEVICE)})  # CHANGE
        model(torch.empty(262144, 1024, device=DEVICE))


def data_of_numpy() -> None:
    model = make_layers(16, 1024).to(DEVICE).double()
    volume = torch.ones(8192, 1024, dtype=torch.float64).to(DEVICE)
    while True:
        loss = model(volume.repeat(4, 1)).mean()  # CHANGE
        loss.backward()


def run(program: Callable[[], Any], folder: Path) -> None:
    with alloctrace.enable(folder / f"{program.__name__}.alloctrace", devices=("cuda",)):  # noqa: SIM117
        with contextlib.suppress(torch.OutOfMemoryError):
            program()
    give_back_everything()


if __name__ == "__main__":
    for name in sys.argv[2:]:
        run(globals()[name], Path(sys.argv[1]))
