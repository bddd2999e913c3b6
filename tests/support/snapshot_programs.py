"""Programs of replay_programs with torch's history: snapshots t.0, t.1, ... at checkpoints and at the end.

Two additional operations: ["ring", N], the first, limits the history to N entries; ["history"] begins the history.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from replay_programs import Machine, serve


class SnapshotMachine(Machine):
    """Interpreter of operations, with torch's history."""

    def run(self, operations: list[Any]) -> None:
        (_, entries), *operations = operations
        begins = operations.index(["history"])
        self._all(operations[:begins])
        torch.cuda.memory._record_memory_history(max_entries=entries, stacks="python", clear_history=True)
        try:
            self._all(operations[begins + 1 :])
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
