"""Arguments that several commands share, and parsers of their values."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from typing import Any

from ..analysis.limit import GrowthLimit
from ..gpus import GpuMemory, parse_gpu_memory
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
  12.5s (100ms, 2min)   12.5 seconds after the recording began
"""
RANGES = """\
A range is everything after --since, up to and including --until. --in names
regions: validation (all of this name together), validation#3 (the third).
Over several regions, allocations and growth are summed up, the peak is the
highest one, and leaks are judged in each region by itself. What lies in nested
regions counts once.
"""

_MAX_DIGITS = 20
"""Maximum digits of an event number: int() raises ValueError above 4,300."""
ALL_ROWS = 1 << 62
"""Row count that means all rows."""


class CommandParser(Parser):
    """Parser of one command. The `add` methods add arguments that have one meaning in all commands."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(formatter_class=argparse.RawDescriptionHelpFormatter, **settings)
        self._output = self.add_argument_group("output")
        self._format_group = self._output.add_mutually_exclusive_group()
        self._format_group.add_argument("--json", action="store_true", help="print JSON; sizes are in bytes")
        self._reading = self.add_argument_group("reading")
        self.notes = ""
        """Text of the help below the options: syntax of positions and ranges."""
        # `TraceCommand` and `Query` read these options, which not every command adds.
        self.set_defaults(
            csv=False, markdown=False, brief=False, all_frames=False, by=None, device=None, top=None, user_path=[]
        )
        self.set_defaults(since=None, until=None, region=None, depth=None)

    def add_common(self, traces_help: str, metavar: str) -> None:
        self.add_argument("traces", nargs="+", metavar=metavar, help=traces_help)
        self._output.add_argument(
            "--width",
            type=parse_count,
            metavar="COLUMNS",
            help="width of the text (default: that of the terminal; 80 when piped)",
        )
        self._reading.add_argument(
            "--spool", metavar="PATH", help="the spool of a killed recording, if it was moved away from the trace"
        )

    def add_fail_above(self, condition: str, percent_of: str) -> None:
        """Add --fail-above. `condition` begins a clause ("a device grew by"), `percent_of` is what 100% is."""
        self.add_argument(
            "--fail-above",
            type=parse_growth_limit,
            metavar="LIMIT",
            help=f"exit with status 1 when {condition} more: 512MiB (0: at all), 1MiB/step, or 5%% (of {percent_of})",
        )

    def add_markdown(self) -> None:
        self._format_group.add_argument(
            "--markdown", action="store_true", help="print Markdown: a short comment for a pull request"
        )

    def add_brief(self) -> None:
        self._format_group.add_argument(
            "--brief", action="store_true", help="print two lines: the peak, and the first finding"
        )

    def add_csv(self) -> None:
        self._format_group.add_argument("--csv", action="store_true", help="print the table as CSV; sizes are in bytes")

    def add_top(self, default: int, noun: str = "rows of each table") -> None:
        """Add --top. The text shows `default` rows (0: all); JSON and CSV have all."""
        default_text = f"{default}, in JSON and CSV all; 0: all" if default else "all"
        self._output.add_argument(
            "--top", type=parse_row_count, metavar="N", help=f"show N {noun} (default: {default_text})"
        )

    def add_device(self, text: str = 'show only this device, such as "cuda:0" ("cuda" where there is one)') -> None:
        self.add_argument("--device", action=_SingleValue, metavar="NAME", help=text)

    def add_at(self, text: str, default: str | None = "end") -> None:
        """Add --at. With the default None, a command can detect a missing --at."""
        self._add_note(POSITIONS)
        self.add_argument("--at", type=parse_position, metavar="POSITION", default=default, help=text)

    def add_range(self, since: str, until: str) -> None:
        self._add_note(POSITIONS)
        self._add_note(RANGES)
        self.add_argument("--since", type=parse_position, metavar="POSITION", help=since)
        self.add_argument("--until", type=parse_position, metavar="POSITION", help=until)
        self.add_argument(
            "--in", dest="region", metavar="REGION", help="only what happened in the regions of this name"
        )

    def add_by(self, choices: Sequence[str]) -> None:
        """Add --by, of which the first choice is the default, and --depth if modules are a choice."""
        text = f"what the rows are: {', '.join(choices)} (default: {choices[0]})"
        self.add_argument("--by", choices=choices, default=choices[0], metavar="WHAT", help=text)
        if MODULE in choices:
            self.add_argument(
                "--depth",
                type=parse_count,
                metavar="N",
                help="with --by module: only the first N parts of a module's name, with all that is inside "
                "(default: all; in the text of peak as many as show in few rows where most is)",
            )

    def add_code(self) -> None:
        """Add --all-frames and --user-path, for a result that names lines of code."""
        self._output.add_argument(
            "--all-frames",
            action="store_true",
            help="show whole stacks, including library frames, innermost first (in JSON: `frames`)",
        )
        self.add_user_path()

    def add_output(self, help_suffix: str, metavar: str = "FILE") -> None:
        self.add_argument("-o", "--output", metavar=metavar, help=f"the file to write{help_suffix}")
        self.add_argument("--overwrite", action="store_true", help="replace the file if it exists")

    def add_user_path(self) -> None:
        self._reading.add_argument(
            "--user-path",
            action="append",
            default=[],
            metavar="NAME",
            help="treat this file, folder or package (transformers) as your own code although it is installed "
            "(repeatable)",
        )

    def _add_note(self, note: str) -> None:
        if note not in self.notes:
            self.notes += note


class _SingleValue(argparse.Action):
    """Action that refuses a second value. argparse would silently replace the first."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: str | None = None
    ) -> None:
        if getattr(namespace, self.dest) is not None:
            raise argparse.ArgumentError(self, "give it once: this command shows one device, or all")
        setattr(namespace, self.dest, values)


def parse_position(text: str) -> int | str:
    """Return an event number as int, and any other position as text."""
    return int(text) if text.isdecimal() and len(text) <= _MAX_DIGITS else text


def parse_count(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,9}", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 0 to 999999999")
    return int(text)


def parse_positive(text: str) -> int:
    value = parse_count(text)
    if value == 0:
        raise argparse.ArgumentTypeError("use 1 or more")
    return value


def parse_row_count(text: str) -> int:
    """Parse a number of rows, where 0 stands for all."""
    return parse_count(text) or ALL_ROWS


def parse_growth_limit(text: str) -> GrowthLimit:
    """Parse a limit such as "64MiB", "1MiB/step", "1MiB/iteration" or "5%"."""
    stripped = text.strip()
    percent = re.fullmatch(r"(\d{1,9}(?:\.\d*)?)\s*%", stripped)
    if percent is not None:
        return GrowthLimit(stripped, share=float(percent[1]) / 100)
    size, slash, unit = stripped.partition("/")
    try:
        if slash and unit.strip() not in ("step", "iteration"):
            raise argparse.ArgumentTypeError
        return GrowthLimit(stripped, bytes=parse_byte_count(size), per_step=bool(slash), unit=unit.strip() or "step")
    except argparse.ArgumentTypeError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a limit: use one such as 512MiB, 1MiB/step or 5%") from None


def parse_byte_count(text: str) -> int:
    try:
        return parse_size(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def parse_gpu(text: str) -> GpuMemory:
    try:
        return parse_gpu_memory(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
