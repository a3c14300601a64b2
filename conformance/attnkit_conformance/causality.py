"""What a row may not see leaves no trace in it: found by changing what is hidden (A4, A8).

Axes: ``B`` batch, ``H`` query heads, ``K`` key/value heads, ``T`` query length, ``S`` key length, ``D`` query/key head
size.
"""

from __future__ import annotations

from collections.abc import Iterator

import ml_dtypes
import numpy as np

from attnkit_conformance.cases import Array, Case, each_dtype, plain
from attnkit_conformance.checking import Checks, over
from attnkit_conformance.compare import assert_equal
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
    WINDOWS,
)
from attnkit_conformance.subject import Answer, Subject

HIDING = [*CAUSAL, *WINDOWS, *PREFIXES, *CHUNKS, *DOCUMENTS, *DENSE, *OFFSETS, *JOINED, *GROUPED[1:6], LONG[0]]


class TestHiddenKeys(Checks):
    """A8 (b): keys and values that a row does not see can be anything finite; NaN and infinity too where declared."""

    @over([*HIDING, *LENGTHS, *each_dtype([CAUSAL[2], CAUSAL[3], GROUPED[1]])])
    def test_hidden_keys_change_nothing(self, backend: Subject, case: Case) -> None:
        """Whatever stands at the keys hidden from a row, output and LSE of that row stay the same bit for bit."""
        before = case.call(backend)
        for row in sorted({0, 1, case.queries // 2, case.queries - 1} & set(range(case.queries))):
            dead = ~_shown_to_group(case)[:, :, row]
            for name, query, key, value in _replaced(case, row, dead, backend.capabilities.poison == "masked"):
                with np.errstate(all="ignore"):  # the rows that do see it may overflow
                    after = case.holding(query, key, value).call(backend)
                _assert_row_equal(after, before, row, f"with {name} at the keys hidden from row {row}")


class TestPadding(Checks):
    """A8 (a): what lies beyond a length can be any bits at all."""

    @over([*LENGTHS, *each_dtype(LENGTHS[1:2]), GROUPED[-1]])
    def test_padding_changes_nothing(self, backend: Subject, case: Case) -> None:
        """NaN, infinity and the largest numbers beyond the lengths change no bit of the result."""
        before = case.call(backend)
        problem = case.truth.problem
        dead_rows = np.arange(case.queries) >= problem.query_lengths[:, None]
        dead_keys = np.arange(case.keys) >= problem.kv_lengths[:, None]
        for poison in (np.nan, np.inf, -np.inf, _largest(case)):
            with np.errstate(all="ignore"):
                after = case.holding(*_padded(case, dead_rows, dead_keys, poison)).call(backend)
            assert_equal(after.output, before.output, what=f"output with {poison} in the padding")
            if after.lse is not None and before.lse is not None:
                assert_equal(after.lse, before.lse, what=f"lse with {poison} in the padding")


def _shown_to_group(case: Case) -> Array:
    """Give the keys that any query head of a key/value head sees, ``[B, K, T, S]``."""
    shown = case.truth.problem.shown
    return shown.reshape(case.batch, case.kv_heads, -1, case.queries, case.keys).any(axis=2)


def _replaced(case: Case, row: int, dead: Array, poison: bool) -> Iterator[tuple[str, Array, Array, Array]]:
    """Give query, key and value with other things at the dead keys ``[B, K, S]``."""
    query, key, value = map(plain, case.arrays)
    alike = 4 * query[:, :: case.heads // case.kv_heads, row, None, :]  # scores above those of every other key
    largest = _largest(case)
    fills = [("similar keys", alike, 512.0), ("the largest numbers", largest, -largest), ("zeros", 0.0, 0.0)]
    if poison:
        fills += [("NaN", np.nan, np.nan), ("infinity", np.inf, -np.inf)]
    for name, new_key, new_value in fills:
        yield name, query, np.where(dead[..., None], new_key, key), np.where(dead[..., None], new_value, value)


def _padded(case: Case, dead_rows: Array, dead_keys: Array, poison: float) -> tuple[Array, Array, Array]:
    dead = (dead_rows, dead_keys, dead_keys)
    arrays = [np.where(rows[:, None, :, None], poison, plain(a)) for rows, a in zip(dead, case.arrays, strict=True)]
    return arrays[0], arrays[1], arrays[2]


def _largest(case: Case) -> float:
    return float(ml_dtypes.finfo(case.dtype).max)


def _assert_row_equal(after: Answer, before: Answer, row: int, what: str) -> None:
    assert_equal(after.output[:, :, row], before.output[:, :, row], what=f"output {what}")
    if after.lse is not None and before.lse is not None:
        assert_equal(after.lse[:, :, row], before.lse[:, :, row], what=f"lse {what}")
