"""Start-up hook of every Python process that inherits the environment of ``pytorch_alloctrace run --follow``.

A process that never imports torch pays for one small object: the package itself is loaded only after torch.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType


class EnableAfterTorch:
    """Import finder that starts recording right after torch is imported. Finds no other module."""

    follows_alloctrace = True

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != "torch":
            return None
        for finder in sys.meta_path:
            find_spec = getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = find_spec(name, path, target) if finder is not self and find_spec else None
            if spec is not None:
                self._watch(spec)
                return spec
        return None

    def _watch(self, spec: ModuleSpec) -> None:
        loader = spec.loader
        original = getattr(loader, "exec_module", None)
        if original is None:
            return

        def exec_module(module: ModuleType) -> None:
            del loader.exec_module  # type: ignore[union-attr]  # uncovers the class's method
            original(module)
            if self in sys.meta_path:
                sys.meta_path.remove(self)
            enable()

        # Patch the loader instead of wrapping it: torch calls other methods of its loader too.
        try:
            loader.exec_module = exec_module  # type: ignore[union-attr, method-assign]
        except AttributeError:
            return


def enable() -> None:
    """Start recording with the package that contains this file: the child may have another release installed."""
    if "pytorch_alloctrace" not in sys.modules:
        from importlib.util import module_from_spec, spec_from_file_location

        folder = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
        spec = spec_from_file_location(
            "pytorch_alloctrace", os.path.join(folder, "__init__.py"), submodule_search_locations=[folder]
        )
        if spec is None or spec.loader is None:
            return
        package = sys.modules["pytorch_alloctrace"] = module_from_spec(spec)
        try:
            spec.loader.exec_module(package)
        except Exception as error:  # for example a missing module: the child runs on, unrecorded
            del sys.modules["pytorch_alloctrace"]
            print(f"pytorch_alloctrace: process {os.getpid()} is not recorded: {error}", file=sys.stderr)
            return
    from pytorch_alloctrace.recording import children

    children.enable_here()


def run_shadowed() -> None:
    """Import the environment's own sitecustomize, which this file shadows."""
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry) != here]
    own_module = sys.modules.pop("sitecustomize", None)
    try:
        importlib.import_module("sitecustomize")
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
    finally:
        if own_module is not None:
            sys.modules.setdefault("sitecustomize", own_module)


if os.environ.get("ALLOCTRACE_FOLLOW") and sys.version_info >= (3, 10):
    sys.meta_path.insert(0, EnableAfterTorch())
run_shadowed()
