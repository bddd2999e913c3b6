"""A program that prints torch's answers about its CUDA memory, one subject per line: tracing must not change them.

cuda_memory_queries.py plain|traced|late TRACE    # late: traces two ranges in the middle
"""

from __future__ import annotations

import functools
import gc
import itertools
import json
import re
import sys
import threading
import warnings
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch
from cuda_programs import simulated_device, transformer, work_pending_on

Answer = Any
FIGURES = (
    *("memory_allocated", "memory_reserved", "max_memory_allocated", "max_memory_reserved", "memory_stats"),
    *("mem_get_info", "memory_summary", "get_per_process_memory_fraction"),
)
MODE = sys.argv[1]
if MODE != "plain":
    import pytorch_alloctrace as alloctrace


def try_query(query: Callable[[], Answer]) -> Answer:
    """Return the answer, or type and text of an exception without addresses and process numbers, which vary."""
    try:
        return query()
    except Exception as error:
        text = re.sub(r"0x[0-9a-f]+", "0xADDRESS", str(error))
        return [type(error).__name__, re.sub(r"\b(pid|[Pp]rocess) \d+", r"\1 N", text)]


def without(values: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name not in names}


def make_numbering() -> defaultdict[int, int]:
    """Return a table that numbers addresses or streams in the order of their first use."""
    return defaultdict(itertools.count().__next__)


def layout(segments: list[dict[str, Any]]) -> Answer:
    """Return segments and blocks in the order of their addresses, without the addresses."""
    stream = make_numbering()
    described = []
    for segment in sorted(segments, key=lambda segment: (segment["device"], segment["address"])):
        blocks = [
            {**without(block, "address"), "offset": block["address"] - segment["address"]}
            for block in segment["blocks"]
        ]
        fields = without(segment, "address", "frames")
        described.append({**fields, "stream": stream[segment["stream"]], "blocks": blocks})
    return described


def history(snapshot: dict[str, Any]) -> Answer:
    """Return torch's own history without the entries that our snapshots add (see docs/recording.md)."""
    address, stream = make_numbering(), make_numbering()
    entries = []
    for trace in snapshot["device_traces"]:
        for entry in trace:
            if entry["action"] == "snapshot":
                continue
            fields = without(entry, "addr", "time_us")
            fields["address"] = address[entry["addr"]] if "addr" in entry else None
            fields["stream"] = stream[entry["stream"]]
            fields["frames"] = [(frame["name"], frame["line"]) for frame in entry.get("frames", [])]
            entries.append(fields)
    other = without(snapshot, "segments", "device_traces")
    for annotation in other.get("external_annotations", []):
        annotation.pop("time_us")
    return {"entries": entries, "segments": layout(snapshot["segments"]), **other}


def figures() -> Answer:
    answers: dict[str, Answer] = {"backend": torch.cuda.memory.get_allocator_backend()}
    for device in range(torch.cuda.device_count()):
        for name in FIGURES:
            answers[f"{name} {device}"] = try_query(functools.partial(getattr(torch.cuda, name), device))
    host = torch.cuda.host_memory_stats
    answers["host"] = try_query(lambda: {name: value for name, value in host().items() if "time" not in name})
    answers["layout"] = try_query(lambda: layout(torch.cuda.memory_snapshot()))
    return answers


def training() -> Answer:
    torch.manual_seed(1)
    # autocast's cache of weights is freed in the order of addresses, which differs between runs.
    transformer(5, cache_enabled=False)
    return figures()


def sizes() -> Answer:
    """Free small and large blocks out of order, so that segments are split and merged."""
    tensors = [torch.empty(1 + (n * 7919) % 3_000_000, dtype=torch.uint8, device="cuda") for n in range(300)]
    for n in range(0, 300, 3):
        tensors[n] = None
    tensors += [torch.empty(700_000 * n, dtype=torch.uint8, device="cuda") for n in range(1, 30)]
    answers = [figures()]
    tensors.clear()
    answers.append(figures())
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    torch.cuda.reset_accumulated_memory_stats()
    return [*answers, figures()]


def streams() -> Answer:
    side = torch.cuda.Stream()
    answers = []
    with work_pending_on(side):
        for n in range(20):
            tensor = torch.empty(3_000_000 + n, dtype=torch.uint8, device="cuda")
            with torch.cuda.stream(side):
                other = torch.empty(1000 * n + 1, device="cuda")
                tensor.record_stream(side)
            del tensor
            other.record_stream(torch.cuda.current_stream())
            if not simulated_device():
                torch.cuda.synchronize()  # else the completion of frees depends on the device's timing
        if simulated_device():
            answers.append(figures())
    torch.cuda.synchronize()
    torch.empty(10, device="cuda")
    return [*answers, figures()]


def own_history() -> Answer:
    torch.cuda.memory._record_memory_history(context="all", stacks="python", max_entries=100_000)
    tensors = []

    def allocate() -> None:
        for n in range(30):
            tensors.append(torch.empty(100_000 * (n + 1), device="cuda"))
            if n % 4 == 3:
                tensors.pop(0)

    torch.cuda.memory._set_memory_metadata("a note")
    allocate()
    thread = threading.Thread(target=allocate)
    thread.start()
    thread.join()
    del thread
    answers = {"metadata": torch.cuda.memory._get_memory_metadata(), "on": torch._C._cuda_isHistoryEnabled()}
    with torch.profiler.record_function("annotated"):
        tensors.clear()
    torch.cuda.empty_cache()
    answers["history"] = history(torch.cuda.memory._snapshot())
    torch.cuda.memory._record_memory_history(enabled=None)
    torch.cuda.memory._set_memory_metadata("")
    return answers, try_query(lambda: torch._C._cuda_isHistoryEnabled())


def raw_calls() -> Answer:
    address = torch.cuda.caching_allocator_alloc(5_000_000)
    on_stream = torch.cuda.caching_allocator_alloc(1000, stream=torch.cuda.Stream())
    answers = [figures()]
    torch.cuda.caching_allocator_delete(address)
    torch.cuda.caching_allocator_delete(on_stream)
    answers.append(try_query(lambda: torch.cuda.caching_allocator_delete(12345)))
    torch.cuda.caching_allocator_enable(False)
    uncached = torch.empty(4_000_000, device="cuda")
    answers.append(figures())
    torch.cuda.caching_allocator_enable(True)
    del uncached
    return [*answers, figures()]


def fraction() -> Answer:
    before = torch.cuda.memory.get_per_process_memory_fraction()
    torch.cuda.set_per_process_memory_fraction(0.001)
    answers = [try_query(lambda: torch.empty(1 << 30, dtype=torch.uint8, device="cuda").shape), figures()]
    torch.cuda.set_per_process_memory_fraction(min(before, 1.0))
    return [*answers, try_query(lambda: torch.cuda.set_per_process_memory_fraction(3.0)), figures()]


def too_large() -> Answer:
    observed = []
    torch._C._cuda_attach_out_of_memory_observer(lambda *answers: observed.append([answers[0], answers[1]]))
    answers = try_query(lambda: torch.empty(1 << 45, dtype=torch.uint8, device="cuda"))
    return [answers, observed, figures()]


def pools() -> Answer:
    answers = []
    for settings in ({}, {"no_split": True}, {"use_on_oom": True}):
        pool = torch.cuda.MemPool(**settings)
        with torch.cuda.use_mem_pool(pool):
            tensors = [torch.empty(size, dtype=torch.uint8, device="cuda") for size in (100, 3_000_000, 30_000_000)]
            del tensors[1]
            tensors.append(torch.empty(1_500_000, dtype=torch.uint8, device="cuda"))
        answers.append([pool.id, pool.use_count(), layout(pool.snapshot())])
        del tensors
        if "use_on_oom" in settings:
            free = torch.cuda.mem_get_info()[0]
            answers.append(
                try_query(lambda free=free: list(torch.empty(free, dtype=torch.uint8, device="cuda").shape) == [free])
            )
            torch.cuda.empty_cache()
        answers.append(layout(pool.snapshot(include_traces=False)))
        del pool
        answers.append(figures())
    return answers


def settings() -> Answer:
    change = torch._C._accelerator_setAllocatorSettings
    answers = []
    for text in (
        "expandable_segments:True",
        "roundup_power2_divisions:8",
        "max_split_size_mb:32",
        "garbage_collection_threshold:0.5",
        "expandable_segments:False,max_split_size_mb:100000",
        "no_such_setting:1",
    ):
        answers.append(try_query(lambda text=text: change(text)))
        tensors = [torch.empty(size * 1_100_001, dtype=torch.uint8, device="cuda") for size in (1, 9, 33, 2)]
        answers += [figures(), try_query(lambda: torch.cuda.memory._snapshot()["allocator_settings"])]
        del tensors
    return answers


def graphs() -> Answer:
    """Capture and replay graphs, and use their pool as torch.compile does."""
    torch.cuda.empty_cache()
    pool = torch.cuda.graph_pool_handle()
    static = torch.zeros(1000, 1000, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool):
        large = static + 1
        small = large[:10].clone()
        freed = large * 2
        del freed
    answers = [figures(), layout(torch.cuda.memory_snapshot(pool))]
    graph.replay()
    state = torch._C._cuda_getCheckpointState(0, pool)
    answers.append(torch._C._has_Standard_Deleter(large.untyped_storage()._cdata))
    live = {tensor.untyped_storage().data_ptr() for tensor in (large, small)}
    answers.append(torch._C._cuda_checkPoolLiveAllocations(0, pool, live))
    answers.append(torch._C._cuda_checkPoolLiveAllocations(0, pool, set()))
    with torch.cuda.stream(torch.cuda.Stream()):
        torch._C._cuda_beginAllocateCurrentStreamToPool(0, pool)
        further = torch.empty(5_000_000, device="cuda")
        torch._C._cuda_endAllocateToPool(0, pool)
        torch._C._cuda_releasePool(0, pool)
    torch._C._cuda_beginAllocateCurrentThreadToPool(0, pool)
    thread_bound = torch.empty(2_000_000, device="cuda")
    torch._C._cuda_endAllocateToPool(0, pool)
    torch._C._cuda_releasePool(0, pool)
    answers.append(layout(torch.cuda.memory_snapshot(pool)))
    del thread_bound
    torch._C._cuda_setCheckpointPoolState(0, state, [further.untyped_storage()._cdata], [])
    answers += [layout(torch.cuda.memory_snapshot(pool)), figures()]
    # As torch.compile's graphs do: remove a storage's deleter, and construct a storage from a bare address.
    storage = small.untyped_storage()
    address, size = storage.data_ptr(), storage.nbytes()
    torch._C._free_And_Remove_DeleterFn(storage._cdata)
    answers += [figures(), torch._C._has_Standard_Deleter(storage._cdata)]
    again = torch._C._construct_storage_from_data_pointer(address, torch.device("cuda", 0), size)
    answers += [again.nbytes(), torch._C._has_Standard_Deleter(again._cdata)]
    del again, further, storage, small, large
    answers.append(try_query(lambda: layout(torch.cuda.memory_snapshot(pool))))
    graph.reset()
    del graph, state
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 64)).cuda()
    replayed = torch.cuda.make_graphed_callables(model, (torch.randn(8, 64, device="cuda", requires_grad=True),))
    replayed(torch.randn(8, 64, device="cuda", requires_grad=True)).sum().backward()
    answers.append(figures())
    del model, replayed
    gc.collect()
    torch.cuda.empty_cache()
    return [*answers, figures()]


def two_devices() -> Answer:
    if torch.cuda.device_count() < 2:
        return []
    source = torch.ones(5_000_000, device="cuda:1")
    copied = source.to("cuda:0").to("cuda:1", non_blocking=True)
    with torch.cuda.device(1):
        own = torch.empty_like(source)
    answers = [figures(), [str(tensor.device) for tensor in (copied, own)]]
    del source, copied, own
    return [*answers, figures()]


def pinned() -> Answer:
    tensors = [torch.empty(size, dtype=torch.uint8).pin_memory() for size in (1, 1000, 3_000_000)]
    tensors.append(torch.empty(70_000, pin_memory=True))
    answers = [[tensor.is_pinned() for tensor in tensors], torch.zeros(10).is_pinned(), figures()["host"]]
    tensors[2].to("cuda", non_blocking=True)
    del tensors[2]
    torch.cuda.synchronize()
    tensors.append(torch.empty(3_000_000, dtype=torch.uint8, pin_memory=True))
    copied = torch.arange(1000.0).pin_memory().cuda().cpu()
    return [*answers, figures()["host"], copied.sum().item()]


def moved() -> Answer:
    """Share a tensor between processes, and resize another."""
    tensor = torch.arange(1000.0).cuda()
    handle = try_query(lambda: [type(part).__name__ for part in tensor.untyped_storage()._share_cuda_()])
    grown = torch.empty(10, device="cuda")
    grown.resize_(1_000_000)
    grown.untyped_storage().resize_(100)
    processes = try_query(lambda: re.sub(r"\b\d+\b", "N", torch.cuda.list_gpu_processes()))
    return [handle, grown.untyped_storage().nbytes(), processes, figures()]


SUBJECTS = (
    *(training, sizes, streams, own_history, raw_calls, pools, settings),
    *(graphs, two_devices, pinned, moved, training, too_large, fraction),
)


def print_answer(subject: str, answers: Answer) -> None:
    print(subject, json.dumps(answers), sep="\t", flush=True)


def main() -> None:
    warnings.simplefilter("ignore")
    # Otherwise backward's thread frees its last tensors concurrently: counters differ between runs.
    torch.autograd.set_multithreading_enabled(False)
    # An object scan creates objects, which changes when Python collects cycles (docs/limits.md).
    gc.disable()
    if MODE == "traced":
        alloctrace.enable(sys.argv[2])
    # A recording must not initialise CUDA before the program does.
    print_answer("before", [torch.cuda.is_initialized(), torch.cuda._is_in_bad_fork()])
    print_answer("before initialisation", [torch.cuda.memory_stats(), torch.cuda.is_initialized()])
    for number, subject in enumerate(SUBJECTS):
        if MODE == "late" and number in (1, 6):
            alloctrace.enable(f"late-{number}-{sys.argv[2]}")
        print_answer(subject.__name__, try_query(subject))
        if MODE == "late" and number in (3, 9):
            alloctrace.disable()
    if MODE == "traced":
        alloctrace.disable()
    print_answer("after", try_query(training))


if __name__ == "__main__":
    main()
