"""Hypothesis strategies for programs of replay_programs, and a runner of these programs."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

KIB, MIB, GIB = 2**10, 2**20, 2**30

BOUNDARIES = (1, 511, 512, 513, MIB - 512, MIB - 1, MIB, MIB + 1, 2 * MIB, 9 * MIB, 10 * MIB - 1, 10 * MIB)
LARGE_BOUNDARIES = (10 * MIB + 1, 18 * MIB, 19 * MIB, 19 * MIB + 1, 20 * MIB, 20 * MIB + 1, 21 * MIB, 64 * MIB, 2 * GIB)
SIZES = st.one_of(
    st.integers(1, 4 * KIB),
    st.integers(1, MIB),
    st.sampled_from(BOUNDARIES),
    st.integers(MIB, 12 * MIB),
    st.sampled_from(LARGE_BOUNDARIES),
    st.integers(10 * MIB, 150 * MIB),
    st.integers(100 * MIB, 2 * GIB),
)

# A call resets all settings that it does not name.
SETTING = st.one_of(
    st.sampled_from(("expandable_segments:True", "expandable_segments:True", "expandable_segments:False")),
    st.sampled_from((21, 32, 64, 200)).map("max_split_size_mb:{}".format),
    st.sampled_from((1, 2, 4, 8, 16)).map("roundup_power2_divisions:{}".format),
    st.just("roundup_power2_divisions:[1:2,64:8,256:1,512:4,>:1]"),
    st.sampled_from((30, 100)).map("max_split_size_mb:25,max_non_split_rounding_mb:{}".format),
    st.sampled_from((0.1, 0.4, 0.8)).map("garbage_collection_threshold:{}".format),
    st.sampled_from((22, 50)).map("large_segment_size_mb:{}".format),
    st.just("graph_capture_record_stream_reuse:True"),
)
SETTINGS = st.lists(SETTING, min_size=1, max_size=3, unique_by=lambda text: text.split("_")[0]).map(",".join)

NUMBERS = st.integers(0, 30)
DEVICES = st.sampled_from((0, 0, 0, 1))
STREAMS = st.sampled_from((0, 0, 0, 1, 2))


def operation(name: str, *arguments: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
    return st.tuples(st.just(name), *arguments).map(list)


def one_of(weights: dict[st.SearchStrategy[list[Any]], int]) -> st.SearchStrategy[list[Any]]:
    """Choose by weight; st.one_of weights all strategies equally."""
    choices = [strategy for strategy, weight in weights.items() for _ in range(weight)]
    return st.integers(0, len(choices) - 1).flatmap(choices.__getitem__)


ANYWHERE = {
    operation("allocate", SIZES, DEVICES, STREAMS): 12,
    operation("free", NUMBERS): 8,
    operation("check"): 6,
    operation("allocate_in_pool", SIZES, NUMBERS, STREAMS): 4,
    operation("free_every", st.integers(0, 3)): 1,
    operation("free_while_used", NUMBERS, STREAMS): 3,
    operation("release", DEVICES, STREAMS): 2,
    operation("use", NUMBERS, STREAMS): 1,
    operation("settings", SETTINGS): 2,
    operation("exhaust", SIZES, DEVICES, st.integers(0, 5)): 1,
    operation("snapshot"): 1,
    operation("step"): 1,
}
IN_CAPTURE = st.lists(one_of({**ANYWHERE, operation("wait", NUMBERS): 3}), max_size=12)
SIZES_AND_FREES = st.lists(st.one_of(SIZES, SIZES, st.integers(-10, 0)), min_size=1, max_size=10)
SIZE_LISTS = st.lists(SIZES, min_size=1, max_size=6)
OPERATIONS = one_of(
    {
        **ANYWHERE,
        operation("make_pool", st.sampled_from(("plain", "plain", "no_split", "use_on_oom", "own")), DEVICES): 2,
        operation("drop_pool", NUMBERS): 1,
        operation("capture", DEVICES, st.integers(0, 3), IN_CAPTURE): 2,
        operation("drop_graph", NUMBERS): 1,
        operation("checkpoint_pool", DEVICES, SIZES_AND_FREES, SIZE_LISTS, SETTINGS): 1,
        operation("synchronize", DEVICES): 1,
        operation("empty_cache"): 2,
        operation("fraction", st.sampled_from((100, 50, 30)), DEVICES): 1,
        operation("threads", st.integers(1, 20)): 1,
        operation("stop"): 1,
        operation("begin"): 2,
    }
)


def beginnings() -> st.SearchStrategy[list[Any]]:
    """Return initial settings, some of them before the recording."""
    first_settings = st.one_of(st.just("expandable_segments:False"), SETTINGS)
    return st.tuples(st.sampled_from(([], [], [["untraced"]])), operation("settings", first_settings)).map(
        lambda parts: [*parts[0], parts[1]]
    )


def programs() -> st.SearchStrategy[list[Any]]:
    """Return mostly long programs: hypothesis prefers short lists. Shrinking begins with the length."""
    lengths = st.sampled_from((1, 25, 50, 75))
    operations = lengths.flatmap(lambda length: st.lists(OPERATIONS, min_size=length, max_size=length + 15))
    return st.tuples(beginnings(), operations).map(lambda parts: [*parts[0], *parts[1]])


class Runner:
    """Runner of programs in a fork of a process that has imported torch: the import takes longer than a program. If a
    program fails or leaves segments behind, the next program runs in a new fork."""

    def __init__(
        self,
        command: list[str],
        folder: Path,
        environment: dict[str, str],
        mode: str = "serve",
        program: str = "replay_programs.py",
    ) -> None:
        self._simulated = command
        self._command = [*command, sys.executable, str(Path(__file__).with_name(program)), mode]
        self._folder, self._environment = folder, environment
        self._process: subprocess.Popen[str] | None = None
        self._is_first = True  # True if the next program is the first of its fork

    def run(self, folder: Path, operations: list[Any]) -> str | None:
        """Run a program in an empty folder, again in a new fork if a used fork fails; return its error, or None."""
        was_first = self._is_first
        error = self._run(folder, operations)
        return self._run(folder, operations) if error and not was_first else error

    def fails_without_recording(self, folder: Path, operations: list[Any]) -> bool:
        """Return whether torch alone fails, in a new process: its setCheckpointPoolState() may corrupt blocks."""
        untraced = Runner(self._simulated, self._folder, self._environment, "serve-untraced")
        failed = untraced._run(folder, operations) is not None
        untraced.stop()
        return failed

    def _run(self, folder: Path, operations: list[Any]) -> str | None:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        if self._process is None:
            with open(self._folder / "output.txt", "w") as output:
                self._process = subprocess.Popen(
                    self._command, cwd=self._folder, env=self._environment, stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE, stderr=output, text=True,
                )  # fmt: skip
        process = self._process
        assert process is not None and process.stdin is not None and process.stdout is not None
        program = {"trace": str(folder / "t"), "expected": str(folder / "expected"), "operations": operations}
        process.stdin.write(json.dumps(program) + "\n")
        process.stdin.flush()
        answer = json.loads(process.stdout.readline())
        self._is_first = not answer["clean"]
        error: str | None = answer["error"]
        return error and f"{error}\n{(self._folder / 'output.txt').read_text()[-3000:]}"

    def stop(self) -> None:
        if self._process is not None:
            self._process.communicate(timeout=600)
            self._process = None
