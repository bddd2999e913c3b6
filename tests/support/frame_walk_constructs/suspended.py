"""Functions that stop in the middle: comprehensions, generators, coroutines."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Coroutine, Generator, Iterator
from typing import Any

from .registry import Inner, construct


@construct
def comprehensions(inner: Inner, number: int) -> object:
    kind = number % 5
    if kind == 0:
        return [inner() for _ in range(2)]
    if kind == 1:
        return {index: inner() for index in range(2)}
    if kind == 2:
        return {inner() for _ in range(2)}
    if kind == 3:
        return [[inner() for _ in range(1)] for _ in range(2)]
    return [
        value
        for value in range(1)
        if inner() is None
        for _ in [
            inner(),
        ]
    ]


@construct
def generator_expression(inner: Inner, number: int) -> object:
    return tuple(inner() for _ in range(2)) if number % 2 else any(inner() for _ in range(1))


@construct
def generator_thrown_into(inner: Inner, number: int) -> None:
    def generate() -> Iterator[None]:
        try:
            yield
        except KeyError:
            inner()
            yield

    def outer() -> Generator[None, None, None]:
        yield from generate()

    running = outer()
    next(running)
    running.throw(KeyError("thrown"))


@construct
def generator_closed(inner: Inner, number: int) -> None:
    def generate() -> Generator[None, None, None]:
        try:
            yield
        finally:
            inner()

    running = generate()
    next(running)
    if number % 2:
        running.close()
    else:
        del running


def drive(coroutine: Coroutine[Any, Any, None]) -> None:
    with contextlib.suppress(StopIteration):
        while True:
            coroutine.send(None)


@construct
def coroutine(inner: Inner, number: int) -> None:
    async def innermost() -> None:
        inner()

    async def middle(depth: int) -> None:
        await (middle(depth - 1) if depth else innermost())

    drive(middle(number % 4))


@construct
def async_generator(inner: Inner, number: int) -> None:
    async def generate() -> AsyncIterator[int]:
        for index in range(2):
            inner()
            yield index

    async def outer() -> None:
        if number % 2:
            async for _ in generate():
                pass
        else:
            _ = [value async for value in generate() if value]

    drive(outer())


@construct
def event_loop(inner: Inner, number: int) -> None:
    async def task() -> None:
        await asyncio.sleep(0)
        inner()

    async def outer() -> None:
        await asyncio.gather(task(), asyncio.create_task(task()))

    # A loop cannot run inside another of the same thread.
    thread = threading.Thread(target=lambda: asyncio.run(outer()))
    thread.start()
    thread.join()
