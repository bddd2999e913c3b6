"""Distinction between the recorder's own errors and those of signal handlers."""

from __future__ import annotations

import signal
import types

from pytorch_alloctrace.objects.own_errors import is_from_signal_handler, is_own_error


def test_handler_with_unhashable_constant_is_recognised() -> None:
    def raise_error(number: int, frame: types.FrameType | None) -> None:
        raise ValueError("time limit")

    code = raise_error.__code__
    raise_error.__code__ = code.replace(co_consts=(*code.co_consts, []))  # type: ignore[arg-type]
    previous = signal.signal(signal.SIGUSR1, raise_error)
    try:
        signal.raise_signal(signal.SIGUSR1)
    except ValueError as error:
        is_recognised = is_from_signal_handler(error)
    finally:
        signal.signal(signal.SIGUSR1, previous)

    assert is_recognised


def test_exception_of_a_class_that_cannot_be_hashed_is_the_programs() -> None:
    class Meta(type):
        def __eq__(cls, other: object) -> bool:
            raise AssertionError("called")

    class Error(Exception, metaclass=Meta):
        pass

    assert not is_own_error(Error())
