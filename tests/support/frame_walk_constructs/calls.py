"""Plain calls, and the layouts of source that they stand in."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from .registry import Inner, call, construct


@construct
def recursion(inner: Inner, number: int) -> object:
    if number % 13 == 0:
        return inner()
    return recursion(inner, number % 13 - 1)


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
