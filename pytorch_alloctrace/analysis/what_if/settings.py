"""Settings of torch's CUDA allocator, in the syntax of PYTORCH_ALLOC_CONF."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..._replay import MIN_SPLIT_SIZE, AllocatorSettings
from ...errors import SettingError
from ..free_memory.allocator import MIB

AS_RECORDED = "as recorded"
DEFAULTS = "torch's defaults"
_SEPARATOR = re.compile(r",(?![^\[]*\])")
_INTERVALS = 16
"""Number of size classes of roundup_power2_divisions: powers of two from 1 MiB to 64 GiB."""
_MIN_LARGE_SEGMENT_MIB = 20
_NO_SPLIT_LIMIT = (1 << 64) - 1


@dataclass(frozen=True)
class Setting:
    """One allocator setting, or several that are set together."""

    text: str
    """All settings of the simulation, as in PYTORCH_ALLOC_CONF, or "torch's defaults".

    For the settings of the run, "as recorded" and these settings in parentheses.
    """
    values: dict[str, Any] = field(default_factory=dict, compare=False)
    """Values that differ from torch's defaults, as in an event `config`; empty for the settings of the run."""
    fraction: float | None = None
    """Value of per_process_memory_fraction; None: as recorded."""

    @property
    def is_recorded(self) -> bool:
        """True for the settings of the run."""
        return self.text.startswith(AS_RECORDED)

    @property
    def json(self) -> str:
        """All settings as JSON, such as {"max_split_size": 134217728, ...}; empty for the settings of the run."""
        return "" if self.is_recorded else json.dumps({**_DEFAULT_VALUES, **self.values})

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


def parse_setting(text: str) -> Setting:
    """Parse a setting such as "expandable_segments:True", or several separated by commas."""
    if text.strip().startswith(AS_RECORDED) or text.strip() == DEFAULTS:
        return Setting(text.strip())
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
_DEFAULT = AllocatorSettings()
_DEFAULT_VALUES = {
    "expandable_segments": _DEFAULT.expandable_segments,
    "max_split_size": _NO_SPLIT_LIMIT,
    "max_non_split_rounding_size": _DEFAULT.max_non_split_rounding_size,
    "large_segment_size": _DEFAULT.large_segment_size,
    "roundup_power2_divisions": _DEFAULT.roundup_power2_divisions,
    "garbage_collection_threshold": _DEFAULT.garbage_collection_threshold,
}
_CONFIG_NAMES = {
    "max_split_size_mb": "max_split_size",
    "max_non_split_rounding_mb": "max_non_split_rounding_size",
    "large_segment_size_mb": "large_segment_size",
}

EXPANDABLE = "expandable_segments:True"
SENSIBLE = (
    EXPANDABLE,
    "max_split_size_mb:64",
    "max_split_size_mb:256",
    "roundup_power2_divisions:4",
    "roundup_power2_divisions:8",
    f"{EXPANDABLE},roundup_power2_divisions:8",
)
"""Settings that are tried by default. garbage_collection_threshold is left out: without a memory fraction, it has no
effect."""


def list_changes(settings: AllocatorSettings) -> tuple[str, ...]:
    """Return the settings that differ from torch's defaults, each as in PYTORCH_ALLOC_CONF."""
    changes = []
    if settings.expandable_segments:
        changes.append(EXPANDABLE)
    if settings.max_split_size is not None:
        changes.append(f"max_split_size_mb:{settings.max_split_size // MIB}")
    if settings.max_non_split_rounding_size != _DEFAULT.max_non_split_rounding_size:
        changes.append(f"max_non_split_rounding_mb:{settings.max_non_split_rounding_size // MIB}")
    if settings.large_segment_size != _DEFAULT.large_segment_size:
        changes.append(f"large_segment_size_mb:{settings.large_segment_size // MIB}")
    if any(count > 1 for count in settings.roundup_power2_divisions):
        changes.append(f"roundup_power2_divisions:{_write_divisions(settings.roundup_power2_divisions)}")
    if settings.garbage_collection_threshold:
        changes.append(f"garbage_collection_threshold:{settings.garbage_collection_threshold:g}")
    return tuple(changes)


def join_changes(changes: Sequence[str]) -> str:
    """Return the text of a setting that consists of these changes of torch's defaults."""
    return ",".join(changes) or DEFAULTS


def recorded_setting(changes: Sequence[str], *, has_changed: bool) -> Setting:
    """Return the settings of the run, whose text shows `changes`, the settings in force at its end."""
    return Setting(f"{AS_RECORDED} ({'last ' if has_changed else ''}{join_changes(changes)})")


def list_candidates(changes: Sequence[str]) -> tuple[str, ...]:
    """Return the settings to try for a run with these changes of torch's defaults.

    They are torch's defaults, the changes without each one of them, the changes with expandable segments, and SENSIBLE.
    """
    candidates = [DEFAULTS, *list_without_one(changes), add_expandable(changes), *SENSIBLE] if changes else [*SENSIBLE]
    recorded = tuple(sorted(changes))
    by_changes = {_changes_of(text): text for text in reversed(candidates)}
    return tuple(text for text in reversed(by_changes.values()) if _changes_of(text) != recorded)


def list_without_one(changes: Sequence[str]) -> tuple[str, ...]:
    """Return the settings that result if each one of the changes is left out, in order."""
    return tuple(join_changes([*changes[:index], *changes[index + 1 :]]) for index in range(len(changes)))


def add_expandable(changes: Sequence[str]) -> str:
    """Return the changes together with expandable segments."""
    return join_changes([EXPANDABLE, *(change for change in changes if change != EXPANDABLE)])


def _changes_of(text: str) -> tuple[str, ...]:
    return () if text == DEFAULTS else tuple(sorted(_SEPARATOR.split(text)))


def _write_divisions(divisions: Sequence[int]) -> str:
    """Return the value of roundup_power2_divisions, the inverse of `_parse_divisions`."""
    counts = [max(count, 1) for count in divisions]
    if len({*counts}) == 1:
        return str(counts[0])
    first = next(index for index, count in enumerate(counts) if count != counts[0]) - 1
    return f"[{','.join(f'{1 << index}:{counts[index]}' for index in range(first, len(counts)))}]"
