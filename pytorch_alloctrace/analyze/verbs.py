"""All verbs that read a trace, in the order of the help. A new verb is a file of its own and a line here.

`run`, which records, has its own command line in recording/run.py.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping

from .verb import Verb


class Verbs(Mapping[str, Verb]):
    """Verbs by name. The file of a verb is imported, with all that the verb needs, when it is first asked for: a
    command needs one of them, and all would take 0.1 s."""

    def __init__(self, classes: Mapping[str, str]) -> None:
        """classes: of each name the module in this folder, and the class."""
        self._classes = classes
        self._made: dict[str, Verb] = {}

    def __getitem__(self, name: str) -> Verb:
        if name not in self._made:
            module, _, made = self._classes[name].partition(".")
            self._made[name] = getattr(importlib.import_module(f".{module}", __package__), made)()
        return self._made[name]

    def __contains__(self, name: object) -> bool:
        return name in self._classes

    def __iter__(self) -> Iterator[str]:
        return iter(self._classes)

    def __len__(self) -> int:
        return len(self._classes)


VERBS: Mapping[str, Verb] = Verbs(
    {
        "diagnose": "diagnose.Diagnose",
        "leaks": "leaks.Leaks",
        "peak": "peak.Peak",
        "annotate": "annotate.Annotate",
        "diff": "diff.Diff",
        "ranks": "ranks.Ranks",
        "sites": "sites.Sites",
        "segments": "segments.Segments",
        "blocks": "blocks.Blocks",
        "timeline": "timeline.Timeline",
        "fragmentation": "fragmentation.Fragmentation",
        "oom": "oom.Oom",
        "what-if": "what_if.WhatIf",
        "fit": "fit.Fit",
        "report": "report.Report",
        "serve": "serve.Serve",
        "live": "live.Live",
        "export": "export.Export",
        "convert": "convert.Convert",
        "verify": "verify.Verify",
        "finish": "finish.Finish",
        "fold": "fold.Fold",
    }
)
