"""The findings on a trace, which show the whole verdict where they are printed or shown in a notebook."""

from __future__ import annotations

from typing import Any

from ..analysis.summary import Summary
from .capture import html_of, text_of
from .finding import Finding
from .incomplete import IN_DIAGNOSIS, write_incomplete
from .screen import Screen
from .verdict import diagnosis, write_verdict


class Diagnosis(tuple[Finding, ...]):
    """The findings, the most pressing first. `str` is the verdict; a notebook shows it."""

    _summary: Summary

    def __new__(cls, summary: Summary) -> Diagnosis:
        made = super().__new__(cls, diagnosis(summary))
        made._summary = summary
        return made

    def __getnewargs__(self) -> tuple[Any, ...]:
        return (self._summary,)

    def __str__(self) -> str:
        return text_of(self._write)

    def _repr_html_(self) -> str:
        return html_of(self._write)

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """In IPython on a terminal."""
        printer.text(str(self).rstrip())

    def _write(self, screen: Screen) -> None:
        write_incomplete(self._summary.integrity, IN_DIAGNOSIS, screen)
        write_verdict(self._summary, screen)
