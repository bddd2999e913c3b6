"""Length and bound of the containers on a referrer path."""

from __future__ import annotations

import asyncio
import functools
import queue
import sys
import types
from collections import OrderedDict, deque
from typing import Any

import pytest
import torch

import pytorch_alloctrace as alloctrace
from pytorch_alloctrace.objects import containers
from pytorch_alloctrace.objects.containers import Container


class Incomparable:
    def __eq__(self, other: object) -> bool:
        raise AssertionError("compared")

    def __hash__(self) -> int:
        raise AssertionError("hashed")


class Recent(deque[Any]):
    @property
    def maxlen(self) -> int:  # type: ignore[override]
        raise AssertionError("read")


@functools.lru_cache(maxsize=3)
def cached(number: int) -> torch.Tensor:
    return torch.ones(number)


def fill(put: Any, count: int) -> Any:
    for _ in range(count):
        put(torch.ones(1))


def owned(owner: Any, name: str, put: Any) -> tuple[Any, Any]:
    fill(put, 5)
    return vars(owner)[name], owner


def cachetools_cache(maxsize: float, currsize: int) -> tuple[Any, Any]:
    """Return the container and owner of a stand-in with the attributes of cachetools 4 to 8."""
    cls = type("Cache", (), {"__module__": "cachetools"})
    cache = type("LRUCache", (cls,), {})()
    data = {key: torch.ones(1) for key in range(5)}
    vars(cache).update(_Cache__data=data, _Cache__maxsize=maxsize, _Cache__currsize=currsize)
    return data, cache


@pytest.mark.parametrize(
    ("create", "expected"),
    [
        (lambda: ([1, None, Incomparable(), None], None), Container("list", 4, 4, 0, 2)),
        (lambda: ({1: None}, None), Container("dict", 1, 1, 0, 0)),
        (lambda: (OrderedDict(), None), Container("OrderedDict", 0, 0, 0, 0)),
        (lambda: (deque([1, 2], maxlen=4), None), Container("deque", 2, 2, 4, 0)),
        (lambda: (deque([1]), None), Container("deque", 1, 1, 0, 0)),
        (lambda: (Recent([1], 9), None), Container("Recent", 1, 1, 9, 0)),
        (lambda: owned(full := queue.Queue(7), "queue", full.put), Container("deque", 5, 5, 7, 0)),
        (lambda: owned(full := queue.Queue(-1), "queue", full.put), Container("deque", 5, 5, 0, 0)),
        (lambda: owned(full := queue.LifoQueue(7), "queue", full.put), Container("list", 5, 5, 7, 0)),
        (lambda: owned(full := asyncio.Queue(7), "_queue", full.put_nowait), Container("deque", 5, 5, 7, 0)),
        (lambda: cachetools_cache(6, 5), Container("dict", 5, 5, 6, 0)),
        (lambda: cachetools_cache(1 << 20, 5000), Container("dict", 5, 5000, 1 << 20, 0)),
        (lambda: cachetools_cache(float("inf"), 5), Container("dict", 5, 5, 0, 0)),
        (lambda: ([], types.SimpleNamespace(queue=[], maxsize=3)), Container("list", 0, 0, 0, 0)),
        (lambda: (deque([1]), queue.Queue(10**30)), Container("deque", 1, 1, 0, 0)),
    ],
)
def test_container_has_length_bound_and_nones(create: Any, expected: Container) -> None:
    container, owner = create()
    assert containers.read_container(container, owner) == expected


def test_lru_cache_bound_is_read_from_c_code() -> None:
    for number in range(1, 9):
        cached(number)
    cached.cache_info = cached.cache_parameters = sys.exit  # type: ignore[method-assign,assignment]

    assert containers.read_container(cached) == Container("lru_cache", 3, 3, 3, 0)


def test_nones_of_a_long_list_are_estimated() -> None:
    items = [None] * 600_000 + [0] * 400_000
    assert containers.read_container(items).nones == pytest.approx(600_000, rel=0.001)


def test_holders_returns_the_containers_of_each_path() -> None:
    ring: list[Any] = [None] * 9 + [deque([torch.ones(1)], maxlen=4)]

    chain = alloctrace.holders(ring[9][0]).chain

    assert chain is not None and chain.path == "ring[9][0]"
    assert chain.containers == (Container("list", 10, 10, 0, 9), Container("deque", 1, 1, 4, 0))
