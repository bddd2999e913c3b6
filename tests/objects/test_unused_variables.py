"""Local variables that a running function does not read any more."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

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
