"""Python called because an object dies, and by the hooks of the interpreter."""

from __future__ import annotations

import contextlib
import gc
import signal
import sys
import threading
import weakref
from collections.abc import Generator
from typing import Any

from .registry import Inner, call, construct


class Dying:
    def __init__(self, inner: Inner) -> None:
        self.inner = inner
        self.cycle: object = None

    def __del__(self) -> None:
        self.inner()


@construct
def dying_object(inner: Inner, number: int) -> None:
    def returns() -> int:
        local = Dying(inner)
        return len([local])

    choice = number % 4
    dying = Dying(inner)
    if choice == 0:
        del dying
    elif choice == 1:
        dying = None  # type: ignore[assignment]
    elif choice == 2:
        holder = [dying]
        del dying
        holder.clear()
    else:
        returns()  # dies while its frame is left


@construct
def dying_cycle(inner: Inner, number: int) -> None:
    called = False

    def once() -> None:
        nonlocal called
        if not called:
            called = True
            inner()

    dying = Dying(once)
    dying.cycle = dying
    del dying
    gc.collect(0 if number % 2 else 2)
    once()  # a collection inside another does nothing


@construct
def weak_reference(inner: Inner, number: int) -> None:
    class Target:
        pass

    target = Target()
    reference = weakref.ref(target, lambda _: inner())
    weakref.finalize(target, inner)
    del target
    assert reference() is None


@construct
def traced(inner: Inner, number: int) -> None:
    wanted = ("call", "line", "return")[number % 3]
    done = False

    def trace(frame: Any, event: str, argument: object) -> Any:
        nonlocal done
        if event == wanted and not done and frame.f_code is target.__code__:
            done = True
            inner()
        return trace

    def target() -> int:
        return number

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        target()
    finally:
        sys.settrace(before)
    if not done:
        inner()


@construct
def traced_generator(inner: Inner, number: int) -> None:
    """Thrown into or closed before it has started, a generator is shown although it has run no instruction."""
    done = False

    def generate() -> Generator[None, None, None]:
        yield

    def trace(frame: Any, event: str, argument: object) -> Any:
        nonlocal done
        if not done and frame.f_code is generate.__code__:
            done = True
            inner()
        return trace

    running = generate()
    before = sys.gettrace()
    sys.settrace(trace)
    try:
        if number % 2:
            running.close()
        with contextlib.suppress(KeyError):
            running.throw(KeyError("thrown"))
    finally:
        sys.settrace(before)
    if not done:
        inner()


@construct
def profiled(inner: Inner, number: int) -> None:
    wanted = ("call", "c_call", "return")[number % 3]
    done = False

    def profile(frame: Any, event: str, argument: object) -> None:
        nonlocal done
        if event == wanted and not done and frame.f_code is target.__code__:
            done = True
            inner()

    def target() -> int:
        return len("number")

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        target()
    finally:
        sys.setprofile(before)
    if not done:
        inner()


@construct
def signalled(inner: Inner, number: int) -> None:
    if threading.current_thread() is not threading.main_thread():
        inner()
        return
    before = signal.signal(signal.SIGUSR1, lambda *_: inner())
    try:
        signal.raise_signal(signal.SIGUSR1)
    finally:
        signal.signal(signal.SIGUSR1, before)


@construct
def thread(inner: Inner, number: int) -> None:
    running = threading.Thread(target=call, args=(inner, number), name="frame walk")
    running.start()
    running.join()
