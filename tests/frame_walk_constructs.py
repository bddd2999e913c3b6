"""Ways in which one Python function comes to run inside another, each with the frames that it puts between.

Each construct calls `inner` at least once, in a manner that `number` may vary.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import functools
import gc
import heapq
import importlib.abc
import importlib.machinery
import itertools
import json
import pickle
import re
import signal
import sys
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterator
from typing import Any

Inner = Callable[[], object]
CONSTRUCTS: dict[str, Callable[[Inner, int], object]] = {}


def construct(function: Callable[[Inner, int], object]) -> Callable[[Inner, int], object]:
    CONSTRUCTS[function.__name__] = function
    return function


def call(function: Inner, *arguments: object, **more: object) -> object:
    return function()


# Calls


@construct
def recursion(inner: Inner, number: int) -> object:
    if number % 13 == 0:
        return inner()
    return recursion(inner, number % 13 - 1)


@construct
def mutual_recursion(inner: Inner, number: int) -> None:
    def even(depth: int) -> object:
        return inner() if depth == 0 else odd(depth - 1)

    def odd(depth: int) -> object:
        return even(depth - 1)

    even(2 * (number % 5))


@construct
def multi_line_call(inner: Inner, number: int) -> None:
    call(
        inner,
        number,
        *(
            number,
            number + 1,
        ),
        more={
            "a": number,
        },
    )


@construct
def multi_line_argument(inner: Inner, number: int) -> object:
    return (
        number,
        [
            number,
            call(
                inner,
            ),
        ],
        call(lambda: None),
    )


# Layouts that no formatter leaves alone.
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


@construct
def laid_out(inner: Inner, number: int) -> None:
    source = "\n" * (number // len(LAYOUTS) % 300) + LAYOUTS[number % len(LAYOUTS)]
    exec(compile(source, "<laid out>", "exec"), {"inner": inner, "call": call, "suppress": contextlib.suppress})


@construct
def default_and_closure(inner: Inner, number: int) -> None:
    def outer(function: Inner = inner) -> Inner:
        captured = number

        def closure() -> None:
            nonlocal captured
            captured += 1
            function()

        return closure

    outer()()


@construct
def decorated(inner: Inner, number: int) -> None:
    def decorate(argument: int) -> Callable[[Inner], Inner]:
        def decorator(function: Inner) -> Inner:
            @functools.wraps(function)
            def wrapper(*arguments: Any, **more: Any) -> object:
                return function(*arguments, **more)

            return wrapper

        return decorator

    @decorate(1)
    @decorate(number)
    def function() -> None:
        inner()

    function()


@construct
def run_by_decorator(inner: Inner, number: int) -> None:
    def runs(function: Callable[[], int]) -> int:
        inner()
        return function()

    @runs
    def value() -> int:
        return number


@construct
def lambdas(inner: Inner, number: int) -> None:
    (lambda function: (lambda: function())())(lambda: inner())


@construct
def partial(inner: Inner, number: int) -> None:
    functools.partial(functools.partial(call, inner), number)()


@construct
def cached_function(inner: Inner, number: int) -> None:
    @functools.cache
    def cached(argument: int) -> None:
        inner()

    cached(number)


@construct
def dispatched(inner: Inner, number: int) -> None:
    @functools.singledispatch
    def generic(argument: object) -> None:
        raise AssertionError

    @generic.register
    def _(argument: int) -> None:
        inner()

    generic(number)


# Comprehensions and generators


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
def comprehension_with_cell(inner: Inner, number: int) -> object:
    return [(lambda: (value, inner()))() for value in range(2)]


@construct
def generator_expression(inner: Inner, number: int) -> object:
    return tuple(inner() for _ in range(2)) if number % 2 else any(inner() for _ in range(1))


@construct
def generator(inner: Inner, number: int) -> None:
    def generate() -> Iterator[object]:
        yield None
        yield inner()
        inner()

    for _ in generate():
        pass


@construct
def delegated_generator(inner: Inner, number: int) -> None:
    def generate(depth: int) -> Iterator[object]:
        if depth:
            yield from generate(depth - 1)
        else:
            yield inner()

    for _ in generate(number % 4):
        pass


@construct
def generator_sent_to(inner: Inner, number: int) -> None:
    def generate() -> Generator[None, Inner, None]:
        function = yield
        function()
        yield

    running = generate()
    next(running)
    running.send(inner)


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


@construct
def generator_resumed_elsewhere(inner: Inner, number: int) -> None:
    def generate() -> Iterator[None]:
        for _ in range(3):
            inner()
            yield

    running = generate()
    next(running)

    def other() -> None:
        next(running)

    other()


# Coroutines


def drive(coroutine: Coroutine[Any, Any, None]) -> None:
    with contextlib.suppress(StopIteration):
        while True:
            coroutine.send(None)


class Awaited:
    def __init__(self, inner: Inner) -> None:
        self.inner = inner

    def __await__(self) -> Generator[None, None, None]:
        self.inner()
        yield
        self.inner()


@construct
def coroutine(inner: Inner, number: int) -> None:
    async def innermost() -> None:
        inner()

    async def middle(depth: int) -> None:
        await (middle(depth - 1) if depth else innermost())

    drive(middle(number % 4))


@construct
def awaited_object(inner: Inner, number: int) -> None:
    async def outer() -> None:
        await Awaited(inner)

    drive(outer())


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
def async_context(inner: Inner, number: int) -> None:
    @contextlib.asynccontextmanager
    async def context() -> AsyncIterator[None]:
        inner()
        yield

    async def outer() -> None:
        async with context():
            pass

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


# Code made at run time


@construct
def executed(inner: Inner, number: int) -> None:
    names = ("function", "naïve", "имя", "函数", "𝔘nicode")
    files = ("<made>", f"<made {number}>", "/tmp/données.py", "/tmp/\U0001f600.py", "/tmp/not\udcffutf8.py")
    source = "\n" * (number % 400) + f"def {names[number % 5]}(inner):\n" + "\n" * (number % 300) + "    inner()\n"
    namespace: dict[str, Any] = {}
    exec(compile(source, files[number // 5 % 5], "exec"), namespace)
    namespace[re.search(r"def (\w+)", source)[1] if number % 5 < 4 else "Unicode"](inner)  # type: ignore[index]


@construct
def executed_module(inner: Inner, number: int) -> None:
    source = "value = 1\n" * (number % 40) + "(lambda:\n    inner())()\n"
    exec(compile(source, f"<module {number}>", "exec"), {"inner": inner})


@construct
def evaluated(inner: Inner, number: int) -> None:
    eval("[inner() for _ in (0,)]" if number % 2 else "inner()", {"inner": inner})


@construct
def long_function(inner: Inner, number: int) -> None:
    """Line deltas and offsets that need more than one byte, and jumps that need EXTENDED_ARG."""
    count = number % 300
    body = "".join(f"    v{index} = {index + 1000} if inner else -{index}\n" for index in range(count))
    source = (
        f"def long(inner):\n{body}    for _ in range(2):\n        inner(\n        )\n"
        f"        if not inner:\n            pass\n{body.replace('    v', '            v')}"
    )
    namespace: dict[str, Any] = {}
    exec(compile(source, "<long>", "exec"), namespace)
    namespace["long"](inner)


@construct
def replaced_code(inner: Inner, number: int) -> None:
    def function() -> None:
        inner()

    function.__code__ = function.__code__.replace(
        co_name=f"renamed_{number}", co_filename=f"<renamed {number}>", co_firstlineno=number + 1
    )
    function()


@construct
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
    exec(compile(source, "<types>", "exec"), {"inner": inner, "base": lambda function: (function(), Sink)[1]})


@construct
def imported_module(inner: Inner, number: int) -> None:
    name = f"alloctrace_made_module_{number}_{id(inner)}"

    class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
        def find_spec(self, wanted: str, path: object, target: object = None) -> Any:
            return importlib.machinery.ModuleSpec(wanted, self) if wanted == name else None

        def exec_module(self, module: Any) -> None:
            exec(compile("\n\ninner()\n", name, "exec"), {"inner": inner})

    finder = Finder()
    sys.meta_path.insert(0, finder)
    try:
        __import__(name)
    finally:
        sys.meta_path.remove(finder)
        sys.modules.pop(name, None)


# Python called by C code


@construct
def builtin_callbacks(inner: Inner, number: int) -> object:
    def key(*arguments: Any) -> int:
        inner()
        return 0

    def match(found: re.Match[str]) -> str:
        inner()
        return ""

    choices: tuple[Callable[[], object], ...] = (
        lambda: sorted([1], key=key),
        lambda: [1].sort(key=key),
        lambda: list(map(key, (1,))),
        lambda: list(filter(key, (1,))),
        lambda: functools.reduce(key, (1, 2)),
        lambda: min((1, 2), key=key),
        lambda: re.sub("a", match, "a"),
        lambda: list(itertools.starmap(key, ((1, 2),))),
        lambda: list(itertools.accumulate((1, 2), key)),
        lambda: list(iter(lambda: key(), 0)),
        lambda: heapq.nsmallest(1, (3, 2), key=key),
        lambda: sorted((2, 1), key=functools.cmp_to_key(key)),
        lambda: json.dumps(object(), default=lambda _: key()),
        lambda: dict.fromkeys(key() for _ in range(1)),
        lambda: "".join(str(key()) for _ in range(1)),
    )
    return choices[number % len(choices)]()


class Special:
    """Special methods that C code or the interpreter calls."""

    def __init__(self, inner: Inner, armed: bool = True) -> None:
        self.inner = inner
        self.armed = armed

    def run(self, *arguments: object) -> Any:
        if self.armed:
            self.inner()
        return 1

    def __add__(self, other: object) -> Any:
        return self.run()

    def __radd__(self, other: object) -> Any:
        return self.run()

    def __lt__(self, other: object) -> bool:
        return bool(self.run())

    def __eq__(self, other: object) -> bool:
        return bool(self.run())

    def __hash__(self) -> int:
        return int(self.run())

    def __bool__(self) -> bool:
        return bool(self.run())

    def __len__(self) -> int:
        return int(self.run())

    def __index__(self) -> int:
        return int(self.run())

    def __contains__(self, item: object) -> bool:
        return bool(self.run())

    def __getitem__(self, item: object) -> Any:
        return self.run()

    def __iter__(self) -> Iterator[int]:
        self.run()
        return iter((1,))

    def __call__(self) -> Any:
        return self.run()

    def __format__(self, how: str) -> str:
        return str(self.run())

    def __repr__(self) -> str:
        return str(self.run())

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name in ("inner", "armed"):
            raise AttributeError(name)
        return self.run()

    def __deepcopy__(self, memo: object) -> Any:
        return self.run()

    def __enter__(self) -> None:
        self.run()

    def __exit__(self, *exception: object) -> None:
        self.run()


@construct
def special_methods(inner: Inner, number: int) -> object:
    special = Special(inner)

    def with_statement() -> None:
        with special:
            pass

    choices: tuple[Callable[[], object], ...] = (
        lambda: special + 1,
        lambda: 1 + special,
        lambda: sum([special]),
        lambda: special < special,
        lambda: [object()].index(special),
        lambda: {special: 1},
        lambda: 1 if special else 2,
        lambda: len(special),
        lambda: [1, 2][special],
        lambda: 1 in special,
        lambda: special[0],
        lambda: [value for value in special],  # noqa: C416
        lambda: special(),
        lambda: f"{special:>3}",
        lambda: repr(special),
        lambda: special.missing,
        lambda: copy.deepcopy(special),
        with_statement,
        lambda: print(special, file=Sink()),
        lambda: getattr(special, "missing", None),
    )
    return choices[number % len(choices)]()


class Sink:
    def write(self, text: str) -> int:
        return len(text)


@construct
def initialisation(inner: Inner, number: int) -> None:
    class Base:
        def __init__(self) -> None:
            inner()

    class Derived(Base):
        def __new__(cls) -> Derived:
            if number % 2:
                inner()
            return super().__new__(cls)

        def __init__(self) -> None:
            super().__init__()

    for _ in range(2):
        Base()
    Derived()


class Initialised:
    def __init__(self, inner: Inner) -> None:
        inner()


@construct
def specialised_initialisation(inner: Inner, number: int) -> None:
    """The interpreter puts a frame of its own under an __init__ that one place has often called."""
    for _ in range(24):
        Initialised(inner if _ > 21 else int)


@construct
def properties(inner: Inner, number: int) -> None:
    class Descriptor:
        def __get__(self, instance: object, owner: object) -> None:
            inner()

        def __set__(self, instance: object, value: object) -> None:
            inner()

    class Owner:
        described = Descriptor()

        @property
        def computed(self) -> None:
            inner()

        @functools.cached_property
        def cached(self) -> None:
            inner()

    owner = Owner()
    choice = number % 4
    if choice == 0:
        _ = owner.computed
    elif choice == 1:
        _ = owner.cached
    elif choice == 2:
        _ = owner.described
    else:
        owner.described = None


@construct
def class_body(inner: Inner, number: int) -> None:
    class Meta(type):
        def __new__(cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any]) -> Any:
            if number % 3 == 1:
                inner()
            return super().__new__(cls, name, bases, namespace)

    class Named:
        def __set_name__(self, owner: type, name: str) -> None:
            if number % 3 == 2:
                inner()

    class Body(metaclass=Meta):
        inner()
        named = Named()
        values = tuple(call(inner) for _ in range(1))

        class Nested:
            inner()


@construct
def subclassing(inner: Inner, number: int) -> None:
    class Base:
        def __init_subclass__(cls) -> None:
            inner()

        def __class_getitem__(cls, item: object) -> None:
            inner()

    class Derived(Base):
        pass

    Base.__class_getitem__(0)


@construct
def pickled(inner: Inner, number: int) -> None:
    waiting.append(inner)
    try:
        pickle.loads(pickle.dumps(Pickled()))
    finally:
        waiting.pop()


waiting: list[Inner] = []


class Pickled:
    def __reduce__(self) -> Any:
        return (run_waiting, ())


def run_waiting() -> None:
    waiting[-1]()


# Ends of objects


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


# Control flow


@construct
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


@construct
def context_manager(inner: Inner, number: int) -> None:
    @contextlib.contextmanager
    def context(where: int) -> Iterator[None]:
        if where == 0:
            inner()
        try:
            yield
        finally:
            if where == 2:
                inner()

    with (
        context(number % 3),
        contextlib.ExitStack() as stack,
    ):
        stack.callback(inner)
        if number % 3 == 1:
            inner()


@construct
def loops(inner: Inner, number: int) -> None:
    index = 0
    while index < 2 and (call(inner) or True):
        index += 1
        for _ in range(
            1
        ):  # fmt: skip
            continue
    else:
        inner()


@construct
def matched(inner: Inner, number: int) -> None:
    match [number % 3, call(inner)]:
        case [0, None]:
            inner()
        case [1, _] if call(inner) or True:
            pass
        case _:
            inner()


@construct
def assertion(inner: Inner, number: int) -> None:
    assert (value := call(inner)) is None, value
    _ = number + len(f"{inner()}") - len([inner()])


# Hooks of the interpreter


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
