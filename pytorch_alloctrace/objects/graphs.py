"""Autograd graphs: saved tensors, next nodes and gradients.

Backward runs on other threads without the GIL: reading torch's attributes would race with it. The recorder module reads
graphs under the locks of backward (csrc/torch/graph_reading.h).
"""

from __future__ import annotations

import sys
import types
from typing import Any

from . import access

_RECORDER = "pytorch_alloctrace._record"


def load_reader() -> str:
    """Load the recorder module and compile it if needed. Return "", or a sentence why graphs cannot be read."""
    from ..errors import RecorderUnavailableError
    from ..recording.loading import load_recorder

    try:
        load_recorder()
    except RecorderUnavailableError as error:
        return str(error)
    return ""


class GraphReader:
    """Reader of graphs. Without the recorder module every result is empty."""

    def __init__(self) -> None:
        import torch

        self._recorder = sys.modules.get(_RECORDER)
        self._saved_type: type = torch._C._autograd.SavedTensor
        self._getters: dict[int, tuple[Any, ...]] = {}  # by `id` of the class
        self._classes: list[type] = []  # keeps these ids from being reused

    @property
    def can_read(self) -> bool:
        return self._recorder is not None

    def gradients(self, tensor: Any) -> list[Any] | None:
        """Return the gradient of a tensor in a list, or None if other threads may be changing it."""
        if self._recorder is None:
            return []
        gradient_list: list[Any] | None = self._recorder.gradient_of(tensor)
        return gradient_list

    def referents(self, node: Any) -> list[Any] | None:
        """Return the next nodes and the saved tensors of a node, or None if other threads may be changing it.

        Tensors saved through hooks are left out: unpacking them would run code of the program.
        """
        if self._recorder is None:
            return []
        getters = self._getters.get(id(type(node)))
        if getters is None:
            self._classes.append(type(node))
            getters = self._getters[id(type(node))] = tuple(
                descriptor.__get__
                for base in access.mro(type(node))
                for name, descriptor in list(access.class_dict(base).items())
                if (name.startswith("_raw_saved_") or name in ("next_functions", "variable"))
                and type(descriptor) is types.GetSetDescriptorType
            )
        objects: list[Any] | None = self._recorder.graph_referents(node, getters, self._saved_type)
        return objects
