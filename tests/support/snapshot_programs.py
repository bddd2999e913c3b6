"""The programs of replay_programs, with torch's own history in place of a recording: at its first checkpoints and at
the end, a snapshot t.0, t.1, ...

    python snapshot_programs.py serve        as replay_programs; an operation ["ring", N] comes first: its entries
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from replay_programs import Machine, serve


class SnapshotMachine(Machine):
    """Carries out the operations with torch's history."""

    def run(self, operations: list[Any]) -> None:
        self._entries = 1_000_000
        if operations[0][0] == "ring":
            self._entries = operations[0][1]
            operations = operations[1:]
        begins = next((at for at, operation in enumerate(operations) if operation[0] == "history"), 0)
        self._all([operation for operation in operations[:begins] if operation[0] != "history"])
        torch.cuda.memory._record_memory_history(max_entries=self._entries, stacks="python", clear_history=True)
        try:
            self._all([operation for operation in operations[begins:] if operation[0] != "history"])
            self._dump()
        finally:
            torch.cuda.memory._record_memory_history(None)

    def _dump(self) -> None:
        torch.cuda.memory._dump_snapshot(str(self._trace.with_name(f"{self._trace.name}.{self._traces}")))
        self._traces += 1
        for _ in range(4):  # see replay_programs.snapshot
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(True))
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(False))

    def do_begin(self) -> None:
        pass

    def do_check(self) -> None:
        if self._traces < 3:
            self._dump()


if __name__ == "__main__":
    serve(SnapshotMachine)
