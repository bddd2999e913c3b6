"""The pickle reader: reads basic values as pickle does, and refuses all other bytes without running, importing or
allocating anything."""

from __future__ import annotations

import contextlib
import pickle
import pickletools
import resource
import struct
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from running import program_environment

from pytorch_alloctrace import TraceError, _replay

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda values: (
        st.lists(values)
        | st.lists(values).map(tuple)
        | st.dictionaries(st.text() | st.integers(-(2**63), 2**63 - 1), values)
    ),
    max_leaves=40,
)

OLD_PROTOCOL_VALUES = st.recursive(st.none() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False), st.lists)


@given(st.tuples(VALUES, st.integers(3, 5)) | st.tuples(OLD_PROTOCOL_VALUES, st.integers(0, 2)), st.booleans())
@settings(max_examples=60)
def test_values_are_read_as_by_pickle(pickled: tuple[Any, int], optimized: bool) -> None:
    value, protocol = pickled
    data = pickle.dumps(value, protocol=protocol)
    if optimized:
        data = pickletools.optimize(data)
    loaded = _replay.load_plain_pickle(data)
    assert loaded == value and repr(loaded) == repr(value)


def test_shared_and_circular_references_are_preserved() -> None:
    shared: list[Any] = [1]
    value: dict[str, Any] = {"a": shared, "b": shared}
    value["self"] = value

    loaded = _replay.load_plain_pickle(pickle.dumps(value))

    assert loaded["a"] is loaded["b"] and loaded["self"] is loaded


@given(st.binary(max_size=200))
@settings(max_examples=300)
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    for beginning in (b"", b"\x80\x04"):
        with contextlib.suppress(TraceError):
            _replay.load_plain_pickle(beginning + data)


@given(VALUES, st.data())
@settings(max_examples=50)
def test_corrupt_pickles_are_read_or_refused(value: Any, draw: st.DataObject) -> None:
    data = bytearray(pickle.dumps(value, protocol=4))
    for _ in range(draw.draw(st.integers(1, 4))):
        data[draw.draw(st.integers(0, len(data) - 1))] = draw.draw(st.integers(0, 255))
    with contextlib.suppress(TraceError):
        _replay.load_plain_pickle(bytes(data[: draw.draw(st.integers(1, len(data)))]))


class CallsPrint:
    def __reduce__(self) -> Any:
        return (print, ("code of the pickle has run",))


HOSTILE = {
    "a call": pickle.dumps(CallsPrint(), protocol=4),
    "a call, protocol 0": pickle.dumps(CallsPrint(), protocol=0),
    "a class": b"\x80\x02cos\nsystem\n.",
    "a class by names on the stack": b"\x80\x04\x8c\x02os\x8c\x06system\x93.",
    "an instance": b"(S'ls'\nios\nsystem\n.",
    "an extension code": b"\x80\x02\x82\x01.",
    "a persistent object": b"\x80\x02U\x01aQ.",
    "state for an object": b"\x80\x02}}b.",
    "an out-of-band buffer": b"\x80\x05\x97.",
    "a set": pickle.dumps({1}, protocol=4),
    "a bytearray": pickle.dumps(bytearray(b"x"), protocol=5),
    "a text of 2^62 bytes": b"\x80\x04\x8d" + struct.pack("<Q", 2**62) + b"x.",
    "bytes of 2^62 bytes": b"\x80\x04\x8e" + struct.pack("<Q", 2**62) + b"x.",
    "a frame of 2^62 bytes": b"\x80\x04\x95" + struct.pack("<Q", 2**62),
    "a number of 2^31 bytes": b"\x80\x02\x8b" + struct.pack("<I", 2**31) + b"x.",
    "a number of 200 bytes": b"\x80\x02\x8a\xc8" + b"\x01" * 200 + b".",
    "a number of a million digits": b"L" + b"9" * 1_000_000 + b"L\n.",
    "a memo of 2^32": b"\x80\x02Nr" + b"\xff\xff\xff\xff.",
    "a memo of 10^18": b"Np1000000000000000000\n.",
    "an undefined memo": b"\x80\x02h\x05.",
    "an empty file": b"",
    "no end": b"\x80\x04N",
    "no value": b"\x80\x04.",
    "two values": b"\x80\x04NN.",
    "an unused mark": b"\x80\x04(N.",
    "no mark": b"\x80\x04Nt.",
    "a tuple from an empty stack": b"\x80\x04N\x87.",
    "append to a number": b"\x80\x04K\x01Na.",
    "append without a list": b"\x80\x04Na.",
    "append beyond a mark": b"\x80\x04](Na.",
    "items in a list": b"\x80\x04]NNs.",
    "a key without a value": b"\x80\x04}(Nu.",
    "a key that is a tuple": b"\x80\x04})Ns.",
    "a key that is a list": b"\x80\x04}]Ns.",
    "a text of invalid UTF-8": b"\x80\x04\x8c\x01\xff.",
    "an invalid integer": b"I1x\n.",
    "an invalid float": b"F1x\n.",
    "a newer protocol": b"\x80\x09N.",
    "a million marks": b"\x80\x04" + b"(" * 1_000_000 + b".",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_pickle_is_refused_without_running_its_code(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(TraceError):
        _replay.load_plain_pickle(HOSTILE[name])
    assert capfd.readouterr().out == ""


def test_deeply_nested_lists_do_not_overflow_the_stack() -> None:
    deep = b"\x80\x04" + b"]" * 100_000 + b"a" * 99_999 + b"."
    loaded = _replay.load_plain_pickle(deep)
    assert len(loaded) == 1


BOMBS = {
    "empty dictionaries": b"\x80\x04(" + b"}" * 20_000_000 + b"l.",
    "a value duplicated many times": b"\x80\x04](" + b"N" + b"2" * 60_000_000 + b"e.",
    "lists of a list of a list": b"\x80\x04]\x94" + b"(" + b"h\x00" * 5_000_000 + b"l.",
    "wide texts": b"\x80\x04("
    + (b"X" + struct.pack("<I", 1_000_000) + b"\xf0\x9f\x98\x80" + b"x" * 999_996) * 20
    + b"l.",
}
LIMITED_PROGRAM = """
import contextlib, resource, sys
from pytorch_alloctrace import TraceError, _replay
data = sys.stdin.buffer.read()
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
with contextlib.suppress(TraceError):
    value = _replay.load_plain_pickle(data)
grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
bound = 24 * len(data) + (64 << 20)
assert grown <= 1.2 * bound, (grown, bound)
"""


@pytest.mark.parametrize("name", BOMBS)
def test_memory_is_bounded_by_size_of_pickle(name: str) -> None:
    process = subprocess.run(
        [sys.executable, "-c", LIMITED_PROGRAM],
        input=BOMBS[name],
        env=program_environment(),
        capture_output=True,
        timeout=600,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30)),
    )
    assert process.returncode == 0, process.stderr.decode()
