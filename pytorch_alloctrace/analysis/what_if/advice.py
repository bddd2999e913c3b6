"""Which settings would have served a request that was refused, as far as the model shows it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..._replay import LaneResult
from ...errors import NotPredictableError
from ...reading.recorded import RecordedTrace
from .model import Card, Model
from .prediction import Outcome, outcome
from .settings import Setting, parse_setting

MOST_REQUESTS = 20_000_000
"""Of longer traces nothing is tried: a diagnosis is to take seconds. The command what-if still does."""
NOTABLY_LESS = 0.05
"""Of the recorded peak of reserved bytes: what a setting has to save to be advised for that."""
_ORDERS = (("lowest", 0), ("highest", 0), ("random", 1))


@dataclass(frozen=True)
class Advice:
    """What was tried, and what came of it."""

    helping: tuple[Outcome, ...] = ()
    """Settings under which the request would have been served, and all before it; in the order of `tried`."""
    tried: tuple[str, ...] = ()
    """All that were tried."""
    why_not: str = ""
    """Why nothing was tried, in a sentence; empty if something was."""
    is_certain: bool = True
    """Whether they help in any case. If not, they do only where the limit of the process, of which no event tells,
    allows what they reserve at most."""

    @property
    def settings(self) -> tuple[str, ...]:
        """Those that help in any case."""
        return tuple(one.setting.text for one in self.helping) if self.is_certain else ()


def advice_for(
    trace: RecordedTrace,
    device: str,
    seq: int,
    settings: Sequence[str],
    *,
    capacity: int,
    total: int | None,
    limit: int | None,
) -> Advice:
    """What would have served the refused request of event `seq`. In bytes.

    capacity: what torch could have of the device; total: the whole device, None if unknown; limit: what the process may
    reserve, None: no limit.
    """
    if not settings:
        return Advice()
    if trace.integrity.events > MOST_REQUESTS:
        return Advice(why_not="The trace is long: the command what-if tries settings on it.")
    memory = max(total or 0, capacity)
    card = Card(memory, memory - capacity)
    tried = [parse_setting(text) for text in settings]
    try:
        model = Model(trace, device)
        lanes = model.run([model.lane(setting, card, order, limit=limit) for setting in tried for order in _ORDERS])
    except NotPredictableError as error:
        return Advice(why_not=str(error))
    found = _outcomes(model, tried, card, lanes)
    helping = [one for one in found if seq in one.served and (one.refused is None or one.refused.seq > seq)]
    return Advice(tuple(helping), tuple(settings))


def advice_to_reserve_less(trace: RecordedTrace, device: str, settings: Sequence[str]) -> Advice:
    """Under which settings the run, on a device without end, would have reserved notably less at its peak."""
    if not settings:
        return Advice()
    if trace.integrity.events > MOST_REQUESTS:
        return Advice(why_not="The trace is long: the command what-if tries settings on it.")
    card = Card(None, 0)
    tried = [parse_setting(text) for text in settings]
    try:
        model = Model(trace, device)
        lanes = model.run([model.lane(setting, card, order) for setting in tried for order in _ORDERS])
    except NotPredictableError as error:
        return Advice(why_not=str(error))
    recorded = trace.replay.peak("reserved", device)
    most = (recorded.bytes if recorded is not None else 0) * (1 - NOTABLY_LESS)
    found = _outcomes(model, tried, card, lanes)
    return Advice(tuple(one for one in found if one.peak_reserved[1] <= most), tuple(settings))


def _outcomes(model: Model, tried: Sequence[Setting], card: Card, lanes: Sequence[LaneResult]) -> list[Outcome]:
    count = len(_ORDERS)
    return [
        outcome(model, setting, card, lanes[number * count : (number + 1) * count])
        for number, setting in enumerate(tried)
    ]
