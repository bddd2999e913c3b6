"""Cures of leaks, from their cause: what holds the blocks, and through what."""

from __future__ import annotations

import re
from collections.abc import Callable

from ..analysis.leaks.leak import (
    ADDITION,
    AUTOCAST,
    BACKLOG,
    GRADIENT,
    GRAPH,
    GROWING,
    SURVIVORS,
    Growth,
    Holder,
    Leak,
    NoHolder,
)
from ..analysis.usage.roles import ModelOrigin
from ..reading.sites import Site
from . import units
from .site_names import SiteNames

_HOOK, _DEFAULT_VALUE = "hook", "default value"
_DEFAULT = "the default value of "
_PLACE = re.compile(r" (in the|of the|of) ")
"""Begin of the place in the name of a holder: "hidden of the suspended client()"."""
AUTOCAST_CURE = (
    "What helps: pass `torch.autocast` `cache_enabled=False`; where nothing is trained, use `torch.inference_mode()` "
    "or `requires_grad_(False)`; with many models, enter and leave the region for each."
)
BACKWARD_EACH = "call backward after each forward, (loss / n).backward() for each micro-batch"
NO_GRAD = "run this line under torch.no_grad() or torch.inference_mode()"
NO_GRAD_OF_GENERATOR = (
    "a generator expression runs where its items are taken: a `with torch.no_grad()` around it has no effect if it has"
    " ended by then. Make a list of it there, or iterate under torch.no_grad()"
)
NO_GRAD_IN_THREAD = (
    "enter torch.no_grad() or torch.inference_mode() in the thread that runs this line, as they hold only in the thread"
    " that enters them"
)
SHARE_MODEL = "make one model and share it, also between threads"
_MAX_VIEW_SHARE = 0.5
"""Maximum share of their memory that tensors use, for `clone()` to be a cure."""
_EXPRESSION = re.compile(r"[\w.]+")
_MOVED_IN_PLACE = re.compile(r"\s*(\w[\w.]*(?:\[[^\]]+\]|\.\w+)) = \1\.(?:to|cuda)\(")
"""Line that moves an item or attribute in place."""
_ACCUMULATION = "AccumulateGrad"
"""Autograd node that adds a gradient to the one of its parameter."""
_LAST_ATTRIBUTE = re.compile(r"[^\s(,]*(\.\w+)(?= \(|,|$)")
"""Beginning of the description of a holder, up to an attribute: "trainer.layers[3].inputs (list of 30)"."""
_SUSPENDED = " of the suspended "
_WORD = re.compile(r"\w+")
_ENTRY_ATTRIBUTE = re.compile(r"(?:\[\.\.\.\])+.*?(\.\w+)$")
"""In the path behind a container: the last attribute of its entries, which refers to a block."""
_IN_FUNCTION = re.compile(r" in the closure of |\.(args|keywords)\b")
"""In the name of a holder that a function keeps, in its closure or as an argument of functools.partial."""


def describe_autocast(size: int, copied: int, site: Site, names: SiteNames) -> str:
    """Describe what a region of autocast keeps: `size` bytes, of which `copied` are copies and the rest weights."""
    weights = f", and {units.size(size - copied)} of weights to which only the copies refer" if size > copied else ""
    return (
        "Autocast keeps a 16-bit copy of each float32 weight that requires gradients until its outermost region ends: "
        f"{units.size(copied)} of copies{weights}. The region is entered at {names.site(site)} and spans many "
        "iterations."
    )


def cure(leak: Leak, names: SiteNames) -> str:
    """Return a sentence on what to change."""
    if leak.line.is_workspace:
        return (
            "cuBLAS keeps one for each thread and stream that multiplies, until the process ends: reuse threads and "
            "streams."
        )
    moved = _MOVED_IN_PLACE.match(leak.line.source or "")
    if moved is not None and leak.kind == SURVIVORS:
        return (
            f"This line replaces `{moved[1]}` by a copy on the device, and the object that contains it keeps the copy: "
            "assign the copy to a variable, or first copy that object (`dict(...)`, `copy.copy(...)`)."
        )
    holder = leak.holder
    if holder is None:
        return _cure_without_holder(leak, names)
    if leak.are_gradients and not holder.through:
        return (
            f"They are gradients of the tensors in {quote(names.referrer(holder.name or holder.path))}, which require "
            "gradients: call `requires_grad_()` on `.detach()` of each only, or set its `.grad = None` after each use."
        )
    if leak.kind == GROWING:
        name = quote(names.referrer(holder.name or holder.path))
        return f"Each time, {name} becomes a longer tensor: {_cure_growing(leak)}."
    sentence = cure_holder(holder, leak.kind, leak.device, names)
    if leak.is_model:
        if not holder.through and "list" in {container.type for container in holder.containers}:
            name = quote(names.referrer(holder.name or holder.path))
            sentence = f"Remove models that are done from {name}, or cap it."
        copies = "; copies can be kept on the CPU (`.cpu()`)" if "copy" in (leak.line.source or "") else ""
        return f"{sentence} Or, unless they must differ, {SHARE_MODEL}{copies}."
    if holder.through == GRAPH and leak.is_in_thread:
        return (
            f"{sentence} torch.no_grad() and the current device hold only in the thread that set them: set them here."
        )
    return sentence


def cure_holder(holder: Holder, kind: str, device: str, names: SiteNames) -> str:
    """Return a sentence on what to change at a holder. kind: `Leak.kind` of the growth, but not GROWING."""
    name = quote(names.referrer(holder.name or holder.path))
    places = {match[0]: match[1] for text in holder.names if (match := _LAST_ATTRIBUTE.match(text))}
    if len(places) > 1 and len({*places.values()}) == 1:
        name += f" and the other `{next(iter(places.values()))}`"
    if holder.through in _CYCLES:
        return _CYCLES[holder.through](name, "" if holder.store is None else f" at {names.site(holder.store)}")
    is_in_function = _IN_FUNCTION.search(name) is not None or _is_below_suspended(holder)
    if holder.through in _CAUSES and not (holder.through == _HOOK and is_in_function):
        return _CAUSES[holder.through](name, holder)
    if kind == BACKLOG:
        return (
            f"Entries of {name} come faster than they go: cap it (`queue.Queue(maxsize=...)`), or remove what is done."
        )
    is_list_of_functions = holder.through == _DEFAULT_VALUE and not name.startswith(_DEFAULT)
    if holder.through in _PLACES and not is_in_function and not is_list_of_functions:
        return _PLACES[holder.through](name)
    sentence = _cure_container(name, holder, device, names)
    sentence = " ".join((*describe_views(holder, f"The tensors in {name}"), sentence))
    if is_list_of_functions:
        return f"Functions keep their default values as long as they are kept. {sentence}"
    if holder.through == _HOOK:
        return f"{sentence} Or end the hook when it has done its work: `handle.remove()`."
    return sentence


def _is_below_suspended(holder: Holder) -> bool:
    """Return whether an item or attribute of a suspended function's variable holds the blocks, not the variable."""
    _, is_suspended, function = holder.name.partition(_SUSPENDED)
    return bool(is_suspended) and holder.path.rpartition(f"{_SUSPENDED}{function}")[2].startswith((".", "["))


def cure_garbage(back_reference: str) -> str:
    """Return a sentence on what frees garbage. back_reference: as in `Holder`."""
    if back_reference:
        return (
            f"What helps: `{back_reference}` refers back to an object that leads to the blocks: make it a "
            "`weakref.ref`, or set it to None when the object is done; or call `gc.collect()` after each use."
        )
    return (
        "What helps: `gc.collect()` after each use, or no cycle: remove hooks and callbacks that refer to their owner, "
        "use weakref, or call `ctx.save_for_backward` instead of storing on `ctx`."
    )


def cure_accumulation(growth: Growth, names: SiteNames) -> list[str]:
    """Return sentences on what to change where memory accumulates up to the peak."""
    sentences = []
    holder = growth.holder
    if growth.is_trained and not growth.is_joined and not (holder is not None and holder.containers):
        what = "A variable" if holder is None else quote(names.referrer(holder.name or holder.path))
        return [f"{what} carries the graph of each {growth.unit} to the next, after its backward: `.detach()` it."]
    if growth.is_joined:
        to_cpu = "" if growth.device == "cpu" else " on the CPU (`.cpu()`)"
        sentences.append(
            f"Each join copies all former parts: keep the parts in a list{to_cpu} and join them once, or keep running "
            "statistics instead."
        )
    elif growth.holder is not None:
        sentences.append(cure_holder(growth.holder, growth.kind, growth.device, names))
        if growth.holder.store is not None:
            sentences[-1] += f" It is filled at {names.site(growth.holder.store)}."
    else:
        to_cpu = "" if growth.device == "cpu" else "`.cpu()`, "
        sentences.append(f"Keep less of each {growth.unit}: {to_cpu}`.detach()`, `.item()` or running statistics.")
    if growth.has_graph and (growth.holder is None or growth.holder.store_kind != ADDITION):
        sentences.append(
            f"The autograd graph of each {growth.unit} is kept, too: `.detach()` what is kept, or run an evaluation"
            " under torch.no_grad()."
        )
    return sentences


def describe_checkpointing(model: ModelOrigin | None, names: SiteNames) -> str:
    """Return what to checkpoint: the iterations of a loop, a module, or the model that a line makes or moves."""
    where = ""
    if model is not None and model.is_in_trainer:
        return "activation checkpointing (`gradient_checkpointing=True` in TrainingArguments)"
    if model is not None and (loop := model.loop_line) is not None:
        blocks = units.counted(loop.blocks, "block")
        return (
            f"torch.utils.checkpoint of the iterations of the loop that runs {names.site(loop.site)} ({blocks} are "
            "live)"
        )
    if model is not None and model.main_module:
        where = f" of {names.module(model.main_module)}"
    elif model is not None and model.line is not None:
        line = names.site(model.line)
        where = f" of the model that {line} moves to the device" if model.is_moved else ""
        where = where or f", switched on where the model is made, {line}"
    return f"activation checkpointing{where} (torch.utils.checkpoint, which many models apply only after model.train())"


def quote(name: str) -> str:
    """Quote the expression in the name of a holder: "`seen` in the closure of step()"."""
    if name.startswith(_DEFAULT):
        return name
    place = _PLACE.search(name)
    return f"`{name}`" if place is None else f"`{name[: place.start()]}`{name[place.start() :]}"


def _cure_growing(leak: Leak) -> str:
    if leak.line.function.startswith(_ACCUMULATION):
        return "gradients add up, sparse ones by joining; call `zero_grad()` for these parameters in each step"
    to_cpu = "" if leak.device == "cpu" else " on the CPU (`.cpu()`)"
    return (
        f"collect its parts in a list{to_cpu} and join them once, keep only its last part, or allocate it once in full"
        " length"
    )


def _cure_without_holder(leak: Leak, names: SiteNames) -> str:
    if leak.kind == GROWING:
        subject = (
            "The gradient" if leak.line.function.startswith(_ACCUMULATION) else "This line allocates the larger buffer"
        )
        return f"{subject}: {_cure_growing(leak)}."
    if leak.kind == BACKLOG:
        return "Blocks of this line are queued faster than they are freed: slow the producer, or cap the queue."
    if leak.is_model:
        return f"A reference keeps each module that this line makes: remove those that are done, or {SHARE_MODEL}."
    if leak.gradient_graph is not None:
        return (
            "A reference keeps them: look for a list, an attribute or a closure near this line, or for gradients that "
            f"keep their graphs since `backward(create_graph=True)` at {names.site(leak.gradient_graph)}: set `.grad = "
            "None` after each use."
        )
    if leak.no_holder is NoHolder.COLLECTED:
        return (
            "Objects that this line makes end in reference cycles, such as between parent and child: break the cycle "
            "with a `weakref`, or call `gc.collect()` after each use, also while the collector is disabled."
        )
    if leak.no_holder is NoHolder.CPP:
        return (
            "Clear or cap the cache of the extension or library that this line calls. Autocast keeps its cache until "
            "its `with` block ends, an autograd graph what `saved_tensors_hooks` packed."
        )
    return "A reference keeps them: look for a list, an attribute, a closure or an autograd graph near this line."


def _cure_gradient(name: str, where: str) -> str:
    return (
        "Gradients of `backward(create_graph=True)` keep their graphs, a cycle: set `.grad = None` after each use, of "
        f"inputs too, or use `torch.autograd.grad`. `gc.collect()` does not free it.{where and f' The call is{where}.'}"
    )


def _cure_context(name: str, where: str) -> str:
    return (
        f"The autograd.Function {name.rpartition(' of ')[2]} keeps a tensor on `ctx` that refers to `ctx`: call "
        f"`ctx.save_for_backward(...)` instead{where}."
    )


def _cure_tensor_hook(name: str, where: str) -> str:
    return (
        f"A hook{where} refers to the tensor that has it, a reference cycle: use `.detach()` of the tensor in the hook,"
        " or call `remove()` on its handle. `gc.collect()` may not free it."
    )


def _cure_cycle(name: str, where: str) -> str:
    return (
        f"{name}{where} is in a reference cycle, which only Python's garbage collector frees: break the cycle with a "
        "`weakref` or by removing hooks and callbacks, or call `gc.collect()` after each use."
    )


def _cure_graph(name: str, holder: Holder) -> str:
    if holder.containers:
        return (
            f"Entries of {name} keep the graphs of their steps, with all activations: store `.detach()` of a tensor, "
            "or `.item()` of a number."
        )
    variable = name.strip("`")
    if not _EXPRESSION.fullmatch(variable):
        return f"{name} carries the graph of all former steps: call `.detach()` on it in each step."
    sentence = f"{name} carries the graph of all former steps: "
    if holder.store_kind == ADDITION:
        sentence += "add up `.item()` of each part, and call backward on each if one is to follow; if it is a state, "
    return f"{sentence}`{variable} = {variable}.detach()`, and so on for all that is carried on with it."


def _cure_exception(name: str, holder: Holder) -> str:
    return (
        f"An exception that {name} keeps has a traceback, which keeps the local variables of all its frames: keep "
        "`str(error)`, or call `traceback.clear_frames(error.__traceback__)`."
    )


def _cure_finalizer(name: str, holder: Holder) -> str:
    return (
        "A finalizer (`weakref.finalize`) keeps its arguments until its object dies: call the finalizer when the "
        "object is done, or drop the last reference to the object."
    )


def _cure_hook(name: str, holder: Holder) -> str:
    return (
        f"A hook was registered again and again ({name}): call `remove()` on the handle that the call, such as "
        "`register_forward_hook`, returned."
    )


def _cure_default(name: str) -> str:
    value = name if name.startswith(_DEFAULT) else f"a default value of a function in {name}"
    return f"{value[0].upper()}{value[1:]} is made once and kept: use None, and make the object in the call."


def _cure_closure(name: str) -> str:
    return (
        f"Functions in {name} keep the variables that they use from outside: remove the functions that are done, or "
        "pass them these values as arguments."
    )


def _cure_suspended(name: str) -> str:
    return f"A suspended function keeps its local variables ({name}): run it to its end, or call its `close()`."


def _cure_thread_local(name: str) -> str:
    return f"Each thread keeps its own entry of {name} until it ends: end or reuse threads, or delete the entry."


def _cure_thread(name: str) -> str:
    return (
        f"Threads that have not ended keep what they use ({name}): stop each when its work is done, also one that waits"
        " at a full queue (a flag, an empty queue), and `join()` it; or keep one thread and use it again."
    )


def _cure_autocast(name: str, holder: Holder) -> str:
    return AUTOCAST_CURE


_CAUSES: dict[str, Callable[[str, Holder], str]] = {
    GRAPH: _cure_graph,
    "exception": _cure_exception,
    "finalizer": _cure_finalizer,
    _HOOK: _cure_hook,
    AUTOCAST: _cure_autocast,
}
"""By `Holder.through`: cures of what must not be on the path."""
_FUNCTION_CACHE = "lru_cache"
_CYCLES: dict[str, Callable[[str, str], str]] = {
    "ctx": _cure_context,
    "tensor hook": _cure_tensor_hook,
    GRADIENT: _cure_gradient,
    "cycle": _cure_cycle,
}
"""By `Holder.through`: cures of reference cycles. The second argument is the place of the line that makes the cycle."""
_PLACES: dict[str, Callable[[str], str]] = {
    _DEFAULT_VALUE: _cure_default,
    "partial": _cure_closure,
    "closure": _cure_closure,
    "generator": _cure_suspended,
    "thread-local": _cure_thread_local,
    "thread": _cure_thread,
}
"""By `Holder.through`: cures of what may be on the path."""


def describe_views(holder: Holder, subject: str) -> list[str]:
    """Return a sentence on an object that holds views of much larger tensors; none for others."""
    if holder.tensor_share > _MAX_VIEW_SHARE:
        return []
    share = units.share(holder.tensor_share, 1)
    return [f"{subject} are views, which use {share} of the memory that they keep: store `.clone()` of each."]


def is_function_cache(holder: Holder) -> bool:
    """Return whether a cache of a function (`functools.lru_cache`) holds the memory."""
    return any(container.type == _FUNCTION_CACHE for container in holder.containers)


def _cure_container(name: str, holder: Holder, device: str, names: SiteNames) -> str:
    largest = max(holder.containers, key=lambda container: container.length, default=None)
    kind = "" if largest is None else largest.type
    cache, is_entry, _ = holder.path.partition("(...)")
    if is_entry and holder.scope == "class attribute":
        return (
            f"The cache of a method keeps the `self` of each call: call `{cache}.cache_clear()` when an object is "
            "done, or cache in the object instead (a dict made in `__init__`)."
        )
    if largest is not None and largest.bound and kind == _FUNCTION_CACHE:
        return (
            f"The cache of {name} (lru_cache) keeps arguments and results of up to {largest.bound:,} calls: lower its "
            "bound, call its `cache_clear()`, or cache nothing that refers to tensors."
        )
    if largest is not None and largest.bound:
        return f"{name} has a bound, {largest.bound:,}: lower it, or keep less in each entry."
    if holder.containers[-1:] == (largest,) and holder.path.removeprefix(holder.name).startswith("[...]["):
        name = f"{names.referrer(f'the {kind}')}s in {name}"
    if kind == "deque":
        return f"Give {name} a bound: `collections.deque(maxlen=...)`, or `queue.Queue(maxsize=...)`."
    if kind == _FUNCTION_CACHE:
        return f"Give {name} a bound: `functools.lru_cache(maxsize=...)`, or call its `cache_clear()`."
    *_, last_word = _WORD.findall(_PLACE.split(holder.name)[0]) or [""]
    attribute = _ENTRY_ATTRIBUTE.search(holder.path.rpartition(last_word)[2]) if last_word else None
    if attribute:
        return f"Clear or cap {name}, or set `{attribute[1]}` of the entries that are done to None."
    if kind == "list":
        copy = "" if device == "cpu" else ", a copy on the CPU"
        return f"Clear or cap {name}, or append what is needed of each tensor: a number by `.item()`{copy}."
    if largest is not None and largest.length > 1:
        return f"Remove entries of {name} that are no longer needed, or cap it."
    return f"Set {name} to None, or replace it, when it is no longer needed."
