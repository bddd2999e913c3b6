"""Python called by C code and by the interpreter, for objects that live."""

from __future__ import annotations

import functools
import json
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
        lambda: list(map(key, (1,))),
        lambda: functools.reduce(key, (1, 2)),
        lambda: re.sub("a", match, "a"),
        lambda: list(iter(lambda: key(), 0)),
        lambda: json.dumps(object(), default=lambda _: key()),
        lambda: dict.fromkeys(key() for _ in range(1)),
    )
    return choices[number % len(choices)]()


class Special:
    """Special methods that C code or the interpreter calls."""

    def __init__(self, inner: Inner) -> None:
        self.inner = inner

    def run(self, *arguments: object) -> Any:
        self.inner()
        return 1

    def __add__(self, other: object) -> Any:
        return self.run()

    def __bool__(self) -> bool:
        return bool(self.run())

    def __getitem__(self, item: object) -> Any:
        return self.run()

    def __iter__(self) -> Iterator[int]:
        self.run()
        return iter((1,))

    def __call__(self) -> Any:
        return self.run()

    def __repr__(self) -> str:
        return str(self.run())

    def __getattr__(self, name: str) -> Any:
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
        lambda: sum([1], special),
        lambda: 1 if special else 2,
        lambda: special[0],
        lambda: [value for value in special],  # noqa: C416
        lambda: special(),
        lambda: repr(special),
        lambda: special.missing,
        with_statement,
    )
    return choices[number % len(choices)]()


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
    class Owner:
        @property
        def computed(self) -> None:
            inner()

        @functools.cached_property
        def cached(self) -> None:
            inner()

    owner = Owner()
    _ = owner.computed if number % 2 else owner.cached


@construct
def class_body(inner: Inner, number: int) -> None:
    class Body:
        inner()
        values = tuple(call(inner) for _ in range(1))

        class Nested:
            inner()
