"""Views of every kind are read as what they show, never as contiguous memory (A13)."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest

import attnkit as ak

Array = Any


def _transposed(array: Array) -> Array:
    return np.ascontiguousarray(array.swapaxes(1, 2)).swapaxes(1, 2)


def _sliced(array: Array) -> Array:
    return array.repeat(2, axis=-1).repeat(3, axis=-2)[..., ::3, ::2]


def _backwards(array: Array) -> Array:
    return np.ascontiguousarray(array[..., ::-1, ::-1])[..., ::-1, ::-1]


def _offset(array: Array) -> Array:
    larger = np.full([size + 3 for size in array.shape], np.nan, array.dtype)
    larger[1:-2, 1:-2, 1:-2, 1:-2] = array
    return larger[1:-2, 1:-2, 1:-2, 1:-2]


def _read_only(array: Array) -> Array:
    array = array.copy()
    array.flags.writeable = False
    return array


VIEWS: dict[str, Callable[[Array], Array]] = {
    "transposed": _transposed,
    "sliced": _sliced,
    "backwards": _backwards,
    "offset": _offset,
    "fortran": np.asfortranarray,
    "read-only": _read_only,
}


@pytest.mark.fault("pytorch/pytorch#112577")
def test_each_array_in_a_layout_of_its_own(attend, lab) -> None:
    """Transposed views beside a custom mask gave garbage on one path after a release."""
    arrays = lab.draw(2, 3, 7, 7)
    keep = np.random.default_rng(1).random((2, 3, 7, 7)) < 0.7
    expected = attend.checked(*arrays, mask=ak.Mask.dense(keep)).output
    views = list(VIEWS.values())
    for first, second in product(range(len(views)), repeat=2):  # every two arrays meet in every two views
        chosen = views[first], views[second], views[(first + second) % len(views)]
        shown = [view(array) for view, array in zip(chosen, arrays, strict=True)]
        lab.close(attend(*shown, mask=ak.Mask.dense(keep)).output, expected, 1e-5)
        for array, view in zip(arrays, shown, strict=True):
            lab.same_bits(view, array)


@pytest.mark.fault("pytorch/pytorch#191937")
@pytest.mark.parametrize("keys", [1, 31, 32, 33, 64, 65])
def test_expanded_heads_with_a_mask(attend, lab, keys) -> None:
    """Heads expanded with stride 0 went wrong where the key length was 1 more than a multiple of 32."""
    query, key, value = lab.draw(1, 4, 3, keys)
    keep = ak.Mask.dense(np.random.default_rng(keys).random((1, 1, 3, keys)) < 0.7)
    shared = [np.broadcast_to(array[:, :1], array.shape) for array in (key, value)]
    attend.checked(query, *shared, mask=keep)
    attend.checked(np.broadcast_to(query[:, :1], query.shape), *shared, mask=keep)


@pytest.mark.fault("BobMcDear/attorch#14")
def test_heads_of_a_transposed_view(attend, lab) -> None:
    """The head's number was one stride divided by another, 0 in a transposed view: all heads wrote into head 0."""
    query, key, value = (_transposed(array) for array in lab.draw(1, 3, 4, 4))
    value[...] = np.arange(3)[:, None, None]
    first = attend(query, key, value)
    lab.close(first.output, np.broadcast_to(np.arange(3)[:, None, None], (1, 3, 4, 8)))
    for _ in range(10):
        lab.same_bits(attend(query, key, value).output, first.output)


@pytest.mark.fault("cupy/cupy#3095")
def test_options_may_be_views(attend, lab) -> None:
    """A raw kernel takes the base pointer alone, and read broadcast arrays out of bounds."""
    arrays = lab.draw(2, 4, 3, 6)
    rng = np.random.default_rng(2)
    bias = rng.standard_normal((2, 4, 3, 6)).astype(np.float32)
    for view in VIEWS.values():
        keep = view(bias) > 0
        attend.checked(*arrays, bias=view(bias), mask=ak.Mask.dense(np.swapaxes(keep.swapaxes(2, 3).copy(), 2, 3)))
    attend.checked(*arrays, bias=np.broadcast_to(bias[:1, :1, :1, :1], bias.shape))
    ramp = np.linspace(0, 1, 8, dtype=np.float32)
    for numbers in (ramp[::2], ramp[::-2], np.broadcast_to(ramp[3], (4,)), np.eye(4, dtype=np.float32)[:, 1]):
        attend.checked(*arrays, alibi=numbers, sinks=numbers)
    lengths = np.array([[3, 1], [6, 2]])
    attend.checked(*arrays, kv_lengths=lengths[:, 0], query_lengths=lengths[::-1, 1], query_offset=lengths[0, ::-1])


@pytest.mark.fault("numpy/numpy#12156")
@pytest.mark.parametrize("rows", [1, 3])
def test_broadcast_keys_and_values(attend, lab, rows) -> None:
    """Arrays with stride 0 reached BLAS with an increment that it does not allow."""
    query, key, value = lab.draw(1, 2, rows, 5)
    for axis in range(4):
        first = (slice(None),) * axis + (slice(0, 1),)
        flat = [np.broadcast_to(array[first], array.shape) for array in (query, key, value)]
        attend.checked(query, flat[1], value)
        attend.checked(query, key, flat[2])
        attend.checked(*flat, mask=ak.Mask.causal())
