"""Code objects made while the program runs."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import re
import sys
from typing import Any

from .registry import Inner, construct


@construct
def executed(inner: Inner, number: int) -> None:
    names = ("function", "naïve", "имя", "函数", "𝔘nicode")
    files = ("<made>", f"<made {number}>", "/tmp/données.py", "/tmp/\U0001f600.py", "/tmp/not\udcffutf8.py")
    source = "\n" * (number % 400) + f"def {names[number % 5]}(inner):\n" + "\n" * (number % 300) + "    inner()\n"
    namespace: dict[str, Any] = {}
    exec(compile(source, files[number // 5 % 5], "exec"), namespace)
    namespace[re.search(r"def (\w+)", source)[1] if number % 5 < 4 else "Unicode"](inner)  # type: ignore[index]


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

    names = {"co_name": f"renamed_{number}"}
    if hasattr(function.__code__, "co_qualname"):  # from Python 3.11 on
        names["co_qualname"] = f"replaced_code.<locals>.renamed_{number}"
    function.__code__ = function.__code__.replace(**names, co_filename=f"<renamed {number}>", co_firstlineno=number + 1)
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
    exec(compile(source, "<types>", "exec"), {"inner": inner, "base": lambda function: (function(), list)[1]})


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
