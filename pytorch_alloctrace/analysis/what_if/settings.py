"""Settings of torch's CUDA allocator, written as in PYTORCH_ALLOC_CONF."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ..._replay import LEAST_SPLIT_SIZE
from ...errors import SettingError
from ..free_memory.allocator import MIB

AS_RECORDED = "as recorded"
_PARTS = re.compile(r",(?![^\[]*\])")
_INTERVALS = 16
"""Of roundup_power2_divisions: sizes of 1 MiB to 64 GiB, by powers of two."""
_LEAST_LARGE_SEGMENT = 20


@dataclass(frozen=True)
class Setting:
    """One setting, or several that belong together."""

    text: str
    """As PYTORCH_ALLOC_CONF has it; "as recorded" for the settings of the run."""
    values: dict[str, Any] = field(default_factory=dict, compare=False)
    """What it changes, as an event `config` has it."""
    fraction: float | None = None
    """per_process_memory_fraction; None: not given."""

    @property
    def json(self) -> str:
        """The setting as JSON, such as {"max_split_size": 134217728}; empty for "as recorded"."""
        return json.dumps(self.values) if self.values else ""

    def for_release(self, release: tuple[int, int]) -> Setting:
        """As that torch reads it: up to 2.9, the last size before ">" is overwritten by what stands there."""
        divisions = self.values.get("roundup_power2_divisions")
        limits = re.findall(r"(\d+):\d+,\s*>:(\d+)", self.text)
        if release > (2, 9) or not limits or divisions is None:
            return self
        limit, last = limits[0]
        older = list(divisions)
        older[min(int(limit).bit_length() - 1, _INTERVALS - 1)] = int(last)
        return Setting(self.text, {**self.values, "roundup_power2_divisions": older}, self.fraction)


RECORDED = Setting(AS_RECORDED)


def parse_setting(text: str) -> Setting:
    """A setting as PYTORCH_ALLOC_CONF has it: "expandable_segments:True", or several with commas between.

    Raises SettingError for what is not one, and for what torch would refuse.
    """
    if text.strip() == AS_RECORDED:
        return RECORDED
    values: dict[str, Any] = {}
    fraction = None
    for part in _PARTS.split(text.strip()):
        name, colon, value = part.strip().partition(":")
        if not colon or name not in _READERS:
            known = ", ".join(sorted(_READERS))
            raise SettingError(
                f"{part.strip()!r} is not a setting that can be tried: use NAME:VALUE with one of {known}"
            )
        read = _READERS[name](name, value.strip())
        if name == "per_process_memory_fraction":
            fraction = float(read)
        else:
            values[_NAMES.get(name, name)] = read
    return Setting(text.strip(), values, fraction)


def _truth(name: str, value: str) -> bool:
    if value not in ("True", "False"):
        raise SettingError(f"{name}:{value} is neither True nor False: write it as torch does")
    return value == "True"


def _mebibytes(name: str, value: str) -> int:
    least = {"max_split_size_mb": LEAST_SPLIT_SIZE // MIB + 1, "large_segment_size_mb": _LEAST_LARGE_SEGMENT}.get(
        name, 1
    )
    if not value.isdecimal() or int(value) < least or int(value) >= 1 << 40:
        raise SettingError(f"{name}:{value} is not a number of MiB that torch takes: use one of {least} or more")
    return int(value) * MIB


def _share(name: str, value: str) -> float:
    try:
        share = float(value)
    except ValueError:
        share = 0.0
    if not 0 < share <= 1 or (name == "garbage_collection_threshold" and share == 1):
        raise SettingError(f"{name}:{value} is not a share: use a number between 0 and 1")
    return share


def _divisions(name: str, value: str) -> list[int]:
    """One number for all sizes, or "[256:1,512:2,>:4]": up to so many MiB."""
    if not value.startswith("["):
        return [_power(name, value)] * _INTERVALS
    divisions = [0] * _INTERVALS
    last, is_first = 0, True
    for pair in value.strip("[]").split(","):
        limit, _, number = (part.strip() for part in pair.partition(":"))
        divided = _power(name, number)
        if limit == ">":
            divisions[last + 1 :] = [divided] * (_INTERVALS - last - 1)
            continue
        at = min(_power(name, limit).bit_length() - 1, _INTERVALS - 1)
        if is_first:
            divisions[:at] = [divided] * at
            is_first = False
        divisions[at] = divided
        last = at
    return divisions


def _power(name: str, value: str) -> int:
    if not value.isdecimal() or not int(value) or int(value) & (int(value) - 1) or int(value) >= 1 << 40:
        raise SettingError(
            f"{name} has {value!r} where torch takes a power of two: write it as in torch's documentation"
        )
    return int(value)


_READERS: dict[str, Callable[[str, str], Any]] = {
    "expandable_segments": _truth,
    "max_split_size_mb": _mebibytes,
    "max_non_split_rounding_mb": _mebibytes,
    "large_segment_size_mb": _mebibytes,
    "roundup_power2_divisions": _divisions,
    "garbage_collection_threshold": _share,
    "per_process_memory_fraction": _share,
}
_NAMES = {
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
"""What is tried where no setting is asked for. Not garbage_collection_threshold: it does nothing without a memory
fraction."""
