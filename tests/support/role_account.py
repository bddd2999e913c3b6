"""Programs that train and infer, and compute the bytes of each role from their own objects.

`role_account.py DEVICE PROGRAM...` records PROGRAM.alloctrace, and writes the bytes by mark and role to PROGRAM.json.
"""

from __future__ import annotations

import contextlib
import functools
import json
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import pytorch_alloctrace as alloctrace

STEPS = 5
HOOKED_STEP = 2
"""Step in which hooks count autograd's saved tensors; other steps run without hooks."""
WIDTH = 96


class Account:
    """Bytes of each role at each mark, from the program's own objects."""

    def __init__(self, device: str) -> None:
        self._device = device
        self.at: dict[str, dict[str, int]] = {}
        """Bytes by mark and role."""
        self._marks: dict[str, int] = {}
        self._saved: dict[int, int] | None = None
        self._activations: int | None = None

    def storages(self, tensors: Iterable[torch.Tensor | None]) -> dict[int, int]:
        """Return the bytes of each distinct storage, by address."""
        sizes = {}
        for tensor in tensors:
            if tensor is None:
                continue
            parts = [tensor._indices(), tensor._values()] if tensor.is_sparse else [tensor]
            for part in parts:
                if part.device.type == self._device:
                    sizes[part.untyped_storage().data_ptr()] = part.untyped_storage().nbytes()
        sizes.pop(0, None)
        return sizes

    @contextlib.contextmanager
    def count_saved(self, step: int) -> Iterator[None]:
        """Count the tensors that autograd saves in the hooked step."""
        if step != HOOKED_STEP:
            yield
            return

        saved = self._saved = {}

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            saved.update(self.storages([tensor]))
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            yield

    def mark(
        self,
        name: str,
        model: nn.Module,
        optimizer: torch.optim.Optimizer | None = None,
        batch: Iterable[torch.Tensor] = (),
        others: Iterable[torch.Tensor] = (),
        unhooked: int = 0,
    ) -> None:
        """Set a mark and store bytes by role; `others` and `unhooked` are saved by autograd besides activations."""
        alloctrace.mark(name)
        self._marks[name] = self._marks.get(name, 0) + 1
        parameters = self.storages(model.parameters())
        by_role = {"parameter": parameters, "buffer": self.storages(model.buffers())}
        by_role["gradient"] = self.storages(parameter.grad for parameter in model.parameters())
        if optimizer is not None:
            states = [value for state in optimizer.state.values() for value in state.values()]
            by_role["optimizer state"] = self.storages(value for value in states if isinstance(value, torch.Tensor))
        sums = {role: sum(sizes.values()) for role, sizes in by_role.items()}
        if self._saved is not None:
            excluded = {*self.storages([*batch, *others]), *parameters, *by_role["buffer"]}
            self._activations = unhooked + sum(size for key, size in self._saved.items() if key not in excluded)
            self._saved = None
        if name == "forward" and self._activations is not None:
            sums["activation"] = self._activations
            sums["input"] = sum(self.storages(batch).values())
        self.at[f"mark:{name}#{self._marks[name]}"] = sums


class Block(nn.Module):
    """A small transformer block."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.mix = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.wide = nn.Linear(WIDTH, 4 * WIDTH)
        self.narrow = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = self.mix(self.norm(x)).chunk(3, dim=-1)
        weights = torch.softmax(query @ key.transpose(-1, -2) / WIDTH**0.5, dim=-1)
        x = x + self.out(weights @ value)
        return x + self.narrow(torch.nn.functional.gelu(self.wide(x)))


class Transformer(nn.Module):
    def __init__(self, *, checkpointed: bool | None = None, tied: bool = False) -> None:
        super().__init__()
        self.embedding = nn.Embedding(200, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.head = nn.Linear(WIDTH, 200, bias=False)
        self.reentrant = checkpointed
        if tied:
            self.head.weight = self.embedding.weight
            self.blocks[2] = self.blocks[0]

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x) if self.reentrant is None else checkpoint(block, x, use_reentrant=self.reentrant)
        return self.head(x)

    def unhooked_bytes(self, device: str) -> int:
        """Return the bytes saved without a hook: on the CPU, divisors and the random states of checkpoints."""
        if device != "cpu" or self.reentrant:
            return 0
        divisor, random_state = 8, torch.get_rng_state().nbytes
        return len(self.blocks) * (divisor if self.reentrant is None else divisor + random_state)


Batch = tuple[torch.Tensor, torch.Tensor]


def tokens(device: str) -> Batch:
    return torch.randint(200, (4, 32), device=device), torch.randint(200, (4, 32), device=device)


def vectors(device: str) -> Batch:
    return torch.randn(64, WIDTH, device=device), torch.randn(64, WIDTH, device=device)


def compute_loss(model: nn.Module, batch: Batch) -> torch.Tensor:
    """Return the loss, in a function so that no variable extends the lifetime of intermediate results."""
    inputs, targets = batch
    if targets.is_floating_point():
        return nn.functional.mse_loss(model(inputs), targets)
    return nn.functional.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())


def train(
    device: str,
    model: nn.Module,
    make_batch: Callable[[str], Batch] = tokens,
    *,
    make_optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer] = torch.optim.AdamW,
    micro_batches: int = 1,
    mixed: bool = False,
    set_to_none: bool = True,
) -> Account:
    account, model = Account(device), model.to(device)
    optimizer = make_optimizer(model.parameters())
    scaler = torch.amp.GradScaler(device, enabled=mixed)
    for step in range(STEPS):
        for _ in range(micro_batches):
            batch = make_batch(device)
            with account.count_saved(step), torch.autocast(device, torch.bfloat16, enabled=mixed):
                loss = compute_loss(model, batch)
            scaled = scaler.scale(loss)
            scale = [scaler._scale] if mixed else []
            unhooked = model.unhooked_bytes(device) if isinstance(model, Transformer) else 0
            account.mark("forward", model, optimizer, batch, scale, unhooked)
            scaled.backward()
            account.mark("backward", model, optimizer)
        scaler.step(optimizer)
        scaler.update()
        account.mark("stepped", model, optimizer)
        optimizer.zero_grad(set_to_none=set_to_none)
    return account


def infer(device: str) -> Account:
    """Run inference on a model with buffers."""
    first = OrderedDict(first=nn.Conv2d(3, 16, 3), norm=nn.BatchNorm2d(16), relu=nn.ReLU())
    last = OrderedDict(pool=nn.AdaptiveAvgPool2d(1), flat=nn.Flatten(), last=nn.Linear(16, 10))
    account, model = Account(device), nn.Sequential(first | last).to(device).eval()
    alloctrace.observe(model)
    with torch.no_grad():
        for _ in range(STEPS):
            alloctrace.step()
            model(torch.randn(8, 3, 16, 16, device=device))
            account.mark("inferred", model)
    return account


def flat(device: str) -> nn.Module:
    """Return a model whose parameters are views of one buffer, as FSDP makes them."""
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH)).to(device)
    buffer = torch.empty(sum(parameter.numel() for parameter in model.parameters()), device=device)
    begin = 0
    for parameter in model.parameters():
        view = buffer[begin : begin + parameter.numel()].view_as(parameter)
        view.copy_(parameter.detach())
        begin += parameter.numel()
        parameter.data = view
    return model


sparse = functools.partial(nn.Embedding, 500, 200, sparse=True)
"""Layer with a sparse gradient."""
momentum = functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9)

PROGRAMS: dict[str, Callable[[str], Account]] = {
    "plain": lambda device: train(device, Transformer()),
    "mixed": lambda device: train(device, Transformer(), mixed=True),
    "checkpointed": lambda device: train(device, Transformer(checkpointed=False)),
    "reentrant": lambda device: train(device, Transformer(checkpointed=True)),
    "accumulating": lambda device: train(device, Transformer(), micro_batches=3),
    "tied": lambda device: train(device, Transformer(tied=True)),
    "keeping": lambda device: train(device, Transformer(), make_optimizer=momentum, set_to_none=False),
    "flat": lambda device: train(device, flat(device), vectors),
    "sparse": lambda device: train(device, nn.Sequential(sparse()), make_optimizer=torch.optim.SparseAdam),
    "inference": infer,
}


if __name__ == "__main__":
    device, *programs = sys.argv[1:]
    for program in programs:
        with alloctrace.enable(f"{program}.alloctrace", devices=(device,)):
            account = PROGRAMS[program](device)
        with open(f"{program}.json", "w") as file:
            json.dump(account.at, file)
