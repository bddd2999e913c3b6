"""Python called by C code and by the interpreter, for objects that live."""

from __future__ import annotations

import copy
import functools
import heapq
import itertools
import json
import pickle
import re
from collections.abc import Callable, Iterator
from typing import Any

from .registry import Inner, call, construct


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
    """The interpreter puts a frame of its own under an __init__ that one line has often called."""
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
