"""Programs that call modules in many ways, with module names from torch's global forward hooks.

`module_programs.py PROGRAM DEVICE` records plain.alloctrace, and hooks.alloctrace with a region around each call.
"""

from __future__ import annotations

import contextlib
import gc
import sys
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils.checkpoint import checkpoint

import pytorch_alloctrace as alloctrace

device = "cpu"


class Account:
    """Module names that a reader of the program would choose."""

    def __init__(self) -> None:
        self.names: dict[nn.Module, str] = {}
        self.calls = threading.local()

    def root(self, module: nn.Module, name: str) -> Any:
        """Name a module and its unnamed submodules."""
        for inner, part in [(part, name) for name, part in module.named_modules()]:
            self.names.setdefault(inner, f"{name}.{part}" if part else name)
        return module

    def unnamed(self, module: nn.Module) -> Any:
        """Add a module outside any model: its name is its class, below the calling module."""
        self.names[module] = ""
        return module

    def enter(self, module: nn.Module, arguments: Any) -> None:
        calls = self.calls.__dict__.setdefault("stack", [])
        name = self.names[module]
        if not name:
            name = f"{calls[-1][0]}.({type(module).__name__})" if calls else f"({type(module).__name__})"
        region = alloctrace.region(name)
        region.__enter__()
        calls.append((name, region))

    def leave(self, module: nn.Module, arguments: Any, result: Any) -> None:
        self.calls.stack.pop()[1].__exit__(None, None, None)


account = Account()


def tensor(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, device=device)


def train(model: nn.Module, *inputs: torch.Tensor, steps: int = 2) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(steps):
        model(*inputs).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def mlp() -> None:
    """Train layers of different sizes."""
    model = nn.Sequential(nn.Linear(17, 31), nn.ReLU(), nn.Linear(31, 53), nn.ReLU(), nn.Linear(53, 71)).to(device)
    train(account.root(model, "Sequential"), tensor(11, 17))


class Attention(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        weights = account.unnamed(nn.Softmax(dim=-1))(q @ k.transpose(-2, -1))  # new in each forward
        return self.out(weights @ v)


class Layer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.attention = Attention(width)
        self.norm = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm(x))
        return x + self.mlp(x)


class Encoder(nn.Module):
    def __init__(self, layers: int, width: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Layer(width) for _ in range(layers)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


class Transformer(nn.Module):
    def __init__(self, layers: int = 4, width: int = 32) -> None:
        super().__init__()
        self.embedding = nn.Embedding(100, width)
        self.encoder = Encoder(layers, width)
        self.head = nn.Linear(width, 100)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.encoder(self.embedding(tokens)))


def transformer() -> None:
    model = account.root(Transformer().to(device), "Transformer")
    loss = account.root(nn.CrossEntropyLoss(), "CrossEntropyLoss")
    optimizer = torch.optim.AdamW(model.parameters())
    tokens = torch.randint(0, 100, (3, 24), device=device)
    for step in range(3):
        loss(model(tokens).flatten(0, 1), tokens.flatten()).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=step % 2 == 0)
    # A submodule called directly keeps its name in the model.
    with torch.no_grad():
        model.encoder.layers[2](model.embedding(tokens))


class Shared(nn.Module):
    """Model with one convolution under two names; named_modules() returns the first."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True))
        self.first = nn.Conv2d(8, 8, 3, padding=1)
        self.again = self.first
        self.pool = nn.MaxPool2d(2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        return self.pool(self.again(torch.relu(self.first(x))))


def convolutions() -> None:
    train(account.root(Shared().to(device), "Shared"), tensor(2, 3, 20, 20))


class Tree(nn.Module):
    """Recursive module, with modules in a list and a dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self.cells = nn.ModuleList([nn.Linear(12, 12) for _ in range(3)])
        self.ends = nn.ModuleDict({"left": nn.Linear(12, 5), "right": nn.Linear(12, 7)})

    def forward(self, x: torch.Tensor, depth: int) -> torch.Tensor:
        x = torch.tanh(self.cells[depth](x))
        if depth + 1 < len(self.cells):
            return self(x, depth + 1)  # recursion: the same instance
        return torch.cat([end(x) for end in self.ends.values()], dim=1)


def recursion() -> None:
    model = account.root(Tree().to(device), "Tree")
    for _ in range(2):
        model(tensor(9, 12), 0).sum().backward()


def two_models() -> None:
    """Train a generator and two discriminators, all of one class."""
    layers = nn.Linear(6, 40), nn.LeakyReLU(), nn.Linear(40, 13), nn.Tanh()
    generator = account.root(nn.Sequential(*layers).to(device), "Sequential")
    critics = [nn.Sequential(nn.Linear(13, 21), nn.ReLU(), nn.Linear(21, 1)).to(device) for _ in range(2)]
    account.root(critics[0], "Sequential#2")
    account.root(critics[1], "Sequential#3")
    optimizers = [torch.optim.Adam(model.parameters()) for model in (generator, *critics)]
    for _ in range(3):
        generated = generator(tensor(7, 6))
        for critic, optimizer in zip(critics, optimizers[1:], strict=True):
            (critic(generated.detach()).mean() - critic(tensor(7, 13)).mean()).backward()
            optimizer.step()
        (critics[0](generated) + critics[1](generated)).mean().backward()
        optimizers[0].step()


def replaced_models() -> None:
    """Train models that are deleted and replaced by models of other shapes."""
    for number in range(6):
        model = nn.Sequential(*[nn.Linear(10, 10) for _ in range(1 + number % 3)], nn.ReLU()).to(device)
        account.names.clear()
        train(account.root(model, "Sequential"), tensor(4, 10))
        wrapped = nn.Sequential(nn.ReLU(), nn.Linear(10, 10)).to(device)
        train(account.root(wrapped, "Sequential#2"), tensor(4, 10))
        del model, wrapped
        account.names.clear()
        gc.collect()


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 16)) for _ in range(3)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return x


def recomputed() -> None:
    """Call modules in backward, on a GPU in an autograd thread: outside the model's call, with the model's names."""
    train(account.root(Checkpointed().to(device), "Checkpointed"), tensor(8, 16).requires_grad_())


class Own(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * 2


class Odd(nn.Module):
    """Model with modules in a plain list, a failing call, its own hooks and an autograd function."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = [nn.Linear(14, 14).to(device), nn.Sequential(nn.Linear(14, 14)).to(device)]
        self.inner = nn.Linear(14, 14)
        self.inner.register_forward_pre_hook(lambda module, arguments: (arguments[0] + 1,))
        # torch calls a module's own hooks after the global hooks of the account.
        self.inner.register_forward_hook(lambda module, arguments, result: None)

    def forward(self, x: torch.Tensor, fail: bool = False) -> torch.Tensor:
        if fail:
            raise ValueError(x + 1)
        x = self.hidden[1](self.hidden[0](x))
        return Own.apply(self.inner(x))


def odd_calls() -> None:
    model = Odd().to(device)
    account.root(model, "Odd")
    account.unnamed(model.hidden[0])
    account.root(model.hidden[1], "Sequential")
    for step in range(3):
        model(tensor(5, 14)).sum().backward()
        with contextlib.suppress(ValueError):
            model(tensor(5, 14), fail=step == 1)


def submodule_first() -> None:
    """Call a submodule before its model: the submodule has its name in the model from the first call."""
    model = account.root(Transformer(2).to(device), "Transformer")
    model.encoder.layers[1](tensor(1, 4, 32))
    model(torch.randint(0, 100, (3, 24), device=device))


PROGRAMS: dict[str, Callable[[], None]] = {
    function.__name__: function
    for function in (
        *(mlp, transformer, convolutions, recursion, two_models, replaced_models, recomputed, odd_calls),
        submodule_first,
    )
}


def record(program: str, trace: str) -> None:
    account.names.clear()
    gc.collect()
    torch.manual_seed(0)
    with alloctrace.enable(trace, overwrite=True, devices=device):
        PROGRAMS[program]()


if __name__ == "__main__":
    program, device = sys.argv[1:]
    PROGRAMS[program]()  # libraries allocate their workspaces once per process
    record(program, "plain.alloctrace")
    register_module_forward_pre_hook(account.enter)
    register_module_forward_hook(account.leave, always_call=True)
    record(program, "hooks.alloctrace")
