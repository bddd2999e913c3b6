"""Settings of torch's CUDA allocator, in the syntax of PYTORCH_ALLOC_CONF."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ..._replay import MIN_SPLIT_SIZE
from ...errors import SettingError
from ..free_memory.allocator import MIB

AS_RECORDED = "as recorded"
_SEPARATOR = re.compile(r",(?![^\[]*\])")
_INTERVALS = 16
"""Number of size classes of roundup_power2_divisions: powers of two from 1 MiB to 64 GiB."""
_MIN_LARGE_SEGMENT_MIB = 20


@dataclass(frozen=True)
class Setting:
    """One allocator setting, or several that are set together."""

    text: str
    """Text as in PYTORCH_ALLOC_CONF; "as recorded" for the settings of the run."""
    values: dict[str, Any] = field(default_factory=dict, compare=False)
    """Changed values, as in an event `config`."""
    fraction: float | None = None
    """Value of per_process_memory_fraction; None: not set."""

    @property
    def json(self) -> str:
        """The setting as JSON, such as {"max_split_size": 134217728}; empty for "as recorded"."""
        return json.dumps(self.values) if self.values else ""

    def for_release(self, release: tuple[int, int]) -> Setting:
        """Return the setting as a release of torch reads it.

        Up to torch 2.9, the ">" value of roundup_power2_divisions overwrites the value of the last size before it.

        Args:
            release: Major and minor version of torch.

        Returns:
            This setting, or a copy with other values.
        """
        divisions = self.values.get("roundup_power2_divisions")
        limits = re.findall(r"(\d+):\d+,\s*>:(\d+)", self.text)
        if release > (2, 9) or not limits or divisions is None:
            return self
        limit, last = limits[0]
        overwritten = list(divisions)
        overwritten[min(int(limit).bit_length() - 1, _INTERVALS - 1)] = int(last)
        return Setting(self.text, {**self.values, "roundup_power2_divisions": overwritten}, self.fraction)


RECORDED = Setting(AS_RECORDED)


def parse_setting(text: str) -> Setting:
    """Parse a setting such as "expandable_segments:True", or several separated by commas."""
    if text.strip() == AS_RECORDED:
        return RECORDED
    values: dict[str, Any] = {}
    fraction = None
    for part in _SEPARATOR.split(text.strip()):
        name, colon, value = part.strip().partition(":")
        if not colon or name not in _PARSERS:
            names = ", ".join(sorted(_PARSERS))
            raise SettingError(f"{part.strip()!r} is not a supported setting: use NAME:VALUE with one of {names}")
        parsed = _PARSERS[name](name, value.strip())
        if name == "per_process_memory_fraction":
            fraction = float(parsed)
        else:
            values[_CONFIG_NAMES.get(name, name)] = parsed
    return Setting(text.strip(), values, fraction)


def _parse_bool(name: str, value: str) -> bool:
    if value not in ("True", "False"):
        raise SettingError(f"{name}:{value} is neither True nor False: use one of these")
    return value == "True"


def _parse_mebibytes(name: str, value: str) -> int:
    minimum = {"max_split_size_mb": MIN_SPLIT_SIZE // MIB + 1, "large_segment_size_mb": _MIN_LARGE_SEGMENT_MIB}.get(
        name, 1
    )
    if not value.isdecimal() or int(value) < minimum or int(value) >= 1 << 40:
        raise SettingError(f"{name}:{value} is not a number of MiB that torch accepts: use {minimum} or more")
    return int(value) * MIB


def _parse_share(name: str, value: str) -> float:
    try:
        share = float(value)
    except ValueError:
        share = 0.0
    if not 0 < share <= 1 or (name == "garbage_collection_threshold" and share == 1):
        raise SettingError(f"{name}:{value} is not a share: use a number between 0 and 1")
    return share


def _parse_divisions(name: str, value: str) -> list[int]:
    """Parse one number for all sizes, or a list "[256:1,512:2,>:4]" whose keys are upper limits in MiB."""
    if not value.startswith("["):
        return [_parse_power_of_two(name, value)] * _INTERVALS
    divisions = [0] * _INTERVALS
    last_index, is_first = 0, True
    for pair in value.strip("[]").split(","):
        limit, _, number = (part.strip() for part in pair.partition(":"))
        count = _parse_power_of_two(name, number)
        if limit == ">":
            divisions[last_index + 1 :] = [count] * (_INTERVALS - last_index - 1)
            continue
        index = min(_parse_power_of_two(name, limit).bit_length() - 1, _INTERVALS - 1)
        if is_first:
            divisions[:index] = [count] * index
            is_first = False
        divisions[index] = count
        last_index = index
    return divisions


def _parse_power_of_two(name: str, value: str) -> int:
    if not value.isdecimal() or not int(value) or int(value) & (int(value) - 1) or int(value) >= 1 << 40:
        raise SettingError(f"{value!r} in {name} is not a power of two: write the setting as in torch's documentation")
    return int(value)


_PARSERS: dict[str, Callable[[str, str], Any]] = {
    "expandable_segments": _parse_bool,
    "max_split_size_mb": _parse_mebibytes,
    "max_non_split_rounding_mb": _parse_mebibytes,
    "large_segment_size_mb": _parse_mebibytes,
    "roundup_power2_divisions": _parse_divisions,
    "garbage_collection_threshold": _parse_share,
    "per_process_memory_fraction": _parse_share,
}
_CONFIG_NAMES = {
    "max_split_size_mb": "max_split_size",
    "max_non_split_rounding_mb": "max_non_split_rounding_size",
    "large_segment_size_mb": "large_segment_size",
}

SENSIBLE = (
    "expandable_segments:True",
    "max_split_size_mb:64",
    "max_split_size_mb:256",
    "roundup_power2_divisions:4",
    "roundup_power2_divisions:8",
    "expandable_segments:True,roundup_power2_divisions:8",
)
"""Default settings. garbage_collection_threshold is left out: without a memory fraction, it has no effect."""
