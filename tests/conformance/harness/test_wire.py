"""The wire: every value that may cross comes back as it was, and nothing else is taken for one."""

from __future__ import annotations

import io
import json
import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from attnkit_conformance.harness import wire


def sent(value: object) -> bytes:
    stream = io.BytesIO()
    wire.write(stream, wire.pack(value))
    return stream.getvalue()


def crossed(value: object) -> Any:
    return wire.read(io.BytesIO(sent(value)))


def forged(value: object = None, arrays: object = (), rest: bytes = b"") -> io.BytesIO:
    """Give what a process that does not keep to the rules may send."""
    header = json.dumps({"value": value, "arrays": arrays}).encode()
    return io.BytesIO(wire.MAGIC + len(header).to_bytes(4, "little") + header + rest)


@pytest.mark.parametrize(
    "value",
    [
        *(None, True, False, 0, -7, 2**80, 0.1, -0.0, 1e300, math.inf, -math.inf, "", "tau \u03c4 \ud800", (), [], {}),
        [1, (2.0, ["three", None]), {"four": (True,)}],
        {"float": "nan", "tuple": [1], "thing": 3},
    ],
    ids=repr,
)
def test_plain_values(value: object) -> None:
    back = crossed(value)
    assert back == value
    assert repr(back) == repr(value), "types and signs are those that were sent"


def test_nan() -> None:
    assert math.isnan(crossed(math.nan))


@pytest.mark.parametrize("dtype", sorted(wire.DTYPES))
def test_every_element_type(dtype: str) -> None:
    bits = np.random.default_rng(7).integers(0, 2 if dtype == "bool" else 256, 48, np.uint8)
    array = bits.view(np.dtype(dtype))[:6].reshape(2, 3)
    back = crossed(array)
    assert back.dtype == array.dtype
    assert back.shape == (2, 3)
    assert back.tobytes() == array.tobytes()


@pytest.mark.parametrize("bits", [0x7FC0, 0x7FC1, 0xFFFF, 0x7F81])
def test_bits_of_nan_are_kept(bits: int) -> None:
    array = np.array([bits], np.uint16).view(ml_dtypes.bfloat16)
    assert crossed(array).view(np.uint16)[0] == bits
    wide = np.array([bits << 16 | 5], np.uint32).view(np.float32)
    assert crossed(wide).view(np.uint32)[0] == bits << 16 | 5


@pytest.mark.parametrize(
    "array",
    [
        np.array(3.5),
        np.zeros((0, 4), np.float32),
        np.arange(24).reshape(2, 3, 4).swapaxes(0, 2)[::-1, :, ::2],
        np.broadcast_to(np.float32(7), (3, 2)),
        np.arange(3, dtype=">f4"),
    ],
    ids=["rank 0", "empty", "strided", "broadcast", "other byte order"],
)
def test_arrays_of_any_form(array: Any) -> None:
    back = crossed(array)
    np.testing.assert_array_equal(back, array)
    assert back.shape == array.shape
    assert back.dtype.name == array.dtype.name
    assert back.flags.c_contiguous
    assert back.flags.writeable


@pytest.mark.parametrize("number", [np.float32(0.1), np.int64(-3), np.bool_(True), ml_dtypes.bfloat16(1.5)])
def test_numbers_keep_their_element_type(number: np.generic) -> None:
    back = crossed(number)
    assert type(back) is type(number)
    assert back == number


def test_several_arrays_and_messages_follow_each_other() -> None:
    messages = [{"a": np.arange(3), "b": [np.ones((2, 2)), np.zeros(0)]}, "text", (np.float16(2),)]
    stream = io.BytesIO(b"".join(map(sent, messages)))
    first, second, third = (wire.read(stream) for _ in messages)
    np.testing.assert_array_equal(first["a"], np.arange(3))
    np.testing.assert_array_equal(first["b"][0], np.ones((2, 2)))
    assert first["b"][1].shape == (0,)
    assert (second, third) == ("text", (np.float16(2),))
    with pytest.raises(EOFError):
        wire.read(stream)


def test_references() -> None:
    assert crossed([wire.Reference(12)])[0].number == 12
    refer = {5: "the thing"}.__getitem__
    assert wire.read(io.BytesIO(sent({"cache": wire.Reference(5)})), refer) == {"cache": "the thing"}


@pytest.mark.parametrize(
    "value", [object(), {1: 2}, {"set": {1}}, b"bytes", np.array([object()]), np.array(["text"]), 1j, [len]]
)
def test_what_has_no_way_to_cross(value: object) -> None:
    with pytest.raises(wire.WireError, match="no way to cross"):
        wire.pack(value)


@pytest.mark.parametrize(
    "garbage",
    [
        io.BytesIO(b"Traceback (most recent call last):\n"),
        io.BytesIO(wire.MAGIC + b"\xff\xff\xff\xff" + bytes(64)),
        io.BytesIO(wire.MAGIC + b"\x03\0\0\0{]}"),
        io.BytesIO(wire.MAGIC + b"\x02\0\0\0[]"),
        io.BytesIO(wire.MAGIC + b"\x02\0\0\0{}"),
        io.BytesIO(wire.MAGIC + b"\x02\0\0\0\xff\xff"),
        forged(arrays=[["object", [1]]], rest=bytes(8)),
        forged(arrays=[["float32", [-1]]]),
        forged(arrays=[["float32", [2.5]]]),
        forged(arrays=[["float32", 3]]),
        forged(arrays=[["float32"]]),
        forged(arrays=[[["float32"], [1]]]),
        forged(arrays=[["float64", [2**20, 2**20]]]),
        forged(arrays=7),
        forged({"array": 0}),
        forged({"scalar": "x"}),
        forged({"float": "many"}),
        forged({"float": [1]}),
        forged({"pickle": "gASVAAAA"}),
        forged({"tuple": 3}),
        forged({"dict": [1]}),
        forged({}),
        forged({"tuple": [], "dict": {}}),
    ],
)
def test_garbage_is_no_message(garbage: io.BytesIO) -> None:
    with pytest.raises(wire.WireError):
        wire.read(garbage)


def test_deeply_nested_garbage_is_no_message() -> None:
    header = b'{"arrays":[],"value":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    with pytest.raises(wire.WireError):
        wire.read(io.BytesIO(wire.MAGIC + len(header).to_bytes(4, "little") + header))


@pytest.mark.parametrize("kept", [0, 3, 8, 20, -1])
def test_a_torn_message_is_an_end(kept: int) -> None:
    whole = sent({"output": np.arange(5.0)})
    with pytest.raises(EOFError):
        wire.read(io.BytesIO(whole[:kept]))
