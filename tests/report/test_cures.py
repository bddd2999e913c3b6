"""Cures of leaks, by kind and holder."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from pytorch_alloctrace.analysis.leaks.leak import (
    BACKLOG,
    GROWING,
    SURVIVORS,
    HeldContainer,
    Holder,
    Leak,
    LeakingSite,
    NoHolder,
)
from pytorch_alloctrace.reading.recorded import FinalScan
from pytorch_alloctrace.reading.sites import Frame, Site
from pytorch_alloctrace.report.cures import cure
from pytorch_alloctrace.report.growth import describe_no_holder
from pytorch_alloctrace.report.site_names import SiteNames

LINE = Site("train.py", 12, "step", "losses.append(loss)", "")


def holder_of(name: str, path: str, through: str = "", *containers: HeldContainer) -> Holder:
    return Holder((name,), path, "train.py", 31, 500, None, 1.0, name, "local", "main", through, containers)


def container(kind: str, length: int = 46, bound: int | None = None) -> HeldContainer:
    return HeldContainer(kind, length, length, bound, 0)


def leak_of(kind: str, holder: Holder | None, line: Site = LINE, no_holder: NoHolder | None = None) -> Leak:
    numbers: dict[str, Any] = {
        **dict.fromkeys(("blocks_at_onset", "reached", "died", "units_with_survivors", "units_judged"), 0),
        **dict.fromkeys(("bytes_per_unit", "age", "onset", "oldest_age", "confidence", "path_share"), 0.0),
    }
    return Leak(
        kind=kind,
        device="cpu",
        unit="step",
        judged_at=1000,
        allocated_bytes=4096,
        blocks=4,
        allocated_bytes_at_end=4096,
        never_died=False,
        seconds_per_unit=1.0,
        forecast_seconds=None,
        sites=(LeakingSite(line, 1, 0.0, 4096, 4),),
        line=line,
        path=(),
        holder=holder,
        no_holder=no_holder,
        **numbers,
    )


LIST, DEQUE, CACHE, DICT = (container(kind) for kind in ("list", "deque", "lru_cache", "dict"))
HOOKS, HOOK = container("OrderedDict"), container("OrderedDict", 1)
SEEN = "seen in the closure of <lambda>(), a hook of net[0]"


@pytest.mark.parametrize(
    ("kind", "holder", "words"),
    [
        (SURVIVORS, holder_of("losses", "losses[...]", "", LIST), "Clear or cap `losses`"),
        (SURVIVORS, holder_of("recent", "recent[...]", "", DEQUE), "Give `recent` a bound: `collections.deque(maxlen"),
        (SURVIVORS, holder_of("jobs.queue", "jobs.queue[...]", "", DEQUE), "`queue.Queue(maxsize=...)`"),
        (SURVIVORS, holder_of("encode", "encode(...)", "", CACHE), "`functools.lru_cache(maxsize=...)`"),
        (SURVIVORS, holder_of("cache", "cache[...]", "", DICT), "Remove entries of `cache`"),
        (SURVIVORS, holder_of("self.last", "self.last", ""), "Set `self.last` to None"),
        (SURVIVORS, holder_of("cache", "cache[...]", "", container("deque", 46, 200)), "`cache` has a bound, 200"),
        (SURVIVORS, holder_of("users", "users[...][...]", "", container("dict", 5), LIST), "the lists in `users`"),
        (SURVIVORS, holder_of("users", "users[...][...]", "", DICT, container("list", 5)), "Remove entries of `users`"),
        (SURVIVORS, holder_of("losses", "losses[...].grad_fn", "autograd graph", LIST), "store `.detach()`"),
        (SURVIVORS, holder_of("total", "total.grad_fn", "autograd graph"), "`total = total.detach()`"),
        (SURVIVORS, holder_of("pending", "pending[...]", "default value", LIST), "Functions keep their default values"),
        (
            SURVIVORS,
            holder_of("seen in the closure of keep(), a hook of net[0]", "hook > seen[...]", "hook", LIST),
            "Or end the hook when it has done its work: `handle.remove()`",
        ),
        (
            SURVIVORS,
            holder_of("the default value of state.total in step()", "total.grad_fn", "autograd graph"),
            "the default value of state.total in step() carries the graph",
        ),
        (
            SURVIVORS,
            holder_of("hidden of the suspended client()", "hidden.grad_fn", "autograd graph"),
            "`hidden` of the suspended client() carries the graph of all former steps: call `.detach()`",
        ),
        (
            SURVIVORS,
            holder_of("tensor.grad", "tensor.grad", "gradient"),
            "Gradients of `backward(create_graph=True)` keep their graphs",
        ),
        (SURVIVORS, holder_of("ctx.y of Swish", "ctx.y", "ctx"), "Swish keeps a tensor on `ctx` that refers to `ctx`"),
        (SURVIVORS, holder_of("Tensor._backward_hooks", "hook", "tensor hook", HOOK), "A hook refers to the tensor"),
        (SURVIVORS, holder_of("Linear.input", "Linear.input", "cycle"), "`Linear.input` is in a reference cycle"),
        (SURVIVORS, holder_of("errors", "errors[...].__traceback__", "exception", LIST), "keep `str(error)`"),
        (
            SURVIVORS,
            holder_of("weakref.finalize._registry", "weakref.finalize._registry[...].args[...]", "finalizer", DICT),
            "A finalizer (`weakref.finalize`) keeps its arguments until its object dies",
        ),
        (
            SURVIVORS,
            holder_of("models", "models[...].tower[4].act.output", "", LIST),
            "set `.output` of the entries that are done to None",
        ),
        (SURVIVORS, holder_of("net._forward_hooks", "net._forward_hooks[...]", "hook", HOOKS), "call `remove()`"),
        (SURVIVORS, holder_of(SEEN, "net > seen[...]", "hook", HOOK, LIST), "Clear or cap `seen` in the closure of"),
        (
            SURVIVORS,
            holder_of("the default value of x in f()", "f > the default value of x in f()[...]", "default value", LIST),
            "The default value of x in f() is made once and kept: use None",
        ),
        (
            SURVIVORS,
            holder_of("history in the closure of f()", "f > history", "closure", LIST),
            "Clear or cap `history`",
        ),
        (SURVIVORS, holder_of("tasks", "tasks[...] > x closed over by f()", "closure", LIST), "Functions in `tasks`"),
        (SURVIVORS, holder_of("tasks", "tasks[...].args[0]", "partial", LIST), "Functions in `tasks`"),
        (SURVIVORS, holder_of("task.args[0]", "task.args[0][...]", "partial", LIST), "Clear or cap `task.args[0]`"),
        (SURVIVORS, holder_of("streams", "streams[...] > x of f()", "generator", LIST), "call its `close()`"),
        (
            SURVIVORS,
            holder_of("hidden of the suspended f()", "streams[...] > hidden of the suspended f()", "generator", LIST),
            "call its `close()`",
        ),
        (
            SURVIVORS,
            holder_of(
                "self.sessions of the suspended Server.handle()",
                "tasks[...] > self of the suspended Server.handle().sessions[...].keys[...]",
                "generator",
                *(container("list", 4), DICT, container("list", 9)),
            ),
            "Remove entries of `self.sessions` of the suspended Server.handle()",
        ),
        (
            SURVIVORS,
            holder_of("parts of the suspended f()", "f > parts of the suspended f()[...]", "generator", LIST),
            "Clear or cap `parts` of the suspended f()",
        ),
        (
            SURVIVORS,
            holder_of("self.seen in the closure of f()", "f > self closed over by f().seen[...]", "closure", DICT),
            "Remove entries of `self.seen` in the closure of f()",
        ),
        (SURVIVORS, holder_of("local.cache", "local.cache[...]", "thread-local", DICT), "end or reuse threads"),
        (SURVIVORS, None, "A reference keeps them"),
        (GROWING, holder_of("keys", "keys", ""), "`keys` becomes a longer tensor"),
        (
            GROWING,
            holder_of("keys in the closure of f()", "f > keys", "closure"),
            "`keys` in the closure of f() becomes",
        ),
        (SURVIVORS, holder_of("Loader.queue.queue", "Loader.queue.queue[...]", "thread", DEQUE), "and `join()` it"),
        (GROWING, None, "allocates the larger buffer"),
        (BACKLOG, holder_of("waiting", "waiting[...]", "", DEQUE), "`queue.Queue(maxsize=...)`"),
        (BACKLOG, holder_of("tasks", "tasks[...] > x closed over by f()", "closure", LIST), "Entries of `tasks`"),
        (BACKLOG, holder_of("net._forward_hooks", "net._forward_hooks[...]", "hook", HOOKS), "call `remove()`"),
        (BACKLOG, None, "slow the producer, or cap the queue"),
    ],
)
def test_cure_follows_from_kind_and_holder(kind: str, holder: Holder | None, words: str) -> None:
    assert words in cure(leak_of(kind, holder), SiteNames(""))


def test_cure_of_a_cache_of_a_method_names_its_self() -> None:
    holder = dataclasses.replace(holder_of("Net.mask", "Net.mask(...)[0].layers", ""), scope="class attribute")

    sentence = cure(leak_of(SURVIVORS, holder), SiteNames(""))

    assert "keeps the `self` of each call" in sentence and "`Net.mask.cache_clear()`" in sentence


@pytest.mark.parametrize(
    ("source", "is_in_place"),
    [
        ('data["image"] = data["image"].to(self.device)', True),
        ("frame.pixels = frame.pixels.cuda()", True),
        ("images = images.to(device)", False),
        ('batch["image"] = data["image"].to(device)', False),
    ],
)
def test_cure_of_an_item_moved_in_place_is_to_move_a_copy(source: str, is_in_place: bool) -> None:
    holder = holder_of("self.cached", "self.cached[...]", "", container("list"))
    line = Site("train.py", 12, "step", source, "")

    assert ("This line replaces `" in cure(leak_of(SURVIVORS, holder, line), SiteNames("/"))) is is_in_place


def test_cure_of_gradients_of_kept_tensors_is_to_detach_them() -> None:
    leak = dataclasses.replace(leak_of(SURVIVORS, holder_of("data", "data[...]", "", LIST)), are_gradients=True)

    assert cure(leak, SiteNames("")).startswith("They are gradients of the tensors in `data`, which require gradients")


@pytest.mark.parametrize("reason", NoHolder)
def test_cure_without_holder_names_a_cache_only_after_a_complete_scan(reason: NoHolder) -> None:
    sentence = cure(leak_of(SURVIVORS, None, no_holder=reason), SiteNames(""))

    begins = {
        NoHolder.CPP: "Clear or cap the cache of the extension",
        NoHolder.COLLECTED: "Objects that this line makes",
    }
    assert sentence.startswith(begins.get(reason, "A reference"))


def test_cure_without_holder_names_the_call_that_gives_gradients_graphs() -> None:
    call = Frame("train", "train.py", 61, "loss.backward(create_graph=True)")

    sentence = cure(dataclasses.replace(leak_of(SURVIVORS, None), gradient_graph=call), SiteNames(""))

    assert "or for gradients that keep their graphs since `backward(create_graph=True)` at train.py:61 in" in sentence


@pytest.mark.parametrize("reason", [reason for reason in NoHolder if reason is not NoHolder.UNKNOWN])
def test_every_reason_without_holder_has_a_sentence(reason: NoHolder) -> None:
    (sentence,) = describe_no_holder(reason, FinalScan("truncated", 1000, 34_567, 0))

    assert sentence.startswith("Holder not found") and sentence.endswith(".")
    assert ("ended after 34,567 objects" in sentence) == (reason is NoHolder.TRUNCATED)


def test_graph_in_a_thread_names_no_grad_as_state_of_a_thread() -> None:
    leak = leak_of(SURVIVORS, holder_of("results", "results[...].grad_fn", "autograd graph", LIST))

    in_thread = cure(dataclasses.replace(leak, is_in_thread=True), SiteNames(""))

    assert "only in the thread" in in_thread
    assert "thread" not in cure(leak, SiteNames(""))
