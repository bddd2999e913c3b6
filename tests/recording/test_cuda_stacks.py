"""Stacks of CUDA events, compared with the Python stacks in torch's own history."""

from __future__ import annotations

from pathlib import Path

from cuda_oracle import KINDS, Recorded, compare_sequences, compare_stacks, read_recorded
from running import WITH_SUPPORT, has_nvidia_gpu, needs_cuda_build

pytestmark = needs_cuda_build

RECORD = """
import sys, warnings
from pathlib import Path
warnings.simplefilter("ignore")
import torch
from cuda_oracle import record
from cuda_programs import work_pending_on
from cuda_stack_programs import STACK_PROGRAMS

old = [torch.empty(10, device="cuda") for _ in range(20)]

def resize_older_storages(steps):
    # resize_() bypasses the recorder, as these storages are older; the waiting frees are completed in the call.
    side = torch.cuda.Stream()
    def free_block():
        block = torch.empty(5000, device="cuda")
        side.wait_stream(torch.cuda.current_stream())
        block.record_stream(side)
    for tensor in old:
        with work_pending_on(side):
            free_block()
        tensor.resize_(100_000)

STACK_PROGRAMS["resize_older_storages"] = (resize_older_storages, 1)
for name in sys.argv[1:]:
    run, steps = STACK_PROGRAMS[name]
    record(Path("."), name, lambda: run(steps), stacks=True)
"""
PROGRAMS = (
    *("python_constructs", "frees", "waiting_frees", "autograd", "coroutines", "deep", "lines_of_one_statement"),
    *("streams", "threads", "transformer", "out_of_memory", "graphs", "empty_cache", "memory_pools"),
    *("resize_older_storages", "expandable_segments"),
)


def test_stacks_equal_torch_history(run_cuda_program, tmp_path: Path) -> None:
    run_cuda_program(RECORD, *PROGRAMS, timeout=600, PYTHONPATH=WITH_SUPPORT)

    differences = []
    for name in PROGRAMS:
        recorded = read_recorded(tmp_path, name, device_count=1)
        sequence = compare_sequences(name, recorded.ours, recorded.reported)
        assert not sequence.differences, "\n".join(sequence.differences[:20])
        stacks = compare_stacks(name, recorded.ours, recorded.trace, recorded.reported, recorded.stacks)
        print(f"\n{stacks}; {len(recorded.stacks)} stacks", end="")
        differences += stacks.differences
        assert_program_caused_its_events(name, recorded)
    assert not differences, "\n".join(differences[:10])


def assert_program_caused_its_events(name: str, recorded: Recorded) -> None:
    """Assert from torch's history that a program caused the events that it is for."""
    kinds, stacks = recorded.reported["kind"], recorded.reported["stack_id"]
    assert stacks.nunique() > 3 or name == "resize_older_storages"
    if name == "autograd":
        assert (stacks == 0).any(), "no event of backward's thread, which has no Python frames"
        outermost = {stack[-1][0] for stack in recorded.stacks if stack}
        # Functions that backward's thread runs, and the program itself.
        assert {"<module>", "apply", "<lambda>"} <= outermost
    if name == "out_of_memory":
        assert (kinds == KINDS.index("oom")).sum() > 5
    if name == "waiting_frees" and not has_nvidia_gpu():
        completed = recorded.reported[kinds == KINDS.index("free_completed")]
        assert (kinds.shift()[completed.index] != KINDS.index("free_requested")).sum() > 10
    if name == "deep":
        assert max(map(len, recorded.stacks)) > 380
