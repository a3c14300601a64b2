"""Probes without a tolerance: inputs for which the answer is a whole number, so that no fault is small.

Axes: ``B`` batch, ``H`` query heads, ``K`` key/value heads, ``T`` query length, ``S`` key length, ``D`` query/key head
size, ``E`` value head size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from attnkit.numerics import Numerics
from attnkit_conformance.cases import OTHER_DTYPES, Array, Case, each_dtype, plain
from attnkit_conformance.checking import Checks, over
from attnkit_conformance.compare import assert_equal, assert_within
from attnkit_conformance.measuring import Mismatch
from attnkit_conformance.structures import CAUSALLY, GROUPED, LONG, SOFTCAPPED, STRUCTURES
from attnkit_conformance.subject import Subject

HEAD_COUNTS = [
    replace(case, heads=heads, kv_heads=kv_heads)
    for case in (
        Case(label="plain", queries=5, keys=40),
        Case(label="causal", queries=40, keys=40, options=CAUSALLY),
        Case(label="decode", queries=1, keys=40),
    )
    for heads, kv_heads in ((2, 2), (4, 2), (6, 3), (4, 1), (6, 2))
]


class TestAttendance(Checks):
    """Q = 0 and V = identity: every visible key weighs the same, so that the output is the mask itself (A3-A5)."""

    @over([*STRUCTURES, *SOFTCAPPED, *LONG, *each_dtype(GROUPED[1:2], OTHER_DTYPES)])
    def test_exactly_the_visible_keys_take_part(self, backend: Subject, case: Case) -> None:
        """A4: the support of the weights is the visibility, and equal scores weigh the same."""
        weights = _attendance(backend, case)
        assert_equal(weights > 0, case.shown, what="support of the weights")
        expected = case.shown / np.maximum(case.shown.sum(axis=-1, keepdims=True), 1)
        assert_within(weights, expected, backend.slack(case) * expected, what="weights")


class TestOneHot(Checks):
    """One key scores so far above the others that its value comes out: a decoder for what is where."""

    @over([*STRUCTURES, *LONG, *each_dtype(GROUPED[1:2], OTHER_DTYPES)])
    def test_the_chosen_key_comes_out(self, backend: Subject, case: Case) -> None:
        """A1-A5, A9: the value of the key that each row asks for, the first and the last visible one among them."""
        codes, digits, seen = _codes(case), _digits(case), case.seeing[..., None]
        sequence, head = np.arange(case.batch)[:, None, None], np.arange(case.heads)[:, None]
        place = (sequence, head // (case.heads // case.kv_heads), _targets(case))
        query = np.where(seen, 1024 * codes[place], 0)
        asked = replace(case, options={**case.options, "scale": 1.0}).holding((query, codes, digits))
        output, expected = asked.call(backend).output, np.where(seen, digits[place], 0)
        numerics = backend.numerics(case.dtype)
        bound = _absorbed(expected, asked.tolerance(numerics).output, numerics)
        try:
            assert_within(output, expected, bound, what="value of the chosen key")
        except Mismatch as error:
            message = f"{error}; {_decoded(plain(output), expected, digits, case)}"
            raise Mismatch(message, error.what, error.actual, error.expected, error.tau) from error


class TestGroupedHeads(Checks):
    """A9: query head ``h`` uses key/value head ``h // (H // K)``."""

    @over(HEAD_COUNTS)
    def test_every_head_reads_its_own(self, backend: Subject, case: Case) -> None:
        """With values that are constant in every key/value head, the output is that constant."""
        tags = 1 + np.arange(case.kv_heads) + case.kv_heads * np.arange(case.batch)[:, None]
        query, key, value = case.arrays
        tagged = case.holding((query, key, np.broadcast_to(tags[:, :, None, None], value.shape)))
        expected = np.repeat(tags, case.heads // case.kv_heads, axis=1)[:, :, None, None]
        output = tagged.call(backend).output
        assert_within(output, np.broadcast_to(expected, case.output_shape), 0.25, what="tag of the head")


class TestShift(Checks):
    """A12: adding one vector to every key moves all scores of a row alike, which changes nothing but the LSE."""

    @over(each_dtype([Case(label="shift", queries=9, keys=40, options=CAUSALLY)]))
    def test_a_common_shift_of_the_scores_changes_nothing(self, backend: Subject, case: Case) -> None:
        """The scores move by more than what ``exp`` can take, up in some rows and down in others."""
        query, key, value = (plain(array).copy() for array in case.arrays)
        query[..., 0], key[..., 0] = np.where(query[..., 0] < 0, -4, 4), 0
        still = case.holding((query, key, value))
        key[..., 0] = 256
        moved = case.holding((query, key, value))
        before, after = still.call(backend), moved.call(backend)
        backend.assert_true(moved, after)
        apart = sum(backend.tolerance(part).output for part in (still, moved))
        assert_within(after.output, plain(before.output), apart, what="output after the shift")


def _attendance(backend: Subject, case: Case) -> Array:
    """Read off the weights ``[B, H, T, S]``, block by block of as many keys as a value has columns."""
    query, key, _ = case.arrays
    weights = np.zeros((case.batch, case.heads, case.queries, case.keys))
    tags = (1 + np.arange(case.kv_heads)) * (1 + 2 * np.arange(case.batch))[:, None]
    own = np.repeat(tags, case.heads // case.kv_heads, axis=1)[:, :, None, None]
    for start, value in _identities(case):
        asked = case.holding((np.zeros_like(query), key, value * tags[:, :, None, None]))
        block = weights[..., start : start + case.width]
        block[...] = (plain(asked.call(backend).output) / own)[..., : block.shape[-1]]
    return weights


def _identities(case: Case) -> Iterator[tuple[int, Array]]:
    """Give values that tell a block of keys apart, and the number of its first key."""
    for start in range(0, case.keys, case.width):
        value = np.zeros((case.batch, case.kv_heads, case.keys, case.width))
        columns = np.arange(min(case.width, case.keys - start))
        value[:, :, start + columns, columns] = 1
        yield start, value


def _absorbed(expected: Array, tau: Array, numerics: Numerics) -> Array:
    """Give the bounds of values that the output type holds exactly: 0 where rounding to it must take every error away.

    It does where the error before it, ``tau - u_o |o|``, is less than half of the smallest gap beside the value.
    """
    rounding = numerics.u_o * np.abs(expected)
    return np.where(tau - rounding < rounding / 2, 0.0, tau)


def _decoded(output: Array, expected: Array, digits: Array, case: Case) -> str:
    """Say which key came out in the row that is furthest from its own."""
    b, h, i = _place(np.abs(output - expected).max(axis=-1), np.argmax)
    wanted = (b, h // (case.heads // case.kv_heads), int(_targets(case)[b, h, i]))
    found = _place(np.abs(digits - output[b, h, i]).max(axis=-1), np.argmin)
    row = f"row {i} of head {h} in sequence {b}"
    if found == wanted or not case.seeing[b, h, i]:
        return f"{row} is off, yet nearest to what it must be"
    return f"{row} must read {_named(wanted)}; what came is nearest to {_named(found)}"


def _place(apart: Array, choose: Callable[[Array], Any]) -> tuple[int, ...]:
    """Give the index of the largest or the smallest distance; what is no number is infinitely far."""
    place = np.unravel_index(int(choose(np.where(np.isfinite(apart), apart, np.inf))), apart.shape)
    return tuple(map(int, place))


def _named(place: tuple[int, ...]) -> str:
    sequence, head, key = place
    return f"key {key} of head {head} in sequence {sequence}"


def _codes(case: Case) -> Array:
    """Give every key of every head a code of ±1 of its own, ``[B, K, S, D]``: its number in binary, then noise."""
    shape = (case.batch, case.kv_heads, case.keys, case.head_dim)
    codes = case.rng("codes").choice([-1.0, 1.0], shape)
    bits = np.arange(min(case.head_dim, max(1, (case.keys - 1).bit_length())))
    codes[..., bits] = np.where(np.arange(case.keys)[:, None] >> bits & 1, 1.0, -1.0)
    return codes


def _digits(case: Case) -> Array:
    """Give values ``[B, K, S, E]`` of small whole numbers that tell keys, heads and sequences apart."""
    shape = (case.batch, case.kv_heads, case.keys, case.width)
    return case.rng("digits").integers(0, 16, shape).astype(np.float64)


def _targets(case: Case) -> Array:
    """Choose a visible key for every row, ``[B, H, T]``: the first, the last or any, in turn; 0 where there is none."""
    rng = case.rng("targets")
    targets = np.zeros(case.shown.shape[:3], np.int64)
    for number, place in enumerate(np.ndindex(targets.shape)):
        keys = np.flatnonzero(case.shown[place])
        if keys.size:
            targets[place] = (keys[0], keys[-1], rng.choice(keys))[number % 3]
    return targets
