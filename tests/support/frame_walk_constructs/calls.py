"""Plain calls, and the layouts of source that they stand in."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

from .registry import Inner, call, construct


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
