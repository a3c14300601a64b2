"""Cropping: the arrays of a case cut to smaller sizes.

Axes: ``B`` batch, ``H`` query heads, ``K`` key/value heads, ``T`` query length, ``S`` key length, ``D`` query/key head
size, ``E`` value head size.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

import attnkit as ak
from attnkit_conformance.cases import Array, Arrays, Case


def cropped_arrays(arrays: Arrays, case: Case) -> Iterator[Array]:
    """Cut query, key and value to the sizes of a case; raises ``ShapeError`` where they are too small."""
    shapes = (
        (case.batch, case.heads, case.queries, case.head_dim),
        (case.batch, case.kv_heads, case.keys, case.head_dim),
        (case.batch, case.kv_heads, case.keys, case.width),
    )
    for array, shape in zip(arrays, shapes, strict=True):
        fewer = cropped(array, shape)
        if fewer.shape != shape:
            raise ak.ShapeError(f"array must be at least {list(shape)}, got {list(array.shape)}")
        yield fewer


def cropped_options(options: Mapping[str, Any], case: Case) -> dict[str, Any]:
    """Cut the arrays among options to the sizes of a case, and the lengths to what there is."""
    return {name: _option(name, option, case) for name, option in options.items()}


def cropped(array: Array, shape: Sequence[int]) -> Array:
    """Cut an array that broadcasts to some shape to a smaller shape; an axis of size 1 is left alone."""
    sizes = shape[len(shape) - array.ndim :]
    return array[tuple(slice(0, size if old > 1 else 1) for old, size in zip(array.shape, sizes, strict=True))]


def _option(name: str, option: Any, case: Case) -> Any:
    if option is None:
        return None
    match name:
        case "mask":
            return ak.Mask(tuple(_term(term, case) for term in option.terms))
        case "bias":
            return cropped(option, (case.batch, case.heads, case.queries, case.keys))
        case "alibi":
            return cropped(option, (case.batch, case.heads))
        case "sinks":
            return cropped(option, (case.heads,))
        case "query_lengths" | "kv_lengths":
            return _each(np.minimum(option, case.queries if name == "query_lengths" else case.keys), case)
        case "query_offset" | "key_offset":
            return _each(option, case)
    return option


def _term(term: tuple[Any, ...], case: Case) -> tuple[Any, ...]:
    match term:
        case ("documents", ids_q, ids_k):
            return "documents", cropped(ids_q, (case.batch, case.queries)), cropped(ids_k, (case.batch, case.keys))
        case ("dense", array):
            return "dense", cropped(array, (case.batch, case.heads, case.queries, case.keys))
    return term


def _each(numbers: Any, case: Case) -> Any:
    """Cut numbers ``[B]`` to the batch; a single number is left alone."""
    return np.asarray(numbers)[: case.batch] if np.ndim(numbers) else int(numbers)
