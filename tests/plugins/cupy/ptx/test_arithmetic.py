"""Instructions of one thread: what NVRTC makes of C++ operators, against NumPy."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from attnkit_cupy.ptx.runtime import PtxRuntime

INTS = np.array([0, 1, -1, 7, -7, 12345, -98765, 2**31 - 1, -(2**31), 64, -64, 3], np.int32)
LONGS = np.concatenate([INTS.astype(np.int64), [2**40 + 3, -(2**40) - 3, 2**62, -(2**62)]])
FLOATS = np.array([0, -0.0, 1, -1, 0.3, -2.5, 1e-30, 1e30, np.inf, -np.inf, np.nan, 5e-42], np.float32)


def cut(a, b):
    """Divide as C does; by 0 it gives 0."""
    quotients = [
        abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1) if y else 0
        for x, y in zip(a.tolist(), b.tolist(), strict=True)
    ]
    return np.array(quotients, a.dtype)


def pairs(values):
    a, b = np.meshgrid(values, values)
    return a.ravel().copy(), b.ravel().copy()


def run(kernel_of, expression, first, second, result, *, arch=80, template=""):
    """Evaluate an expression of ``a`` and ``b`` for each pair of values."""
    names = {"int32": "int", "int64": "long long", "uint32": "unsigned", "uint16": "unsigned short"}
    kinds = [
        names.get(str(array.dtype), {"float32": "float", "float64": "double"}.get(str(array.dtype)))
        for array in (first, second, result)
    ]
    size = len(first)
    padded = -(-size // 32) * 32
    arrays = [np.concatenate([array, np.ones(padded - size, array.dtype)]) for array in (first, second, result)]
    runtime = PtxRuntime(arch)
    runtime.xp.remember(*arrays)
    body = f"int i = blockIdx.x * 32 + threadIdx.x; auto a = p[i]; auto b = q[i]; r[i] = {expression};"
    kernel = kernel_of(runtime, body, *kinds, template=template)
    kernel((padded // 32,), (32,), tuple(np.uint64(array.ctypes.data) for array in arrays))
    return arrays[2][:size]


INTEGER = {
    "a + b": lambda a, b: a + b,
    "a - b": lambda a, b: a - b,
    "a * b": lambda a, b: a * b,
    "a & b": lambda a, b: a & b,
    "a | ~b": lambda a, b: a | ~b,
    "a ^ b": lambda a, b: a ^ b,
    "b ? a / b : 0": cut,
    "b ? a % b : 0": lambda a, b: np.where(b == 0, a.dtype.type(0), np.fmod(a, np.where(b == 0, 1, b))),
    "a << (b & 15)": lambda a, b: a << (b & 15),
    "a >> (b & 15)": lambda a, b: a >> (b & 15),
    "a < b ? a : b": np.minimum,
    "max(a, b)": np.maximum,
    "a == b": lambda a, b: (a == b).astype(a.dtype),
    "-a": lambda a, b: -a,
}


@pytest.mark.parametrize("expression", INTEGER)
@pytest.mark.parametrize("values", [INTS, LONGS], ids=["int", "long"])
def test_integers(kernel_of, expression, values) -> None:
    a, b = pairs(values)
    if "/" in expression or "%" in expression:  # the one quotient that does not fit
        a, b = (x[~((a == values.dtype.type(-(2**31))) & (b == -1))] for x in (a, b))
    with np.errstate(all="ignore"):
        expected = INTEGER[expression](a, b)
    found = run(kernel_of, expression, a, b, np.zeros_like(a))
    np.testing.assert_array_equal(found, expected)


UNSIGNED = {
    "__umulhi(a, b)": lambda a, b: (a.astype(np.uint64) * b >> np.uint64(32)).astype(np.uint32),
    "__popc(a)": lambda a, b: np.bitwise_count(a).astype(np.uint32),
    "__clz(int(a))": lambda a, b: np.array([32 - int(x).bit_length() for x in a], np.uint32),
    "__byte_perm(a, b, 0x5107)": lambda a, b: (
        (b >> np.uint32(24) & np.uint32(255))
        | (a & np.uint32(255)) << np.uint32(8)
        | (a >> np.uint32(8) & np.uint32(255)) << np.uint32(16)
        | (b >> np.uint32(8) & np.uint32(255)) << np.uint32(24)
    ),
    "a >> 5": lambda a, b: a >> np.uint32(5),
    "b ? a / b : 7": lambda a, b: np.where(b == 0, np.uint32(7), a // np.maximum(b, np.uint32(1))),
}


@pytest.mark.parametrize("expression", UNSIGNED)
def test_unsigned_integers(kernel_of, expression) -> None:
    a, b = pairs(INTS.view(np.uint32))
    np.testing.assert_array_equal(run(kernel_of, expression, a, b, np.zeros_like(a)), UNSIGNED[expression](a, b))


FLOATING = {
    "a + b": lambda a, b: a + b,
    "a * b": lambda a, b: a * b,
    "fmaxf(a, b)": np.fmax,
    "fminf(a, b)": np.fmin,
    "fmaf(a, b, 1.5f)": lambda a, b: (a.astype(np.float64) * b + 1.5).astype(np.float32),
    "a < b ? 1.f : 2.f": lambda a, b: np.where(a < b, np.float32(1), np.float32(2)),
    "!(a < b) ? 1.f : 2.f": lambda a, b: np.where(~(a < b), np.float32(1), np.float32(2)),
    "a != b ? 1.f : 2.f": lambda a, b: np.where(a != b, np.float32(1), np.float32(2)),
    "fabsf(a)": lambda a, b: np.abs(a),
    "float(double(a) * double(b))": lambda a, b: (a.astype(np.float64) * b).astype(np.float32),
    "copysignf(a, b)": np.copysign,
    "isfinite(a) ? 1.f : 0.f": lambda a, b: np.isfinite(a).astype(np.float32),
}


@pytest.mark.parametrize("expression", FLOATING)
def test_floats(kernel_of, expression) -> None:
    a, b = pairs(FLOATS)
    with np.errstate(all="ignore"):
        expected = FLOATING[expression](a, b)
    np.testing.assert_array_equal(run(kernel_of, expression, a, b, np.zeros_like(a)), expected)


@pytest.mark.parametrize(
    ("expression", "function"),
    [
        ("exp2f(a)", np.exp2),
        ("sqrtf(fabsf(a))", lambda a: np.sqrt(np.abs(a))),
        ("tanhf(a)", np.tanh),
        ("1.f / a", lambda a: 1 / a),
    ],
    ids=["exp2", "sqrt", "tanh", "quotient"],
)
def test_functions_of_a_float(kernel_of, expression, function) -> None:
    values = np.concatenate([FLOATS, np.linspace(-20, 20, 41, dtype=np.float32)])
    with np.errstate(all="ignore"):
        expected = function(values.astype(np.float64)).astype(np.float32)
        found = run(kernel_of, expression, values, values, np.zeros_like(values))
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-37)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16], ids=["half", "bfloat16"])
@pytest.mark.parametrize("arch", [75, 90])
def test_numbers_of_16_bits_round_to_even(kernel_of, dtype, arch) -> None:
    kind = "f16" if dtype == np.float16 else "bf16"
    rng = np.random.default_rng(0)
    values = np.concatenate(
        [FLOATS, rng.standard_normal(400).astype(np.float32) * np.exp2(rng.integers(-26, 16, 400)).astype(np.float32)]
    )
    found = run(kernel_of, f"to_float(from_float<{kind}>(a))", values, values, np.zeros_like(values), arch=arch)
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(found, values.astype(dtype).astype(np.float32))


def test_floats_become_integers_by_cutting(kernel_of) -> None:
    values = np.array([0.9, -0.9, 3.5, -3.5, 1e9, -1e9], np.float32)
    found = run(kernel_of, "int(a)", values, values, np.zeros(6, np.int32))
    np.testing.assert_array_equal(found, [0, 0, 3, -3, 10**9, -(10**9)])
