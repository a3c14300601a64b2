"""Simplifying: other numbers for a case: none, signs, whole ones, fewer rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np

from attnkit_conformance.cases import Array, Case, plain
from attnkit_conformance.gradient_cases import GradientCase


def simple_options(case: Case) -> Iterator[Case]:
    """Put zeros or whole numbers in arrays of floats among the options."""
    for name, option in case.options.items():
        if isinstance(option, np.ndarray) and option.dtype.kind == "f":
            for simple in _simple(option):
                changed = replace(case, options={**case.options, name: simple.astype(option.dtype)})
                yield changed.holding(case.arrays)


def simple_numbers(case: Case) -> Iterator[Case]:
    """Put zeros or whole numbers in query, key, value, or cotangents."""
    for n, array in enumerate(case.arrays):
        for simple in _simple(plain(array)):
            yield _holding(case, (*case.arrays[:n], simple, *case.arrays[n + 1 :]))
    if isinstance(case, GradientCase):
        for simple in _simple(plain(case.cotangents[0])):
            yield case.weighing(simple)


def fewer_rows(case: Case) -> Iterator[Case]:
    """Zero rows of query, key or value: halves, then quarters, down to single ones."""
    for n, array in enumerate(case.arrays):
        rows = plain(array).reshape(-1, array.shape[-1])
        filled = np.flatnonzero(rows.any(axis=1))
        for part in _halves(filled):
            fewer = rows.copy()
            fewer[part] = 0
            yield _holding(case, (*case.arrays[:n], fewer.reshape(array.shape), *case.arrays[n + 1 :]))


def _holding(case: Case, arrays: Iterable[Array]) -> Case:
    """Give the case with other numbers, and with the cotangents that it has."""
    other = case.holding(arrays)
    if isinstance(case, GradientCase):
        other.__dict__["cotangents"] = case.cotangents
    return other


def _simple(array: Array) -> Iterator[Array]:
    """Give simpler numbers in place of those that there are: none, signs, whole ones."""
    finite = np.isfinite(array)
    for change in (np.zeros_like, np.sign, np.round):
        simple = np.where(finite, change(np.where(finite, array, 0)), array)
        if not np.array_equal(simple, array, equal_nan=True):
            yield simple


def _halves(places: Array, most: int = 16) -> Iterator[Array]:
    """Give halves of the places, then quarters, and so on; ``_simple`` tries all of them together."""
    parts = 2
    while parts < 2 * min(len(places), most):
        yield from filter(len, np.array_split(places, parts))
        parts *= 2
