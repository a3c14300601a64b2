"""Localising: what a wrong row is instead: another row, or attention over other keys.

Nothing is guessed: each explanation is computed from the truth, and given only where it is within the bounds in every
column of the row, and where few others would be.

Axes: ``B`` batch, ``H`` query heads, ``T`` query length, ``S`` key length, ``E`` value head size.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from attnkit_conformance.cases import Case
from attnkit_conformance.crosscheck.judging import Name, Part, error_of
from attnkit_conformance.locating import common

Array = np.ndarray[Any, Any]
_MOST: Final = 4  # explanations of one row; more of them explain nothing
TILES: Final = (1, 8, 16, 32, 64, 128, 256, 512)


def explanation(case: Case, part: Part, side: Name) -> str:
    """Say what the wrong rows of an output have in common, and what the worst of them is instead."""
    error = part.error[side]
    if error is None or part.what != "output" or not (error > 1).any():
        return ""
    rows = (error > 1).any(axis=-1)
    first = tuple(int(n) for n in np.argwhere(rows)[0])
    told = [f"first at sequence {first[0]}, head {first[1]}, query {first[2]}", common(error > 1)]
    row = tuple(int(n) for n in np.unravel_index(int(error.max(axis=-1).argmax()), rows.shape))
    found = list(_explained(case, part, side, row))
    if 0 < len(found) <= _MOST:
        told.append(f"row [{', '.join(map(str, row))}] is {' or '.join(found)}")
    return "; ".join(filter(None, told))


def _explained(case: Case, part: Part, side: Name, row: tuple[int, ...]) -> Iterator[str]:
    given, tau = part.given[side], part.tau[side][row]
    if given is None or not np.isfinite(given[row]).all():
        return
    actual = given[row]

    def fits(other: Array) -> bool:
        return bool(np.isfinite(other).all()) and not (error_of(actual, other, np.maximum(tau, 1e-300)) > 1).any()

    if not actual.any():
        yield "all zeros, as if nothing had been written"
        return
    yield from _of_other_rows(part.truth, row, fits)
    yield from _of_other_keys(case, row, fits)


def _of_other_rows(truth: Array, row: tuple[int, ...], fits: Any) -> Iterator[str]:
    """Find the row among those of the other queries, heads and sequences."""
    words = ("sequence", "head", "query")
    for axis, word in enumerate(words):
        for other in range(truth.shape[axis]):
            place = (*row[:axis], other, *row[axis + 1 :])
            if other != row[axis] and not np.array_equal(truth[place], truth[row]) and fits(truth[place]):
                yield f"that of {word} {other}"


def _of_other_keys(case: Case, row: tuple[int, ...], fits: Any) -> Iterator[str]:
    """Leave out, or count twice, the keys of one tile; or stop early, or begin late."""
    b, h, i = row
    weights = case.truth.weights[b, h, i]
    value = np.asarray(case.arrays[2][b, h // (case.heads // case.kv_heads)], np.float64)
    parts = np.where((weights > 0)[:, None], weights[:, None] * np.where(weights[:, None] > 0, value, 0), 0)
    output = parts.sum(axis=0)
    for tile, keys in _tiles(case.keys):
        mass, sums = float(weights[tile].sum()), parts[tile].sum(axis=0)
        if 0 < mass < 1:
            if fits((output - sums) / (1 - mass)):
                yield f"attention without {keys}"
            if fits((output + sums) / (1 + mass)):
                yield f"attention with {keys} counted twice"
            if fits(output - sums):
                yield f"the sum without the values of {keys}, whose weights were counted"
    yield from _cut(weights, parts, fits)


def _tiles(keys: int) -> Iterator[tuple[slice, str]]:
    """Give the keys of every tile, the smallest tiles first, and what they are called; none of them twice."""
    seen = set()
    for size in TILES:
        for start in range(0, keys, size):
            stop = min(start + size, keys)
            if (start, stop) not in seen and stop - start < keys:
                seen.add((start, stop))
                yield slice(start, stop), f"keys {start}..{stop - 1}" if stop - start > 1 else f"key {start}"


def _cut(weights: Array, parts: Array, fits: Any) -> Iterator[str]:
    mass, sums = np.cumsum(weights), np.cumsum(parts, axis=0)
    total, output = mass[-1], sums[-1]
    for stop in range(1, len(weights)):
        if 0 < mass[stop - 1] < total and weights[stop] > 0:
            if fits(sums[stop - 1] / mass[stop - 1]):
                yield f"attention over the first {stop} keys alone"
            if fits((output - sums[stop - 1]) / (total - mass[stop - 1])):
                yield f"attention over the keys from {stop} on alone"
