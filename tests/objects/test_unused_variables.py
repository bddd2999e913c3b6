"""Local variables that a running function does not read any more."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest
import torch

from pytorch_alloctrace.objects import object_scan
from pytorch_alloctrace.objects.chains import UNUSED
from pytorch_alloctrace.objects.graphs import load_reader
from pytorch_alloctrace.objects.object_scan import scan_objects
from pytorch_alloctrace.objects.unused_variables import _may_read


def may_read_value() -> bool:
    """Return whether the calling function may read its variable `value` after this call."""
    frame = sys._getframe(1)
    return _may_read(frame.f_code, frame.f_lasti, {"value"})


def not_used() -> bool:
    value = [1]
    value.append(2)
    return may_read_value()


def used_later() -> bool:
    value = [1]
    result = may_read_value()
    value.append(2)
    return result


def assigned_before_use() -> bool:
    value = [1]
    result = may_read_value()
    value = [2]
    return result and bool(value)


def passed_as_argument() -> bool:
    value = [1]
    return _call(value, may_read_value())


def _call(value: list[int], result: bool) -> bool:
    return result and bool(value)


def deleted() -> bool:
    value = [1]
    result = may_read_value()
    del value
    return result


def used_in_next_iteration() -> bool:
    value, results = [1], []
    for _ in range(2):
        value.append(1)
        results.append(may_read_value())
    return results[0]


def assigned_in_each_iteration() -> bool:
    results = []
    for value in ([1], [2]):
        value.append(0)
        results.append(may_read_value())
    return results[0]


def used_in_one_branch() -> bool:
    value = [1]
    result = may_read_value()
    if not result:
        return False
    return bool(value)


def used_by_a_handler() -> bool:
    value = [1]
    try:
        return may_read_value()
    except ValueError:
        value.append(2)
        raise


def used_by_a_function() -> bool:
    value = [1]

    def read() -> list[int]:
        return value

    return may_read_value() or bool(read)


def shown_by_locals() -> bool:
    value = [1]
    result = may_read_value()
    locals()
    return result


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (not_used, False),
        (used_later, True),
        (assigned_before_use, False),
        (deleted, False),
        (passed_as_argument, True),
        (used_in_next_iteration, True),
        (assigned_in_each_iteration, False),
        (used_in_one_branch, True),
        (used_by_a_handler, True),
        (used_by_a_function, True),
        (shown_by_locals, True),
    ],
)
def test_variable_is_unused_if_no_way_through_the_function_reads_it(
    function: Callable[[], bool], expected: bool
) -> None:
    assert function() is expected


class Data:
    def __init__(self) -> None:
        self.items = [torch.ones(100) for _ in range(5)]


class Loader:
    def __init__(self, data: Data) -> None:
        self.data = data


def scan() -> str:
    """Return what the path from the variable of the calling function goes through, in an object scan."""
    caller = sys._getframe(1).f_code.co_name
    groups = scan_objects(5.0, search_unreached=False).groups
    (through,) = (group.chain.through for group in groups if group.chain.function == caller and group.count > 1)
    return through


def only_variable() -> str:
    data = Data()
    del data.items[0]
    return scan()


def held_by_another_object() -> str:
    data = Data()
    loader = Loader(data)
    through = scan()
    return through if loader else ""


def held_by_an_iterator() -> str:
    items = [torch.ones(100) for _ in range(5)]
    for _ in items:
        return scan()
    return ""


def held_by_another_name() -> str:
    data = Data()
    items = data.items
    through = scan()
    return through if items else ""


@pytest.mark.parametrize(
    ("function", "through"),
    [(only_variable, UNUSED), (held_by_another_object, ""), (held_by_an_iterator, ""), (held_by_another_name, "")],
)
def test_variable_is_in_use_while_another_object_refers_to_what_it_holds(
    monkeypatch: pytest.MonkeyPatch, function: Callable[[], str], through: str
) -> None:
    load_reader()
    monkeypatch.setattr(object_scan, "MIN_UNUSED_BYTES", 1)

    assert function() == through
