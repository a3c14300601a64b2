"""Packed sequences: as many launches as for one, each sequence as if it were alone.

Axes: ``N`` queries, ``H`` query heads, ``K`` key/value heads, ``D`` and ``E`` head sizes.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import attnkit as ak
from attnkit import reference
from attnkit.numerics import numerics_for
from attnkit_cupy.backend import EmulatedBackend
from attnkit_cupy.emulator import CapturingRuntime
from attnkit_cupy.packed import is_worth_it

DTYPES = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
LENGTHS: dict[str, tuple[list[int], list[int]]] = {
    "self": ([5, 9, 1, 30], [5, 9, 1, 30]),
    "cross": ([3, 7], [20, 2]),
    "with empty ones": ([3, 0, 6, 2], [4, 5, 0, 70]),
    "decoding": ([1, 1, 1], [40, 3, 17]),
}
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"mask": ak.Mask.causal()},
    "window, sinks": {"mask": ak.Mask.causal() & ak.Mask.window(4), "sinks": np.ones(4, np.float32)},
    "ALiBi, soft-cap": {"mask": ak.Mask.prefix(2), "alibi": ak.alibi_slopes(4), "softcap": 3.0},
    "chunked": {"mask": ak.Mask.chunked(3), "scale": 0.4},
}


def draw(queries: list[int], keys: list[int], dtype: str = "float32"):
    rng = np.random.default_rng(0)
    shapes = [(sum(queries), 4, 24), (sum(keys), 2, 24), (sum(keys), 2, 16)]
    arrays = [rng.standard_normal(shape).astype(DTYPES[dtype]) for shape in shapes]
    return arrays, np.cumsum([0, *queries]), np.cumsum([0, *keys])


def check(output, arrays, cu_q, cu_k, options, dtype: str = "float32") -> None:
    profile = "strict-fp32+sequential" if dtype == "float32" else "fa-16+truncating"
    for b in range(len(cu_q) - 1):
        rows, keys = slice(cu_q[b], cu_q[b + 1]), slice(cu_k[b], cu_k[b + 1])
        alone = [array[cut].transpose(1, 0, 2)[None] for array, cut in zip(arrays, (rows, keys, keys), strict=True)]
        truth = reference.attention(*alone, **options)
        bound = truth.tolerance(numerics_for(profile, dtype)).output
        found = output[rows].transpose(1, 0, 2)[None].astype(np.float64)
        assert (np.abs(found - truth.output) <= bound).all(), b


@pytest.fixture
def backend(runtime) -> EmulatedBackend:
    made = EmulatedBackend()
    made.runtime = CapturingRuntime(runtime)
    return made


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("lengths", LENGTHS)
def test_each_sequence_is_as_alone(backend, lengths, options, dtype) -> None:
    arrays, cu_q, cu_k = draw(*LENGTHS[lengths], dtype)
    with ak.trace() as calls:
        output = ak.attention_packed(*arrays, cu_q, cu_k, **OPTIONS[options], backend=backend)
    assert [call.path for call in calls] == ["raw"]
    assert output.dtype == DTYPES[dtype]
    check(output, arrays, cu_q, cu_k, OPTIONS[options], dtype)


def test_launches_do_not_grow_with_the_sequences(backend) -> None:
    counts = []
    for lengths in ([4, 5], [4, 5] * 20):
        arrays, cu_q, cu_k = draw(lengths, lengths)
        with backend.runtime.capture() as graph:
            ak.attention_packed(*arrays, cu_q, cu_k, mask=ak.Mask.causal(), backend=backend)
        counts.append(len(graph))
    assert counts == [4, 4]  # queries gathered, attention, mending, results laid end to end


def test_any_strides_are_read(backend) -> None:
    arrays, cu_q, cu_k = draw(*LENGTHS["self"])
    strided = [np.repeat(array.transpose(1, 0, 2), 2, axis=1)[:, ::2].transpose(1, 0, 2) for array in arrays]
    odd = [np.repeat(array, 2, axis=2)[..., ::2] for array in arrays]
    for given in (strided, odd):
        assert not given[0].flags.c_contiguous
        check(ak.attention_packed(*given, cu_q, cu_k, backend=backend), arrays, cu_q, cu_k, {})


@pytest.mark.parametrize("fill", [np.nan, np.inf])
def test_neighbours_leave_no_trace(backend, fill) -> None:
    arrays, cu_q, cu_k = draw(*LENGTHS["self"])
    before = ak.attention_packed(*arrays, cu_q, cu_k, mask=ak.Mask.causal(), backend=backend)
    for array, cu in zip(arrays, (cu_q, cu_k, cu_k), strict=True):
        array[: cu[1]], array[cu[2] :] = fill, fill
    after = ak.attention_packed(*arrays, cu_q, cu_k, mask=ak.Mask.causal(), backend=backend)
    rows = slice(cu_q[1], cu_q[2])
    assert np.array_equal(before[rows], after[rows])


def test_sequences_that_padding_would_outgrow_go_one_by_one(backend) -> None:
    lengths = [200, *[1] * 30]
    arrays, cu_q, cu_k = draw(lengths, lengths)
    assert not is_worth_it((cu_q.tolist(), cu_k.tolist()))
    with ak.trace() as calls:
        output = ak.attention_packed(*arrays, cu_q, cu_k, mask=ak.Mask.causal(), backend=backend)
    assert len(calls) == 31
    check(output, arrays, cu_q, cu_k, {"mask": ak.Mask.causal()})


def test_other_backends_take_them_one_by_one() -> None:
    arrays, cu_q, cu_k = draw(*LENGTHS["self"])
    with ak.trace() as calls:
        output = ak.attention_packed(*arrays, cu_q, cu_k, backend="numpy")
    assert len(calls) == 4
    check(output, arrays, cu_q, cu_k, {})
