"""Faults that other attention code has had, as inputs small enough to work out by hand, on every path of each backend.

A test carries the public id of its fault as ``@pytest.mark.fault``, and so does its name: ``pytest -k 103749``.
Its docstring says what went wrong elsewhere; the answers in it are those of the contract. Arrays are NumPy's, and are
converted for a backend of another library.

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
from attnkit.reference_gradients import Cotangents, gradient_tolerance, gradients

Array = Any
BACKENDS = {name: ak.get_backend(name) for name in ("numpy", "torch")}  # one that cannot run here is an error

PATHS = [f"{name}:{path}" for name, backend in BACKENDS.items() for path in backend.paths]
DIFFERENTIABLE = [path for path in PATHS if BACKENDS[path.partition(":")[0]].capabilities().grad]


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "fault(id): public id of the fault that a test is about")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    marker = metafunc.definition.get_closest_marker("fault")
    if marker is not None:
        metafunc.parametrize("public_id", marker.args, ids=str)
    if "path" in metafunc.fixturenames:
        metafunc.parametrize("path", DIFFERENTIABLE if "differentiate" in metafunc.fixturenames else PATHS)


@pytest.fixture(autouse=True)
def public_id() -> None:
    """The public id of the fault; here, where it can be parametrised, so that every test is named after its fault."""


class Attend:
    """Attention on one path, and what the tests compare it with."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.backend = BACKENDS[path.partition(":")[0]]
        self.declared = self.backend.capabilities()

    def __call__(self, query: Array, key: Array, value: Array, **options: Any) -> ak.AttentionOutput:
        """Give output and LSE; the test is skipped where the path is made for other calls."""
        return self.only_if_taken(lambda: ak.attention_with_lse(query, key, value, backend=self.path, **options))

    def output(self, query: Array, key: Array, value: Array, **options: Any) -> Array:
        """Give the output of a call that does not ask for the LSE."""
        return self.only_if_taken(lambda: ak.attention(query, key, value, backend=self.path, **options))

    def only_if_taken(self, call: Callable[[], Any]) -> Any:
        """Make a call; the test is skipped where the path is made for other calls, and for nothing else."""
        try:
            return call()
        except ak.UnsupportedError as error:
            reasons = [reason for why in error.reasons.values() for reason in why]
            if not reasons or any(reason.code != "path" for reason in reasons):
                raise
            pytest.skip(f"{self.path} is not made for {', '.join(reason.field for reason in reasons)}")

    def weights(self, rows: int, keys: int, **options: Any) -> Array:
        """Give the weights ``[T, S]`` of queries that like all keys alike: equal for each key that a query sees."""
        return self(*level(rows, keys), **options).output[0, 0]

    def checked(self, query: Array, key: Array, value: Array, **options: Any) -> ak.AttentionOutput:
        """Give output and LSE, compared with the float64 oracle."""
        found = self(query, key, value, **options)
        self.agree(found, reference.attention(query, key, value, **options), query.dtype)
        return found

    def agree(self, found: ak.AttentionOutput, truth: reference.Truth, dtype: Any) -> None:
        """Compare with the oracle, within the error budget of what the backend declares."""
        bound = truth.tolerance(numerics_for(self.declared.numerics[dtype.name], dtype))
        assert found.output.dtype == dtype
        close(found.output, truth.output, bound.output)
        close(found.lse, truth.lse, bound.lse)


class Differentiate:
    """Gradients on one path, compared with those of the oracle; the arrays become tensors that require them."""

    def __init__(self, attend: Attend) -> None:
        self._attend = attend
        self.declared = attend.declared

    def __call__(self, query: Array, key: Array, value: Array, *, cotangent: Array, **options: Any) -> dict[str, Array]:
        """Give the gradients with respect to query, key, value, and bias and sinks where they are among the options."""
        backend = self._attend.backend
        arrays = {"query": query, "key": key, "value": value}
        arrays |= {name: options[name] for name in ("bias", "sinks") if name in options}
        leaves = {name: backend.from_numpy(array).requires_grad_() for name, array in arrays.items()}
        output = self._attend.output(**{**options, **leaves})
        output.backward(backend.from_numpy(np.broadcast_to(cotangent, output.shape).astype(query.dtype)))
        return {name: backend.to_numpy(leaf.grad) for name, leaf in leaves.items()}

    def checked(self, query: Array, key: Array, value: Array, *, cotangent: Array, **options: Any) -> dict[str, Array]:
        """Give the gradients, compared with the oracle's within the budget of what the backend declares."""
        found = self(query, key, value, cotangent=cotangent, **options)
        truth, dtype = reference.attention(query, key, value, **options), query.dtype.name
        cotangents = Cotangents(np.asarray(cotangent, query.dtype))
        exact = gradients(truth, cotangents)
        for name, gradient in found.items():
            given = options.get(name, query).dtype
            numerics = numerics_for(self.declared.numerics[dtype], dtype)
            bound = gradient_tolerance(truth, cotangents, numerics, terms=given.name)
            assert gradient.dtype == given
            close(gradient, getattr(exact, name), getattr(bound, name))
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
    close = staticmethod(close)
    same_bits = staticmethod(same_bits)


@pytest.fixture(scope="session")
def lab() -> type[Lab]:
    return Lab


@pytest.fixture(scope="session")
def paths() -> list[str]:
    """Every path, for the tests that look at all of them in one process."""
    return PATHS


@pytest.fixture
def attend(path: str) -> Attend:
    return Attend(path)


@pytest.fixture
def differentiate(attend: Attend) -> Differentiate:
    return Differentiate(attend)
