"""A look at all tensors: what holds most of them, in programs that leak (those of tests/support/leak_cases_*.py)."""

from __future__ import annotations

import gc
from typing import Any

import leak_cases_serving
import pytest
import torch
from leak_corpus import LEAKING, cases

from pytorch_alloctrace.objects.graphs import load_reader
from pytorch_alloctrace.objects.object_scan import Group, scan_objects

EXPECTED = {
    "loss_kept_with_its_graph": "kept (list of 60)",
    "validation_loss_summed_without_no_grad": "kept",
    "forward_hook_appends_to_a_closure": "kept (list of 60)",
    "metrics_object": "Metric.errors (list of 60) in kept",
    "parameters_added_and_never_removed": "SGD.param_groups (list of 61) in kept",
    "hook_registered_in_every_step": "Parameter._backward_hooks (OrderedDict of 60) in kept[2].weight",
    "two_leaks_of_different_rate": "kept[0] (list of 80)",
    "cache_by_step_number": "kept (dict of 60)",
    "exceptions_keep_their_frames": "kept (list of 60)",
    "callbacks_keep_what_they_close_over": "kept (list of 150)",
    "lru_cache_without_a_bound_keyed_by_tensors": "kept (lru_cache of 60)",
    "generators_never_finished": "kept (list of 60)",
    "coroutines_that_wait_for_ever": "kept (list of 150)",
    "queue_never_drained": "Queue.queue (deque of 150) in kept",
}


def first_group() -> Group:
    assert not load_reader()
    return scan_objects(10.0).groups[0]


@pytest.mark.parametrize("name", EXPECTED)
def test_what_holds_most(name: str) -> None:
    kept = cases(LEAKING)[name]("cpu")
    found = first_group()
    assert str(found).startswith(f"{EXPECTED[name]}, local of test_what_holds_most() at test_look.py:"), str(found)
    assert found.count == len(found.addresses) or found.count > 512
    del kept
    gc.collect()


def test_class_attribute() -> None:
    leak_cases_serving.global_registry("cpu")
    assert str(first_group()) == "Session.everyone (list of 60), class attribute in leak_cases_serving.py"
    leak_cases_serving.Session.everyone.clear()


def test_garbage() -> None:
    gc.collect()
    kept: Any = cases(LEAKING)["cycles_while_the_collector_is_off"]("cpu")
    found = next(group for group in scan_objects(10.0).groups if group.note)
    gc.enable()
    assert str(found) == "Batch.data, a reference cycle: garbage that the collector has not freed yet"
    assert found.count >= 60
    del kept
    gc.collect()


def test_addresses_are_those_of_the_tensors() -> None:
    kept = [torch.ones(8) for _ in range(20)]
    found = first_group()
    assert set(found.addresses) == {one.data_ptr() for one in kept}
    assert found.bytes == sum(one.nbytes for one in kept)


def test_what_a_finalizer_has_is_collected_at_once() -> None:
    """A look within a collection, between two instructions of a finalizer, keeps nothing of the garbage alive."""
    looks: list[object] = []

    class Circle:
        def __init__(self) -> None:
            self.me, self.tensor = self, torch.empty(70)

        def __del__(self) -> None:
            looks.append(scan_objects(0.2, more=False))

    Circle()
    gc.collect()
    assert len(looks) == 1
    assert not [thing for thing in gc.get_objects() if type(thing) is Circle]
