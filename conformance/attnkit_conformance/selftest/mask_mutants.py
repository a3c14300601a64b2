"""Faults in who sees whom: masks, positions, lengths, heads.

``p`` is the position of a query, ``j`` that of a key.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import attnkit as ak
from attnkit_conformance.selftest.faults import fault, first
from attnkit_conformance.selftest.plain import Array, Plain


def from_row_zero(self: Plain, operands: ak.Operands) -> tuple[Array, Array]:
    """Top-left alignment: query 0 stands on key 0, whatever the lengths."""
    start = 0 if operands.query_offset is None else operands.query_offset[:, None, None, None]
    return np.arange(operands.query_length)[:, None] + start, operands.positions()[1]


def from_zero(positions: Array) -> Array:
    """Count positions from the first one, as if there were no offset."""
    return positions - positions.min() if positions.size else positions


def windows(left: int = 0, right: int = 0) -> Any:
    """Move the ends of windows, where they have any."""

    def window(self: Plain, p: Array, j: Array, l_: int | None, r: int | None) -> Array:
        return Plain.window(self, p, j, None if l_ is None else l_ + left, None if r is None else r + right)

    return window


def lengths(change: Any) -> Any:
    """Take other lengths than were given."""
    return lambda self, n, size: Plain.valid(self, change(n) if n is not None and n.size else n, size)


CAUSAL = [
    fault("causal_loose", "TestAttendance", causal=lambda self, p, j: j <= p + 1),
    fault("causal_strict", "TestAttendance", causal=lambda self, p, j: j < p),
    fault("causal_topleft", "TestAttendance", positions=from_row_zero),
    fault("causal_ignored", "TestCausality", causal=lambda self, p, j: p == p),
    fault("causal_leaks_the_next_key", "TestCausality", causal=lambda self, p, j: j <= p + 1),
    fault("causal_for_the_first_head_only", "TestCausality",
          causal=lambda self, p, j: (j <= p) | (np.arange(2)[:, None, None] > 0)),
    fault("causal_in_whole_tiles", "TestCausality", causal=lambda self, p, j: j // 16 <= p // 16),
    fault("causal_skips_tiles_it_only_touches", "TestAttendance",
          causal=lambda self, p, j: (j <= p) & ~((j == p) & (p % 16 == 0))),
    fault("causal_skips_large_tiles_it_only_touches", "TestAttendance",
          causal=lambda self, p, j: (j <= p) & ~((j == p) & (p % 128 == 0))),
    fault("causal_in_large_tiles", "TestCausality", causal=lambda self, p, j: (j <= p) | ((j > 1151) & (p > 1151))),
]  # fmt: skip

MASKS = [
    fault("window_wide", "TestAttendance", window=windows(left=1)),
    fault("window_narrow", "TestOneHot", window=windows(left=-1)),
    fault("window_right_wide", "TestHiddenKeys", window=windows(right=1)),
    fault("window_right_narrow", "TestAttendance", window=windows(right=-1)),
    fault("window_ignored", "TestHiddenKeys", window=lambda self, p, j, left, right: p == p),
    fault("window_symmetric", "TestAttendance",
          window=lambda self, p, j, left, right: Plain.window(self, p, j, left, left)),
    fault("window_no_offset", "TestAttendance",
          window=lambda self, p, j, left, right: Plain.window(self, from_zero(p), j, left, right)),
    fault("prefix_wide", "TestAttendance", prefix=lambda self, p, j, n: (j <= n) | (j <= p)),
    fault("prefix_narrow", "TestAttendance", prefix=lambda self, p, j, n: (j < n - 1) | (j <= p)),
    fault("prefix_ignored", "TestOneHot", prefix=lambda self, p, j, n: j <= p),
    fault("prefix_without_causal", "TestHiddenKeys", prefix=lambda self, p, j, n: p == p),
    fault("chunk_off_by_one", "TestAttendance", chunked=lambda self, p, j, n: (p + 1) // n == (j + 1) // n),
    fault("chunk_wide", "TestHiddenKeys", chunked=lambda self, p, j, n: abs(p // n - j // n) <= 1),
    fault("chunk_no_offset", "TestAttendance", chunked=lambda self, p, j, n: from_zero(p) // n == from_zero(j) // n),
    fault("documents_ignored", "TestHiddenKeys", documents=lambda self, a, b: np.True_),
    fault("documents_batch0", "TestAttendance",
          documents=lambda self, a, b: Plain.documents(self, first(a, 0), first(b, 0))),
    fault("documents_ordered", "TestAttendance",
          documents=lambda self, a, b: a[:, None, :, None] >= b[:, None, None, :]),
    fault("dense_inverted", "TestAttendance", dense=lambda self, array: ~array),
    fault("dense_batch0", "TestAttendance", dense=lambda self, array: first(array, 0)),
    fault("dense_head0", "TestHiddenKeys", dense=lambda self, array: first(array, 1)),
    fault("dense_row0", "TestOneHot", dense=lambda self, array: first(array, 2)),
    fault("dense_ignored", "TestHiddenKeys", dense=lambda self, array: np.True_),
]  # fmt: skip

PLACES = [
    fault("offsets_ignored", "TestAttendance",
          positions=lambda self, operands: operands._replace(query_offset=None, key_offset=None).positions()),
    fault("key_offset_ignored", "TestMerge",
          positions=lambda self, operands: operands._replace(key_offset=None).positions()),
    fault("offset_of_batch0", "TestAttendance",
          positions=lambda self, operands: tuple(
              first(p, 0) if p.ndim == 4 and len(p) else p for p in operands.positions())),
    fault("lengths_ignored", "TestPadding", valid=lambda self, n, size: np.ones((1, size), bool)),
    fault("lengths_plus_one", "TestPadding", valid=lengths(lambda n: n + 1)),
    fault("lengths_minus_one", "TestAttendance", valid=lengths(lambda n: n - 1)),
    fault("lengths_batch0", "TestAttendance", valid=lengths(lambda n: n[:1])),
    fault("lengths_longest", "TestPadding", valid=lengths(lambda n: np.full_like(n, n.max()))),
    fault("alignment_ignores_lengths", "TestAttendance",
          positions=lambda self, operands: operands._replace(query_lengths=None, kv_lengths=None).positions()),
]  # fmt: skip

HEADS = [
    fault("gqa_modulo", "TestGroupedHeads", key_head=lambda self, h, request: h % request.num_kv_heads),
    fault("gqa_head0", "TestGroupedHeads", key_head=lambda self, h, request: 0 * h),
    fault("gqa_key_modulo", "TestOneHot", key_head=lambda self, h, request: h % request.num_kv_heads,
          value_head=lambda self, h, request: h // request.group),
    fault("value_next_head", "TestGroupedHeads",
          value_head=lambda self, h, request: (h // request.group + 1) % request.num_kv_heads),
    fault("batch0_broadcast", "TestAttendance",
          read=lambda self, query, key, value: (query, key[[0] * len(key)], value[[0] * len(value)])),
]  # fmt: skip

MASK_MUTANTS = [*CAUSAL, *MASKS, *PLACES, *HEADS]
