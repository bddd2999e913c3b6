"""Autograd graphs: the tensors that their nodes have saved, and gradients.

Other threads may run backward on them at any time, without the GIL. Only the recorder module reads them under the locks
that backward takes (csrc/torch/graph_reading.h); torch's own attributes are no substitute.
"""

from __future__ import annotations

import sys
import types
from typing import Any

from . import access

_RECORDER = "pytorch_alloctrace._record"


def load_reader() -> str:
    """Load the recorder module, compiled if need be. Return "", or in one sentence why graphs cannot be read."""
    from ..errors import RecorderUnavailableError
    from ..recording.loading import load_recorder

    try:
        load_recorder()
    except RecorderUnavailableError as error:
        return str(error)
    return ""


class GraphReader:
    """Read graphs if the recorder module is loaded; else find nothing in them."""

    def __init__(self) -> None:
        import torch

        self._recorder = sys.modules.get(_RECORDER)
        self._saved_type: type = torch._C._autograd.SavedTensor
        self._getters: dict[type, tuple[Any, ...]] = {}

    @property
    def can_read(self) -> bool:
        """Return whether the recorder module is loaded."""
        return self._recorder is not None

    def gradients(self, tensor: Any) -> list[Any] | None:
        """Return a list of the gradient of a tensor, empty if it has none; None if other threads may be changing it."""
        if self._recorder is None:
            return []
        read: list[Any] | None = self._recorder.gradient_of(tensor)
        return read

    def referents(self, node: Any) -> list[Any] | None:
        """Return the nodes that come next in backward, and the tensors that the node has saved; None if other threads
        may be changing it. Tensors that are saved through hooks are left out: to unpack them would run code of the
        program."""
        if self._recorder is None:
            return []
        getters = self._getters.get(type(node))
        if getters is None:
            getters = self._getters[type(node)] = tuple(
                descriptor.__get__
                for base in access.mro(type(node))
                for name, descriptor in list(access.class_dict(base).items())
                if (name.startswith("_raw_saved_") or name in ("next_functions", "variable"))
                and type(descriptor) is types.GetSetDescriptorType
            )
        read: list[Any] | None = self._recorder.graph_referents(node, getters, self._saved_type)
        return read
