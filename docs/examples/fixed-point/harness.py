"""A harness for attnkit: attention in 64-bit integers, as a fixed-point device computes it. NumPy only, no attnkit.

``numerics.json`` says what each stage holds, rounds and approximates. The bounds follow from it; the verdict names it.
"""

import json
import math
import sys
from pathlib import Path

import numpy as np

NUMERICS = json.loads(Path(__file__).with_name("numerics.json").read_text())
CAPABILITIES = {"dtypes": ["float32"], "numerics": {"float32": NUMERICS}, "gqa": True, "value_dim": True}
CAPABILITIES["deterministic"] = True

INPUT, PRODUCT, SCORE, EXP, SUM, RECIPROCAL, OUTPUT = 12, 24, 12, 16, 28, 18, 12  # bits behind the point
SCALE_BITS = 22
LOG2E = 1549082005  # log2(e) with 30 bits behind the point
ROM = np.rint(2.0**20 * 2.0 ** -(np.arange(257) / 256)).astype(np.int64)  # 2^-x for x in 0 .. 1, 20 bits


def stored(numbers: np.ndarray, fraction: int, integer: int) -> np.ndarray:
    """Round to the nearest multiple of 2^-fraction, as an integer; what is beyond the format stays at its ends."""
    return np.clip(
        np.rint(numbers.astype(np.float64) * 2.0**fraction), -(2 ** (fraction + integer)), 2 ** (fraction + integer) - 1
    ).astype(np.int64)


def shifted(numbers: np.ndarray, bits: int) -> np.ndarray:
    """Drop bits, rounding to the nearest."""
    return (numbers + (1 << (bits - 1))) >> bits


def scaled(dots: np.ndarray, scale: float) -> np.ndarray:
    """Multiply with a constant of 22 bits and an exponent, which software computes once; stay at the ends."""
    mantissa, exponent = math.frexp(scale)
    bits, most = PRODUCT + SCALE_BITS - SCORE - exponent, 2 ** (6 + SCORE)
    if not 0 < bits < 63:
        return np.where(bits > 0, 0, np.sign(dots) * int(np.sign(scale)) * most).clip(-most, most - 1)
    return np.clip(shifted(dots * round(mantissa * 2**SCALE_BITS), bits), -most, most - 1)


def exponential(below: np.ndarray) -> np.ndarray:
    """2^16 e^-x, rounded down, of x >= 0 with 12 bits behind the point: a table of 257 and a line between two of it."""
    power = (below * LOG2E) >> (SCORE + 30 - 24)  # x log2(e) with 24 bits behind the point
    whole, place, rest = power >> 24, (power >> 16) & 255, power & 65535
    fraction = ROM[place] - (((ROM[place] - ROM[place + 1]) * rest) >> 16)
    return np.where(whole < 40, fraction >> np.minimum(whole + 4, 62), 0)


def attention(call: dict, arrays: dict) -> np.ndarray:
    """Output [B, H, T, E]."""
    queries, keys, group = call["queries"], call["keys"], call["heads"] // max(call["kv_heads"], 1)
    query, key, value = (stored(arrays[name], INPUT, 5) for name in ("query", "key", "value"))
    key, value = np.repeat(key, group, axis=1), np.repeat(value, group, axis=1)
    dots = np.clip(query @ key.swapaxes(2, 3), -(2 ** (14 + PRODUCT)), 2 ** (14 + PRODUCT) - 1)
    score = scaled(dots, float.fromhex(call["scale_hex"]))
    shown = np.ones((queries, keys), bool)
    for term in call.get("mask", []):
        assert term["kind"] == "causal", term
        shown &= np.arange(keys) <= np.arange(queries)[:, None] + keys - queries
    top = np.where(shown, score, -(2**40)).max(axis=-1, keepdims=True, initial=-(2**40))
    weight = np.where(shown, exponential(np.clip(top - score, 0, 2 ** (6 + SCORE))), 0)
    total = weight.sum(axis=-1, keepdims=True)
    reciprocal = (1 << (EXP + RECIPROCAL)) // np.maximum(total, 1)
    output = shifted((weight @ value) * reciprocal, SUM + RECIPROCAL - OUTPUT)
    output = np.clip(output, -(2 ** (5 + OUTPUT)), 2 ** (5 + OUTPUT) - 1)
    return (np.where(total > 0, output, 0) * 2.0**-OUTPUT).astype(np.float32)


def attend(folder: Path) -> None:
    call = json.loads((folder / "case.json").read_text())
    arrays = {
        role: np.fromfile(folder / "in" / f"{role}.bin", "<f4").reshape(told["shape"])
        for role, told in call["arrays"].items()
    }
    attention(call, arrays).tofile(folder / "out" / "output.bin")


def serve() -> None:
    for line in sys.stdin:
        message = json.loads(line)
        reply = {"id": message["id"], "status": "ok"}
        if message["command"] == "hello":
            reply |= {"protocol": 1, "name": NUMERICS["name"], "version": "1", "language": "Python"}
        elif message["command"] == "capabilities":
            reply |= {"capabilities": CAPABILITIES}
        elif message["command"] == "attend":
            try:
                attend(Path(message["folder"]))
            except Exception as error:  # the other side wants to know
                reply = {"id": message["id"], "status": "error", "message": f"{type(error).__name__}: {error}"}
        print(json.dumps(reply), flush=True)
        if message["command"] == "stop":
            break


if __name__ == "__main__":
    serve()
