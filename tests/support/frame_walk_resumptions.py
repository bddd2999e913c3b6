"""Random resumption of generators, coroutines and greenlets at varying depth, for Python 3.10 to 3.14.

A suspended frame keeps its address while the frames that it was resumed from return and their memory is unmapped. The
probe's check build aborts the process if a walk reads a frame that is not live, or caches one that does not exist.
"""

from __future__ import annotations

import gc
import importlib
import importlib.util
import random
import sys
import threading
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from typing import Any

from frame_walk_checker import Checker

HAS_GREENLET = importlib.util.find_spec("greenlet") is not None
MAX_DEPTH = 320
"""Maximum number of frames below a resumption. CPython maps frames in chunks of 16 KiB: about 50 of these."""
MAX_NESTING = 4
"""Maximum number of nested resumptions."""
POOL_SIZE = 24
"""Number of suspended and running objects."""

Action = Callable[[], None]
Resume = Callable[[bool], bool]
"""Function that resumes an object up to its next suspension, and returns whether it can be resumed again. Given True,
raises Thrown inside the object."""


class Thrown(Exception):
    """Exception that is raised inside suspended objects."""


def descend(depth: int, action: Action) -> None:
    """Call the action below `depth` frames that are large enough to fill chunks quickly."""
    a = b = c = d = e = f = g = h = i = j = k = m = n = o = p = q = depth
    if depth > 0:
        descend(depth - 1, action)
    else:
        action()
    del a, b, c, d, e, f, g, h, i, j, k, m, n, o, p, q


def generate(level: int, leaf: Action) -> Generator[None, None, None]:
    if level > 0 and level % 2:
        yield from generate(level - 1, leaf)
        return
    if level > 0:
        for _ in generate(level - 1, leaf):  # an exception is not passed on to the inner generator
            leaf()
            yield
        return
    while True:
        leaf()
        try:
            yield
        except Thrown:
            leaf()
            yield


class Suspension:
    def __await__(self) -> Iterator[None]:
        yield


async def await_nested(level: int, leaf: Action) -> None:
    if level > 0:
        await await_nested(level - 1, leaf)
        return
    while True:
        leaf()
        try:
            await Suspension()
        except Thrown:
            leaf()


async def generate_async(leaf: Action) -> AsyncIterator[None]:
    while True:
        leaf()
        await Suspension()
        yield


async def consume_async(leaf: Action) -> None:
    async for _ in generate_async(leaf):
        leaf()


def resume_generator(generator: Any) -> Resume:
    started = False

    def resume(throws: bool) -> bool:
        nonlocal started
        try:
            if throws and started:
                generator.throw(Thrown())
            else:
                started = True
                generator.send(None)
        except (StopIteration, Thrown):
            return False
        return True

    return resume


def resume_greenlet(leaf: Action) -> Resume:
    module: Any = importlib.import_module("greenlet")

    def run() -> None:
        while True:
            leaf()
            try:
                module.getcurrent().parent.switch()
            except Thrown:
                leaf()

    suspended = module.greenlet(run)

    def resume(throws: bool) -> bool:
        suspended.parent = module.getcurrent()
        try:
            suspended.throw(Thrown()) if throws and suspended else suspended.switch()
        except Thrown:
            return False
        return not suspended.dead

    return resume


class Scheduler:
    """A pool of suspended objects, resumed in random order from random depths."""

    def __init__(self, checker: Checker, seed: int) -> None:
        self.checker = checker
        self.random = random.Random(seed)
        self.walks = 0
        self.nesting = 0
        self.pool: list[Resume] = []

    def leaf(self) -> None:
        """Walk, compare a few stacks with traceback's, and resume others from here."""
        for _ in range(self.random.randrange(1, 4)):
            self.walk()
        if self.random.random() < 0.02:
            self.checker.check_fast()
        if self.nesting < MAX_NESTING and self.random.random() < 0.4:
            self.resume_one()
            self.walk()

    def walk(self) -> None:
        self.walks += 1
        if self.checker.walk() == 0:
            self.checker.expect(False, "no stack")

    def make(self) -> Resume:
        kind = self.random.randrange(5 if HAS_GREENLET and threading.current_thread() is threading.main_thread() else 4)
        if kind < 2:
            return resume_generator(generate(self.random.randrange(6), self.leaf))
        if kind == 2:
            return resume_generator(await_nested(self.random.randrange(4), self.leaf))
        if kind == 3:
            return resume_generator(consume_async(self.leaf))
        return resume_greenlet(self.leaf)

    def resume_one(self) -> None:
        """Resume a suspended object from a random depth; a deep resumption is often followed by a shallow one."""
        is_full = len(self.pool) + self.nesting >= POOL_SIZE
        resume = self.pool.pop(self.random.randrange(len(self.pool))) if is_full else self.make()
        is_suspended = True

        def resume_here() -> None:
            nonlocal is_suspended
            is_suspended = resume(self.random.random() < 0.1)

        self.nesting += 1
        some_depth = self.random.randrange(MAX_DEPTH)
        for depth in self.random.choice(((0,), (MAX_DEPTH, 0), (0, MAX_DEPTH, 0), (some_depth,))):
            if is_suspended:
                descend(depth, resume_here)
        self.nesting -= 1
        if is_suspended and self.random.random() > 0.03:  # deallocation closes the others
            self.pool.append(resume)

    def run(self, count: int) -> None:
        for _ in range(count):
            self.resume_one()


def recurse_until_stopped(scheduler: Scheduler) -> None:
    """Recurse to the limit, walk where RecursionError is handled, and resume on the way back."""

    def recurse(depth: int) -> None:
        if depth % 97 == 0:
            scheduler.walk()
        recurse(depth + 1)

    limit = sys.getrecursionlimit()
    try:
        sys.setrecursionlimit(scheduler.random.choice((600, 1500, 3000)) + 100 * MAX_NESTING)
        recurse(1)
    except RecursionError:
        scheduler.walk()
    finally:
        sys.setrecursionlimit(limit)


def resumptions(checker: Checker, seed: int, rounds: int = 30) -> None:
    """Resume suspended objects from deep and shallow stacks, on the main thread and on threads that end."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(20_000)
    scheduler = Scheduler(checker, seed)
    for number in range(rounds):
        scheduler.run(20)
        # The main thread resumes a thread's objects after the thread's end. Greenlets cannot change threads.
        thread_scheduler = Scheduler(checker, seed + number)
        thread = threading.Thread(target=thread_scheduler.run, args=(10,))
        thread.start()
        thread.join()
        thread_scheduler.run(10)
        scheduler.walks += thread_scheduler.walks
        if number % 4 == 0:
            recurse_until_stopped(scheduler)
        if number % 10 == 0:
            gc.collect()
    sys.setrecursionlimit(limit)
    checker.expect(scheduler.walks > 100 * rounds, f"{scheduler.walks} walks in {rounds} rounds")
