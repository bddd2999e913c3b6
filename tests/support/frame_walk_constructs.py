"""Constructs by which one Python function runs inside another, with the frames between them.

Each construct calls `inner` at least once; `number` may vary how.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import importlib.abc
import importlib.machinery
import inspect
import re
import signal
import sys
import threading
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from typing import Any

Inner = Callable[[], object]


def call(function: Inner) -> object:
    return function()


# Calls in layouts of source that a formatter would change.

LAYOUTS = (
    "call(inner); call(lambda: None); call(inner)\n",
    "call(\n  inner\n)\n",
    "value = (1 +\n  (call(inner) or 1)\n  + 2)\n",
    "value = [\n 1, call\\\n  (inner), 2\n]\n",
    "if (1 and\n  not call(\n   inner)):\n pass\n",
    "for item in (\n  call(inner),\n):\n  call(inner)\n",
    "@(lambda function: (inner(), function)[1])\n@(\n lambda function: function\n)\ndef function(): pass\n",
    "def function(argument=\n call(inner)\n): return call(inner)\nfunction(\n)\n",
    "with suppress(\n KeyError\n), suppress(\n ValueError): call(\ninner)\n",
    "assert not call(\n inner), (\n 1)\n",
    "try: raise KeyError\nexcept (\n ValueError, inner() or KeyError\n): call(\n inner)\nfinally: call(inner)\n",
    "while not (call(inner) or\n 1): pass\nelse: call(inner)\n",
    "text = f'{call(inner)}' \\\n  f'{call(inner)}'\n",
    "del [\n call(inner), 2\n][0]\n",
    "name = {}; name[\n call(inner)\n] = (\n call(inner))\n",
    "(lambda:\n\n call(\n inner))(\n)\n",
)


def laid_out(inner: Inner, number: int) -> None:
    source = "\n" * (number // len(LAYOUTS) % 300) + LAYOUTS[number % len(LAYOUTS)]
    exec(compile(source, "<laid out>", "exec"), {"inner": inner, "call": call, "suppress": contextlib.suppress})


def exception_handling(inner: Inner, number: int) -> None:
    def raises() -> None:
        raise KeyError(number)

    try:
        try:
            raises()
        except KeyError as error:
            inner()
            raise ValueError from error
        finally:
            if number % 2:
                inner()
    except ValueError:
        call(inner)
    else:
        raise AssertionError


# Python called by C code and by the interpreter, on live objects.


class Special:
    """Special methods that C code or the interpreter calls."""

    def __init__(self, inner: Inner) -> None:
        self.inner = inner

    def run(self, other: object = None) -> Any:
        self.inner()
        return True

    __add__ = __bool__ = __getitem__ = __call__ = __getattr__ = __enter__ = run
    computed = property(run)

    def __exit__(self, *exception: object) -> None:
        self.run()

    def __iter__(self) -> Iterator[int]:
        self.run()
        return iter((1,))

    def __repr__(self) -> str:
        return str(self.run())


def special_methods(inner: Inner, number: int) -> object:
    special = Special(inner)

    def with_statement() -> None:
        with special:
            pass

    choices: tuple[Callable[[], object], ...] = (
        lambda: special + 1,
        lambda: sum([1], special),
        lambda: 1 if special else 2,
        lambda: special[0],
        lambda: [value for value in special],  # noqa: C416
        lambda: special(),
        lambda: repr(special),
        lambda: special.missing,
        lambda: special.computed,
        with_statement,
    )
    return choices[number % len(choices)]()


class Initialised:
    def __init__(self, inner: Inner) -> None:
        inner()


def specialised_initialisation(inner: Inner, number: int) -> None:
    """Call __init__ often from one line: the interpreter then adds a frame of its own."""
    for _ in range(24):
        Initialised(inner if _ > 21 else int)


def class_body(inner: Inner, number: int) -> None:
    class Body:
        inner()
        values = tuple(call(inner) for _ in range(1))

        class Nested:
            inner()


# Comprehensions, and functions that suspend: generators, coroutines.


def comprehensions(inner: Inner, number: int) -> object:
    choices: tuple[Callable[[], object], ...] = (
        lambda: [inner() for _ in range(2)],
        lambda: {index: inner() for index in range(2)},
        lambda: {inner() for _ in range(2)},
        lambda: [[inner() for _ in range(1)] for _ in range(2)],
        lambda: [
            value
            for value in range(1)
            if inner() is None
            for _ in [
                inner(),
            ]
        ],
        lambda: tuple(inner() for _ in range(2)),
        lambda: any(inner() for _ in range(1)),
    )
    return choices[number % len(choices)]()


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

    with contextlib.suppress(StopIteration):
        outer().send(None)


def event_loop(inner: Inner, number: int) -> None:
    async def task() -> None:
        await asyncio.sleep(0)
        inner()

    async def outer() -> None:
        await asyncio.gather(task(), asyncio.create_task(task()))

    # An event loop cannot run inside another loop of its thread.
    thread = threading.Thread(target=lambda: asyncio.run(outer()))
    thread.start()
    thread.join()


# Python called by finalizers and by the interpreter's hooks.


class Finalized:
    def __init__(self, inner: Inner) -> None:
        self.inner = inner
        self.cycle: object = None

    def __del__(self) -> None:
        self.inner()


def dying_object(inner: Inner, number: int) -> None:
    def returns() -> int:
        local = Finalized(inner)
        return len([local])

    choice = number % 4
    finalized = Finalized(inner)
    if choice == 0:
        del finalized
    elif choice == 1:
        finalized = None  # type: ignore[assignment]
    elif choice == 2:
        holder = [finalized]
        del finalized
        holder.clear()
    else:
        returns()  # finalized while the frame returns


def dying_cycle(inner: Inner, number: int) -> None:
    called = False

    def once() -> None:
        nonlocal called
        if not called:
            called = True
            inner()

    finalized = Finalized(once)
    finalized.cycle = finalized
    del finalized
    gc.collect(0 if number % 2 else 2)
    once()  # a collection within another has no effect


def hooked(hook: str, event: str, function: Any, inner: Inner, run: Inner) -> None:
    """Call inner in a hook at the first `event` ("": any) of the function, or afterwards if no hook can run."""
    done = False

    def handle(frame: Any, hook_event: str, argument: object) -> Any:
        nonlocal done
        if not done and event in ("", hook_event) and frame.f_code is function.__code__:
            done = True
            inner()
        return handle

    previous_hook = getattr(sys, f"get{hook}")()
    getattr(sys, f"set{hook}")(handle)
    try:
        run()
    finally:
        getattr(sys, f"set{hook}")(previous_hook)
    if not done:
        inner()


def traced(inner: Inner, number: int) -> None:
    def target() -> int:
        return number

    hooked("trace", ("call", "line", "return")[number % 3], target, inner, target)


def traced_generator(inner: Inner, number: int) -> None:
    """Throw into or close a generator that has not started: tracing shows its frame nevertheless."""

    def generate() -> Generator[None, None, None]:
        yield

    def run() -> None:
        running = generate()
        if number % 2:
            running.close()
        with contextlib.suppress(KeyError):
            running.throw(KeyError("thrown"))

    hooked("trace", "", generate, inner, run)


def profiled(inner: Inner, number: int) -> None:
    def target() -> int:
        return len("number")

    hooked("profile", ("call", "c_call", "return")[number % 3], target, inner, target)


def signalled(inner: Inner, number: int) -> None:
    if threading.current_thread() is not threading.main_thread():
        inner()
        return
    previous_handler = signal.signal(signal.SIGUSR1, lambda *_: inner())
    try:
        signal.raise_signal(signal.SIGUSR1)
    finally:
        signal.signal(signal.SIGUSR1, previous_handler)


# Code objects created while the program runs.


def executed(inner: Inner, number: int) -> None:
    names = ("function", "naïve", "имя", "函数", "𝔘nicode")
    files = ("<made>", f"<made {number}>", "/tmp/données.py", "/tmp/\U0001f600.py", "/tmp/not\udcffutf8.py")
    source = "\n" * (number % 400) + f"def {names[number % 5]}(inner):\n" + "\n" * (number % 300) + "    inner()\n"
    namespace: dict[str, Any] = {}
    exec(compile(source, files[number // 5 % 5], "exec"), namespace)
    namespace[re.search(r"def (\w+)", source)[1] if number % 5 < 4 else "Unicode"](inner)  # type: ignore[index]


def long_function(inner: Inner, number: int) -> None:
    """Need more than one byte for line deltas and offsets, and EXTENDED_ARG for jumps."""
    count = number % 300
    body = "".join(f"    v{index} = {index + 1000} if inner else -{index}\n" for index in range(count))
    source = (
        f"def long(inner):\n{body}    for _ in range(2):\n        inner(\n        )\n"
        f"        if not inner:\n            pass\n{body.replace('    v', '            v')}"
    )
    namespace: dict[str, Any] = {}
    exec(compile(source, "<long>", "exec"), namespace)
    namespace["long"](inner)


def replaced_code(inner: Inner, number: int) -> None:
    def function() -> None:
        inner()

    names = {"co_name": f"renamed_{number}"}
    if hasattr(function.__code__, "co_qualname"):  # from Python 3.11 on
        names["co_qualname"] = f"replaced_code.<locals>.renamed_{number}"
    function.__code__ = function.__code__.replace(**names, co_filename=f"<renamed {number}>", co_firstlineno=number + 1)
    function()


def type_parameters(inner: Inner, number: int) -> None:
    if sys.hexversion < 0x030C0000:
        inner()
        return
    source = (
        "type Alias = [\n    inner()\n]\n"
        "def function[T: (\n    inner(),\n)](argument: T) -> T:\n    return argument\n"
        "class Generic[T](base(inner)):\n    inner()\n"
        "Alias.__value__, function.__type_params__[0].__constraints__\n"
    )
    exec(compile(source, "<types>", "exec"), {"inner": inner, "base": lambda function: (function(), list)[1]})


def imported_module(inner: Inner, number: int) -> None:
    name = f"alloctrace_made_module_{number}_{id(inner)}"

    class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
        def find_spec(self, fullname: str, path: object, target: object = None) -> Any:
            return importlib.machinery.ModuleSpec(fullname, self) if fullname == name else None

        def exec_module(self, module: Any) -> None:
            exec(compile("\n\ninner()\n", name, "exec"), {"inner": inner})

    finder = Finder()
    sys.meta_path.insert(0, finder)
    try:
        __import__(name)
    finally:
        sys.meta_path.remove(finder)
        sys.modules.pop(name, None)


CONSTRUCTS: dict[str, Callable[[Inner, int], object]] = {
    name: function
    for name, function in [*globals().items()]
    if inspect.isfunction(function) and [*inspect.signature(function).parameters] == ["inner", "number"]
}
