"""Faults that other attention code has had, as inputs small enough to work out by hand, on every path of ``numpy``.

A test carries the public id of its fault as ``@pytest.mark.fault``, and so does its name: ``pytest -k 103749``.
Its docstring says what went wrong elsewhere; the answers in it are those of the contract.

Axes: ``B`` batch, ``H`` query heads, ``K`` key/value heads, ``T`` query length, ``S`` key length, ``D`` query/key head
size, ``E`` value head size.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import attnkit as ak
from attnkit import reference
from attnkit.numerics import numerics_for

Array = Any
BACKEND = ak.get_backend("numpy")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "fault(id): public id of the fault that a test is about")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    marker = metafunc.definition.get_closest_marker("fault")
    if marker is not None:
        metafunc.parametrize("public_id", marker.args, ids=str)
    if "path" in metafunc.fixturenames:
        metafunc.parametrize("path", [f"{BACKEND.name}:{path}" for path in BACKEND.paths])


@pytest.fixture(autouse=True)
def public_id() -> None:
    """The public id of the fault; here, where it can be parametrised, so that every test is named after its fault."""


class Attend:
    """Attention on one path, and what the tests compare it with."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __call__(self, query: Array, key: Array, value: Array, **options: Any) -> ak.AttentionOutput:
        """Give output and LSE; the test is skipped where the path is made for calls of another shape."""
        return self.only_if_taken(lambda: ak.attention_with_lse(query, key, value, backend=self.path, **options))

    def output(self, query: Array, key: Array, value: Array, **options: Any) -> Array:
        """Give the output of a call that does not ask for the LSE."""
        return self.only_if_taken(lambda: ak.attention(query, key, value, backend=self.path, **options))

    def only_if_taken(self, call: Callable[[], Any]) -> Any:
        """Make a call; the test is skipped where the path is made for calls of another shape, and for nothing else."""
        try:
            return call()
        except ak.UnsupportedError as error:
            reasons = [reason for why in error.reasons.values() for reason in why]
            if not reasons or any(reason.code != "path" for reason in reasons):
                raise
            pytest.skip(f"{self.path}: {'; '.join(map(str, reasons))}")

    def weights(self, rows: int, keys: int, **options: Any) -> Array:
        """Give the weights ``[T, S]`` of queries that like all keys alike: equal for each key that a query sees."""
        return self(*level(rows, keys), **options).output[0, 0]

    def checked(self, query: Array, key: Array, value: Array, **options: Any) -> ak.AttentionOutput:
        """Give output and LSE, compared with the float64 oracle."""
        found = self(query, key, value, **options)
        agree(found, reference.attention(query, key, value, **options), query.dtype.name)
        return found


def level(rows: int, keys: int, *, dtype: Any = np.float32) -> tuple[Array, Array, Array]:
    """Give arrays whose scores are all 0 and whose output is the weights: query 0, value the identity."""
    key = np.arange(keys * 2).reshape(1, 1, keys, 2).astype(dtype)
    return np.zeros((1, 1, rows, 2), dtype), key, np.eye(keys, dtype=dtype)[None, None]


def draw(
    batch: int,
    heads: int,
    rows: int,
    keys: int,
    *,
    kv_heads: int | None = None,
    head_dim: int = 8,
    value_dim: int | None = None,
    dtype: Any = np.float32,
    seed: int = 0,
) -> tuple[Array, Array, Array]:
    """Draw query ``[B, H, T, D]``, key ``[B, K, S, D]`` and value ``[B, K, S, E]``."""
    rng = np.random.default_rng(seed)
    shared = batch, kv_heads or heads, keys
    shapes = (batch, heads, rows, head_dim), (*shared, head_dim), (*shared, value_dim or head_dim)
    query, key, value = (rng.standard_normal(shape).astype(dtype) for shape in shapes)
    return query, key, value


def agree(found: ak.AttentionOutput, truth: reference.Truth, dtype: str) -> None:
    """Compare with the oracle, within the error budget of what the backend declares."""
    bound = truth.tolerance(numerics_for(BACKEND.capabilities().numerics[dtype], dtype))
    assert found.output.dtype == np.dtype(dtype)
    close(found.output, truth.output, bound.output)
    close(found.lse, truth.lse, bound.lse)


def close(found: Array, expected: Array, bound: Array = 1e-6) -> None:
    """Compare numbers; NaN equals nothing, and an infinity only itself."""
    found, expected = np.asarray(found, np.float64), np.asarray(expected, np.float64)
    assert found.shape == np.broadcast_shapes(found.shape, expected.shape)
    with np.errstate(invalid="ignore"):  # inf - inf, where the first half already holds
        fine = (found == expected) | (np.abs(found - expected) <= bound)
    assert fine.all(), f"expected {expected}, found {found}"


def same_bits(found: Array, expected: Array) -> None:
    """Compare bit for bit."""
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    assert found.tobytes() == expected.tobytes(), f"expected {expected}, found {found}"


class Lab:
    """What the tests of this folder compare and draw with; under importlib mode they cannot import this file."""

    level = staticmethod(level)
    draw = staticmethod(draw)
    agree = staticmethod(agree)
    close = staticmethod(close)
    same_bits = staticmethod(same_bits)


@pytest.fixture(scope="session")
def lab() -> type[Lab]:
    return Lab


@pytest.fixture
def attend(path: str) -> Attend:
    return Attend(path)
