"""The states that a summary looks at. They are known once a trace is replayed: see `StatesAhead`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..reading.recorded import RecordedTrace
from ..reading.states_ahead import Ask
from .leaks.clock import judged_parts
from .leaks.growth import warmup_end
from .leaks.lives import last_border


def asks_of(trace: RecordedTrace, devices: Sequence[str], *, with_growth: bool) -> list[Ask]:
    """What `summarize` needs of these devices. with_growth: also at the end of the warm-up."""
    return [ask for device in devices for ask in _asks(trace, device, with_growth)]


def _asks(trace: RecordedTrace, device: str, with_growth: bool) -> Iterator[Ask]:
    peak = trace.replay.peak("allocated", device)
    if peak is not None:
        yield "stacks", peak.seq + 1, device
        yield "roles", peak.seq + 1, device
    for number, clock in enumerate(judged_parts(trace, device)):
        if clock.too_short:
            continue
        yield "lives", clock.judged_at + 1, device
        yield "stacks", clock.judged_at + 1, device
        yield "lives", last_border(trace.replay.long_lives(device), clock), device
        begun = warmup_end(trace, clock)
        if with_growth and number == 0 and begun < clock.judged_at:
            yield "stacks", begun + 1, device
