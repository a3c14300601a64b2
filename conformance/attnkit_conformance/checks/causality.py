"""What a row may not see leaves no trace in it: found by changing what is hidden (A4, A8).

Axes: ``B`` batch, ``H`` query heads, ``K`` key/value heads, ``T`` query length, ``S`` key length, ``D`` query/key head
size.
"""

from __future__ import annotations

from collections.abc import Iterator

import ml_dtypes
import numpy as np

from attnkit_conformance.cases import OTHER_DTYPES, Array, Arrays, Case, each_dtype, plain
from attnkit_conformance.checking import Checks, over
from attnkit_conformance.structures import (
    CAUSAL,
    CHUNKS,
    DENSE,
    DOCUMENTS,
    GROUPED,
    JOINED,
    LENGTHS,
    LONG,
    OFFSETS,
    PREFIXES,
    SOFTCAPPED,
    WINDOWS,
)
from attnkit_conformance.subject import Subject

FUTURE = [*CAUSAL, GROUPED[1], GROUPED[2], *LONG[:2], *each_dtype([CAUSAL[2], CAUSAL[3], GROUPED[1]], OTHER_DTYPES)]
HIDING = [
    *WINDOWS,
    *PREFIXES,
    *CHUNKS,
    *DOCUMENTS,
    *DENSE,
    *LENGTHS,
    *OFFSETS,
    *JOINED,
    *SOFTCAPPED,
    *GROUPED[3:6],
    *LONG[2:10],
]


class TestCausality(Checks):
    """A4, A8 (b): a row does not depend on the keys after it, nor on their values."""

    @over(FUTURE)
    def test_the_future_changes_nothing(self, backend: Subject, case: Case) -> None:
        """Output and LSE of a row stay as they are, bit for bit, whatever comes after it."""
        _assert_hidden_keys_change_nothing(backend, case)


class TestHiddenKeys(Checks):
    """A8 (b): keys and values that a row does not see can be anything finite; NaN and infinity too where declared."""

    @over(HIDING)
    def test_hidden_keys_change_nothing(self, backend: Subject, case: Case) -> None:
        """Output and LSE of a row stay as they are, bit for bit, for every way of hiding a key."""
        _assert_hidden_keys_change_nothing(backend, case)


class TestPadding(Checks):
    """A8 (a): what lies beyond a length can be any bits at all."""

    @over([*LENGTHS, *each_dtype(LENGTHS[1:2], OTHER_DTYPES), GROUPED[-1]])
    def test_padding_changes_nothing(self, backend: Subject, case: Case) -> None:
        """NaN, infinity and the largest numbers beyond the lengths change no bit of the result."""
        before = case.call(backend)
        for fill in (np.nan, np.inf, -np.inf, largest(case)):
            with np.errstate(all="ignore"):
                after = case.holding(padded(case, fill)).call(backend)
            backend.assert_same(case, after, before, what=f"with {fill} in the padding")


def _assert_hidden_keys_change_nothing(backend: Subject, case: Case) -> None:
    before = case.call(backend)
    for row in sorted({0, case.queries // 2, case.queries - 1}):
        for name, arrays in replaced(case, row, nan=backend.capabilities.poison == "masked"):
            with np.errstate(all="ignore"):  # the rows that do see it may overflow
                after = case.holding(arrays).call(backend)
            backend.assert_same(case, after, before, rows=row, what=f"with {name} at the keys hidden from row {row}")


def replaced(case: Case, row: int, *, nan: bool) -> Iterator[tuple[str, Arrays]]:
    """Give query, key and value with other things at the keys that no query head of a group sees from a row."""
    query, key, value = map(plain, case.arrays)
    group = case.heads // case.kv_heads
    shown = case.shown[:, :, row].reshape(case.batch, case.kv_heads, group, case.keys)
    dead = ~np.asarray(shown.any(axis=2))[..., None]
    alike = 4 * query[:, ::group, row, None, :]  # scores above those of every other key
    most = largest(case)
    fills: list[tuple[str, Array | float, Array | float]] = [
        ("similar keys", alike, 512.0),
        ("the largest numbers", most, -most),
        ("zeros", 0.0, 0.0),
    ]
    if nan:
        odd = np.arange(case.keys)[:, None] % 2 == 1
        fills.append(("NaN and infinity", np.where(odd, np.nan, np.inf), np.where(odd, -np.inf, np.nan)))
    for name, new_key, new_value in fills:
        yield name, (query, np.where(dead, new_key, key), np.where(dead, new_value, value))


def padded(case: Case, fill: float) -> Arrays:
    """Give query, key and value with ``fill`` beyond their lengths."""
    problem = case.truth.problem
    query, key, value = map(plain, case.arrays)
    rows = (np.arange(case.queries) >= problem.query_lengths[:, None])[:, None, :, None]
    keys = (np.arange(case.keys) >= problem.kv_lengths[:, None])[:, None, :, None]
    return np.where(rows, fill, query), np.where(keys, fill, key), np.where(keys, fill, value)


def largest(case: Case) -> float:
    """Give the largest number of its element type."""
    return float(ml_dtypes.finfo(case.dtype).max)  # type: ignore[no-untyped-call]  # it has no types
