"""Spans of slots, in which the tokens of a sequence lie, as host integers."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate

import numpy as np

IntArray = np.ndarray[tuple[int, ...], np.dtype[np.int64]]
Span = tuple[int, int]


def cut(spans: Sequence[Span], first: int, last: int) -> Sequence[Span]:
    """Give the spans of tokens ``[first, last)``."""
    if len(spans) == 1:
        start = spans[0][0]
        return ((start + first, start + last),) if first < last else ()
    ends = [0, *accumulate(stop - start for start, stop in spans)]
    low, high = bisect_right(ends, first) - 1, bisect_left(ends, last)
    if first >= last:
        return ()
    part = list(spans[low:high])
    part[-1] = part[-1][0], part[-1][1] - (ends[high] - last)
    part[0] = part[0][0] + (first - ends[low]), part[0][1]
    return part


def in_slot_order(spans: Sequence[Span]) -> Sequence[Span]:
    """Give the fewest spans with the same slots, in the order of the slots."""
    if len(spans) == 1:
        return spans
    joined: list[Span] = []
    for start, stop in sorted(spans):
        if joined and joined[-1][1] == start:
            joined[-1] = joined[-1][0], stop
        else:
            joined.append((start, stop))
    return joined


def slots_of(spans: Iterable[Span]) -> IntArray:
    """Give every slot, ``[n]``."""
    edges = np.array(list(spans), np.int64).reshape(-1, 2)
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
