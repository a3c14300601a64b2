"""Spans of slots, in which the tokens of a sequence lie, as host integers.

Axes: ``m`` spans, ``n`` tokens.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate, chain

import numpy as np

IntArray = np.ndarray[tuple[int, ...], np.dtype[np.int64]]
Span = tuple[int, int]


class Trail:
    """The spans of a sequence, in token order."""

    def __init__(self, spans: Sequence[Span]) -> None:
        self._spans = spans
        self._ends = [0, *accumulate(stop - start for start, stop in spans)]

    def cut(self, first: int, last: int) -> Sequence[Span]:
        """Give the spans of tokens ``[first, last)``, which are not none."""
        ends = self._ends
        low, high = bisect_right(ends, first) - 1, bisect_left(ends, last)
        part = list(self._spans[low:high])
        part[-1] = part[-1][0], part[-1][1] - (ends[high] - last)
        part[0] = part[0][0] + (first - ends[low]), part[0][1]
        return part


def edges_of(spans: Sequence[Span]) -> IntArray:
    """Give spans as an array, ``[m, 2]``."""
    return np.fromiter(chain.from_iterable(spans), np.int64, 2 * len(spans)).reshape(-1, 2)


def in_slot_order(edges: IntArray) -> IntArray:
    """Give the fewest spans with the same slots, in the order of the slots."""
    edges = edges[edges[:, 0].argsort()]
    apart = np.flatnonzero(edges[1:, 0] != edges[:-1, 1])
    return np.stack([edges[np.append(-1, apart) + 1, 0], edges[np.append(apart, -1), 1]], axis=1)


def slots_of(edges: IntArray) -> IntArray:
    """Give every slot, ``[n]``."""
    lengths = edges[:, 1] - edges[:, 0]
    skipped = edges[:, 0] - (np.cumsum(lengths) - lengths)
    return np.repeat(skipped, lengths) + np.arange(lengths.sum())


def common_step(rows: Sequence[Sequence[Span]]) -> int | None:
    """Give how many slots behind the sequence before it each one lies; ``None`` where they do not lie alike."""
    if len(rows) == 1:
        return 0
    first, second = rows[:2]
    if not first or not second:
        return None
    step = second[0][0] - first[0][0]
    alike = step >= 0 and all(_moved(first, number * step) == row for number, row in enumerate(rows))
    return step if alike else None


def _moved(spans: Sequence[Span], step: int) -> Sequence[Span]:
    return tuple((start + step, stop + step) for start, stop in spans)
