"""Random calls for the tests of the torch backend, and the comparison with the oracle.

Axes: ``B`` batch, ``H`` query heads, ``K`` key/value heads, ``T`` query length, ``S`` key length, ``D`` query/key head
size, ``E`` value head size.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest
import torch

import attnkit as ak
from attnkit import reference
from attnkit.numerics import numerics_for

DTYPES = {"float64": np.float64, "float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
DISTRIBUTIONS = ("uniform", "normal", "peaky", "huge", "zero-sum")
LENGTHS = ("query_lengths", "kv_lengths", "query_offset", "key_offset")
BACKEND = ak.get_backend("torch")


class Case(NamedTuple):
    """Arguments of one call, as NumPy arrays."""

    arrays: list[Any]
    options: dict[str, Any]

    def tensors(self) -> tuple[list[torch.Tensor], dict[str, Any]]:
        """Give the same as tensors; lengths, offsets and the arrays of the mask stay on the host."""
        moved = {
            name: BACKEND.from_numpy(value) if name in ("bias", "alibi", "sinks") else value
            for name, value in self.options.items()
        }
        return [BACKEND.from_numpy(array) for array in self.arrays], moved

    def without(self, *names: str) -> Case:
        return self._replace(options={name: value for name, value in self.options.items() if name not in names})


def draw(rng: np.random.Generator, distribution: str, sizes: tuple[int, ...], dtype: str) -> list[Any]:
    batch, heads, kv_heads, rows, keys, head_dim, value_dim = sizes
    shapes = (batch, heads, rows, head_dim), (batch, kv_heads, keys, head_dim), (batch, kv_heads, keys, value_dim)
    if distribution == "uniform":
        return [rng.random(shape).astype(DTYPES[dtype]) for shape in shapes]
    query, key, value = (rng.standard_normal(shape) for shape in shapes)
    if distribution == "peaky":
        query *= 6
    elif distribution == "huge":
        query, key = 30 * query, 30 * key
    elif distribution == "zero-sum" and keys:
        query, value = 0.05 * query, 4 * (value - value.mean(axis=2, keepdims=True))
    return [array.astype(DTYPES[dtype]) for array in (query, key, value)]


def draw_mask(rng: np.random.Generator, sizes: tuple[int, ...]) -> ak.Mask | None:
    batch, heads, _, rows, keys, *_ = sizes
    terms = []
    if rng.random() < 0.4:
        terms.append(ak.Mask.causal())
    elif rng.random() < 0.2:
        terms.append(ak.Mask.prefix(int(rng.integers(0, keys + 3))))
    if rng.random() < 0.3:
        terms.append(ak.Mask.window(rng.choice([None, 1, 2, 5, 20]), rng.choice([None, 0, 1, 4])))
    if rng.random() < 0.2:
        terms.append(ak.Mask.chunked(int(rng.choice([1, 3, 16, 50]))))
    if rng.random() < 0.2:
        ids_k = np.sort(rng.integers(0, 3, keys))
        terms.append(ak.Mask.documents(np.sort(rng.integers(0, 3, (batch, rows))), ids_k))
    if rng.random() < 0.2:
        shape = (rng.choice([1, batch]), rng.choice([1, heads]), rng.choice([1, rows]), keys)
        terms.append(ak.Mask.dense(rng.random(shape) < 0.7))
    mask: ak.Mask | None = None
    for term in terms:
        mask = term if mask is None else mask & term
    return mask


def draw_bias(rng: np.random.Generator, sizes: tuple[int, ...]) -> Any:
    batch, heads, _, rows, keys, *_ = sizes
    bias = rng.choice([1, 30]) * rng.standard_normal(
        (rng.choice([1, batch]), rng.choice([1, heads]), rng.choice([1, rows]), rng.choice([1, keys]))
    )
    bias[rng.random(bias.shape) < 0.1] = -np.inf
    return bias.astype(DTYPES[rng.choice(["float64", "float32", "float16", "bfloat16"])])


def draw_case(seed: int) -> Case:
    """Draw sizes, element type, distribution and any options."""
    rng = np.random.default_rng(seed)
    kv_heads, head_dim = int(rng.choice([1, 2])), int(rng.choice([1, 8, 16, 80]))
    rows, keys = int(rng.choice([0, 1, 1, 2, 4, 5, 17, 35])), int(rng.choice([0, 1, 7, 33, 70, 97]))
    batch, heads = int(rng.choice([1, 2, 3])), kv_heads * int(rng.choice([1, 2, 3]))
    sizes = (batch, heads, kv_heads, rows, keys, head_dim, int(rng.choice([head_dim, 12, 3])))
    dtype = str(rng.choice(["float32", "float32", "float64", "float16", "bfloat16"]))
    candidates = {
        "mask": draw_mask(rng, sizes),
        "scale": float(rng.choice([0.0, -0.3, 1.0, 0.01])),
        "softcap": float(rng.choice([0.1, 3.0, 50.0])),
        "bias": draw_bias(rng, sizes),
        "alibi": rng.random((heads,) if rng.random() < 0.5 else (batch, heads)).astype(np.float32),
        "sinks": (rng.choice([1, 10]) * rng.standard_normal(heads)).astype(np.float32),
        "query_lengths": rng.integers(0, rows + 1, batch),
        "kv_lengths": rng.integers(0, keys + 1, batch),
        "query_offset": rng.integers(-5, keys + 5, batch),
        "key_offset": rng.integers(0, 10, batch),
    }
    options = {name: value for name, value in candidates.items() if name == "mask" or rng.random() < 0.25}
    return Case(draw(rng, str(rng.choice(DISTRIBUTIONS)), sizes, dtype), options)


def draw_aligned(seed: int) -> Case:
    """Draw a call without a mask or causal, of any lengths and positions."""
    rng = np.random.default_rng(seed)
    case = draw_case(seed).without("mask", "scale", "softcap", "bias", "alibi", "sinks")
    if case.arrays[0].shape[3] == 1:  # too few products in a score for the kernels' results to be merged
        return draw_aligned(seed + 10_000)
    mask = ak.Mask.causal() if rng.random() < 0.7 else None
    return case._replace(options={**case.options, "mask": mask})


def run(case: Case, path: str, *, lse: bool = True) -> ak.AttentionOutput:
    arrays, options = case.tensors()
    if lse:
        return ak.attention_with_lse(*arrays, **options, backend=f"torch:{path}")
    return ak.AttentionOutput(ak.attention(*arrays, **options, backend=f"torch:{path}"))


def check(case: Case, found: ak.AttentionOutput) -> None:
    """Compare with the oracle, within the error budget of the declared numerics."""
    dtype = case.arrays[0].dtype
    truth = reference.attention(*case.arrays, **case.options)
    profile = BACKEND.capabilities().numerics[dtype.name]
    bound = truth.tolerance(numerics_for(profile, dtype.name))
    output = BACKEND.to_numpy(found.output)
    assert output.dtype == dtype
    assert output.shape == truth.output.shape
    np.testing.assert_array_equal(output[~truth.problem.shown.any(axis=-1)].astype(np.float64), 0)
    assert np.all(np.abs(output.astype(np.float64) - truth.output) <= bound.output)
    if found.lse is None:
        return
    lse = BACKEND.to_numpy(found.lse)
    assert lse.dtype == (np.float64 if dtype == np.float64 else np.float32)
    empty = truth.lse == -np.inf
    np.testing.assert_array_equal(lse[empty], -np.inf)
    assert np.all(np.abs(lse[~empty].astype(np.float64) - truth.lse[~empty]) <= bound.lse[~empty])


def refused(case: Case, path: str, *, lse: bool = True) -> bool:
    """Tell whether a path leaves a call to others."""
    arrays, options = case.tensors()
    return ak.explain(*arrays, **options, lse=lse, backend=f"torch:{path}").backend is None


def assert_same_bits(one: Any, other: Any) -> None:
    for a, b in zip(one, other, strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            assert BACKEND.to_numpy(a).tobytes() == BACKEND.to_numpy(b).tobytes()


def gradients(case: Case, path: str, grad: Any, *, wanted: tuple[str, ...] = ()) -> list[np.ndarray[Any, Any]]:
    """Give the gradients of query, key, value and the ``wanted`` options for a gradient of the output."""
    arrays, options = case.tensors()
    leaves = [array.requires_grad_() for array in (*arrays, *(options[name] for name in wanted))]
    output = ak.attention(*arrays, **options, backend=f"torch:{path}")
    return [BACKEND.to_numpy(found) for found in torch.autograd.grad(output, leaves, torch.as_tensor(grad))]


class Kit:
    """Under importlib mode tests cannot import this file."""

    DTYPES = DTYPES
    Case = Case
    draw = staticmethod(draw)
    draw_case = staticmethod(draw_case)
    draw_aligned = staticmethod(draw_aligned)
    run = staticmethod(run)
    check = staticmethod(check)
    refused = staticmethod(refused)
    assert_same_bits = staticmethod(assert_same_bits)
    gradients = staticmethod(gradients)


@pytest.fixture(scope="session")
def calls() -> type[Kit]:
    return Kit
