"""Programs that allocate and free CUDA memory under Python stacks of many kinds."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from cuda_programs import PROGRAMS, work_pending_on
from frame_walk_constructs import CONSTRUCTS
from torch import nn
from torch.utils.checkpoint import checkpoint


def block(elements: int = 100) -> torch.Tensor:
    return torch.empty(elements, device="cuda")


def python_constructs(steps: int) -> None:
    """Allocate inside every construct by which one Python function runs inside another."""

    def inner() -> None:
        block(20)
        block(40)

    for number in range(steps):
        for construct in CONSTRUCTS.values():
            construct(inner, number)


class Holder:
    """Holder of a tensor that allocates in its destructor."""

    def __init__(self, elements: int) -> None:
        self.tensor = block(elements)
        self.other: Holder | None = None

    def __del__(self) -> None:
        self.other = None
        block(10)


def frees(steps: int) -> None:
    """Free by assignment, function return, garbage collection, destructors, callbacks and other threads."""

    def free_locals() -> int:
        local, again = block(3000), [block(30) for _ in range(3)]
        return local.numel() + len(again)

    def suspended() -> Iterator[torch.Tensor]:
        tensor = block(5000)
        with contextlib.suppress(ValueError):
            yield tensor
            yield block(7)

    for step in range(steps):
        value = block(step + 1)
        value = block(step + 2)
        free_locals()
        cycle = Holder(step + 10)
        cycle.other = Holder(20)
        cycle.other.other = cycle
        del cycle
        gc.collect(step % 3)
        generator = suspended()
        next(generator)
        if step % 2:
            generator.close()
        else:
            with contextlib.suppress(KeyError):
                generator.throw(KeyError())
        dead = block(60)
        reference = weakref.ref(dead, lambda _: block(6))
        del dead
        assert reference() is None
        contents = [block(900), Holder(8)]
        thread = threading.Thread(target=contents.clear, name="cleaner")
        thread.start()
        thread.join()
        try:
            raise RuntimeError(block(40))
        except RuntimeError as error:
            error.args = ()
        del value


def waiting_frees(steps: int) -> None:
    """Let frees wait for a stream until an allocation on another line completes them."""
    side = torch.cuda.Stream()

    def free_while_pending(elements: int) -> None:
        tensor = block(elements)
        side.wait_stream(torch.cuda.current_stream())
        tensor.record_stream(side)

    def complete() -> torch.Tensor:
        return block(500)

    for step in range(steps):
        with work_pending_on(side):
            free_while_pending(700 + step)
            free_while_pending(200_000 + step)
            other = block(30)
        complete()
        with work_pending_on(side):
            free_while_pending(20)
        torch.cuda.empty_cache()
        del other


class Doubling(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, x: torch.Tensor) -> torch.Tensor:
        context.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> torch.Tensor:
        (x,) = context.saved_tensors
        scratch = block(x.numel())
        return gradient * 2 + scratch.sum()


def autograd(steps: int) -> None:
    """Run Python hooks and functions on autograd's threads, which run no Python otherwise."""
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16)).cuda()
    model[0].register_full_backward_hook(lambda module, inner_gradients, gradients: (gradients[0] * block(1), None)[1])
    model[2].register_forward_hook(lambda module, inputs, output: output + block(16))
    model[0].weight.register_post_accumulate_grad_hook(lambda parameter: setattr(parameter, "grad", None))

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.clone()

    for step in range(steps):
        x = torch.ones(4 + step, 16, device="cuda", requires_grad=True)
        hidden = model(x)
        hidden.register_hook(lambda gradient: gradient + block(16))
        with torch.autograd.graph.saved_tensors_hooks(pack, pack):
            packed = hidden.sigmoid()
        double = Doubling.apply(packed)
        (first,) = torch.autograd.grad(double.sum(), packed, retain_graph=True, create_graph=step % 3 == 0)
        (checkpoint(model, double, use_reentrant=step % 2 == 0) * first).sum().backward()


def coroutines(steps: int) -> None:
    async def worker(number: int) -> torch.Tensor:
        tensor = block(number + 1)
        await asyncio.sleep(0)
        return tensor + (await asyncio.to_thread(block, 1))

    async def everyone() -> None:
        for step in range(steps):
            await asyncio.gather(*(worker(step + number) for number in range(3)))

    asyncio.run(everyone())


def deep(steps: int) -> None:
    def descend(levels: int) -> torch.Tensor:
        return descend(levels - 1) if levels else block(77)

    for step in range(steps):
        descend(step * 13 % 400)


def lines_of_one_statement(steps: int) -> None:
    for step in range(steps):
        (
            block(1)
            + block(
                step + 1,
            )[:1]
        )
        [
            block(size)
            for size in (
                2,
                3,
            )
        ]
        exec(
            compile(f"{chr(10) * (step % 30)}kept = block({step} + 1)", f"<made {step % 7}>", "exec"), {"block": block}
        )


ALLOCATOR_STEPS = {
    "streams": 30,
    "threads": 100,
    "transformer": 2,
    "out_of_memory": 8,
    "graphs": 5,
    "empty_cache": 10,
    "memory_pools": 30,
    "expandable_segments": 20,
}
STACK_PROGRAMS: dict[str, tuple[Callable[[int], None], int]] = {
    "python_constructs": (python_constructs, 6),
    "frees": (frees, 20),
    "waiting_frees": (waiting_frees, 20),
    "autograd": (autograd, 15),
    "coroutines": (coroutines, 20),
    "deep": (deep, 40),
    "lines_of_one_statement": (lines_of_one_statement, 40),
    **{name: (PROGRAMS[name].run, steps) for name, steps in ALLOCATOR_STEPS.items()},
}
"""Programs and their numbers of steps, by name."""
