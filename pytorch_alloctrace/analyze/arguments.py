"""Arguments that several commands share, and how their values are read."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from typing import Any

from ..analysis.limit import GrowthLimit
from ..parser import Parser
from ..reading.modules import MODULE
from ..sizes import parse_size

POSITIONS = """\
a position is one of:
  end                   the end of the trace
  peak, peak:reserved   when the most was allocated, reserved
  4711                  event 4711 (after it)
  step:12               the end of step 12
  mark:NAME             the first mark of that name (mark:NAME#3: the third)
  region:NAME           where the first region of that name begins
  region:NAME:end       where it ends (region:NAME#3:end: the third)
  12.5s                 12.5 seconds after the recording began
"""
RANGES = """\
A range is everything after --since, up to and including --until. --in names
regions: validation (all of this name together), validation#3 (the third).
Of several, what was allocated, and what more is held at the end of each than at
its beginning, is summed up; the peak is the highest in any; each is judged by
itself for leaks. What lies in two, one within the other, counts once.
"""

_MOST_DIGITS = 20
"""The longest event number: Python refuses to read thousands of digits."""
ALL_ROWS = 1 << 62
"""More rows than any table has."""


class CommandParser(Parser):
    """Parser of one command. Arguments of an `add` method mean the same in every command that has them."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(formatter_class=argparse.RawDescriptionHelpFormatter, **settings)
        self._output = self.add_argument_group("output")
        self._form = self._output.add_mutually_exclusive_group()
        self._form.add_argument("--json", action="store_true", help="print JSON; sizes are in bytes")
        self._reading = self.add_argument_group("reading")
        self.notes = ""
        """What the help says below the options: how positions and ranges are written."""
        # `TraceCommand` and `Query` read these options of every command.
        self.set_defaults(csv=False, markdown=False, all_frames=False, by=None, device=None, top=None, user_path=[])
        self.set_defaults(since=None, until=None, region=None, depth=None)

    def add_common(self, traces: str) -> None:
        """Add the arguments of all commands, after those of this one. traces: help of the positional argument."""
        self.add_argument("traces", nargs="+", metavar="TRACE", help=traces)
        self._output.add_argument(
            "--width",
            type=count,
            metavar="COLUMNS",
            help="width of the text (default: that of the terminal; 80 when piped)",
        )
        self._reading.add_argument(
            "--spool", metavar="PATH", help="the spool of a killed recording, if it was moved away from the trace"
        )

    def add_fail_above(self, what: str, share: str) -> None:
        """what grew, and what a share is of."""
        self.add_argument(
            "--fail-above",
            type=growth_limit,
            metavar="LIMIT",
            help=f"exit with status 1 when {what} more: 512MiB (0: at all), 1MiB/step, or 5%% (of {share})",
        )

    def add_markdown(self) -> None:
        """Add --markdown, for a verdict that belongs into a pull request."""
        self._form.add_argument(
            "--markdown", action="store_true", help="print Markdown: a short comment for a pull request"
        )

    def add_csv(self) -> None:
        """Add --csv, for a result that is one table."""
        self._form.add_argument("--csv", action="store_true", help="print the table as CSV; sizes are in bytes")

    def add_top(self, default: int, what: str = "rows of each table") -> None:
        """default: how many the text shows; 0: all. JSON and CSV have all unless --top is given."""
        shown = f"{default}, in JSON and CSV all; 0: all" if default else "all"
        self._output.add_argument("--top", type=row_count, metavar="N", help=f"show N {what} (default: {shown})")

    def add_device(self, text: str = 'show only this device, such as "cuda:0" ("cuda" where there is one)') -> None:
        """One device."""
        self.add_argument("--device", action=_Once, metavar="NAME", help=text)

    def add_at(self, text: str, default: str | None = "end") -> None:
        """A position. default: None, where it matters whether it was given."""
        self._explain(POSITIONS)
        self.add_argument("--at", type=position, metavar="POSITION", default=default, help=text)

    def add_range(self, since: str, until: str) -> None:
        """Two positions."""
        self._explain(POSITIONS)
        self._explain(RANGES)
        self.add_argument("--since", type=position, metavar="POSITION", help=since)
        self.add_argument("--until", type=position, metavar="POSITION", help=until)
        self.add_argument(
            "--in", dest="region", metavar="REGION", help="only what happened in the regions of this name"
        )

    def add_by(self, choices: Sequence[str]) -> None:
        """What the rows are; the first is the default."""
        text = f"what the rows are: {', '.join(choices)} (default: {choices[0]})"
        self.add_argument("--by", choices=choices, default=choices[0], metavar="WHAT", help=text)
        if MODULE in choices:
            self.add_argument(
                "--depth",
                type=count,
                metavar="N",
                help="with --by module: only the first N parts of a module's name, with all that is inside",
            )

    def add_code(self) -> None:
        """Add --all-frames and --user-path, for a result that names lines of code."""
        self._output.add_argument(
            "--all-frames",
            action="store_true",
            help="show whole stacks, including library frames, innermost first (in JSON: `frames`)",
        )
        self.add_user_path()

    def add_output(self, what: str, metavar: str = "FILE") -> None:
        self.add_argument("-o", "--output", metavar=metavar, help=f"the file to write{what}")
        self.add_argument("--overwrite", action="store_true", help="replace the file if it exists")

    def add_user_path(self) -> None:
        """Add --user-path, for a result that tells the user's own code from that of libraries."""
        self._reading.add_argument(
            "--user-path",
            action="append",
            default=[],
            metavar="NAME",
            help="treat this file, folder or package (transformers) as your own code although it is installed "
            "(repeatable)",
        )

    def _explain(self, note: str) -> None:
        if note not in self.notes:
            self.notes += note


class _Once(argparse.Action):
    """Refuses a second value instead of forgetting the first."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: str | None = None
    ) -> None:
        if getattr(namespace, self.dest) is not None:
            raise argparse.ArgumentError(self, "give it once: this command shows one device, or all")
        setattr(namespace, self.dest, values)


def position(text: str) -> int | str:
    """A number is that of an event."""
    return int(text) if text.isdecimal() and len(text) <= _MOST_DIGITS else text


def count(text: str) -> int:
    """0 or more."""
    if not re.fullmatch(r"[0-9]{1,9}", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 0 to 999999999")
    return int(text)


def positive(text: str) -> int:
    """1 or more."""
    value = count(text)
    if value == 0:
        raise argparse.ArgumentTypeError("at least 1 is needed")
    return value


def row_count(text: str) -> int:
    """0 stands for all."""
    return count(text) or ALL_ROWS


def growth_limit(text: str) -> GrowthLimit:
    """ "64MiB", "1MiB/step" or "5%"."""
    shown = text.strip()
    percent = re.fullmatch(r"(\d{1,9}(?:\.\d*)?)\s*%", shown)
    if percent is not None:
        return GrowthLimit(shown, share=float(percent[1]) / 100)
    size, slash, unit = shown.partition("/")
    try:
        if slash and unit.strip() != "step":
            raise argparse.ArgumentTypeError
        return GrowthLimit(shown, bytes=byte_count(size), per_step=bool(slash))
    except argparse.ArgumentTypeError:
        wanted = "use one such as 512MiB, 1MiB/step or 5%"
        raise argparse.ArgumentTypeError(f"{text!r} is not a limit: {wanted}") from None


def byte_count(text: str) -> int:
    """Return the bytes of a size: see `parse_size`."""
    try:
        return parse_size(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
