"""Laws of attention: what must not change, or change in a known way, when a call is changed (A2-A11).

Axes: ``B`` batch, ``H`` query heads, ``K`` key/value heads, ``T`` query length, ``S`` key length, ``D`` query/key head
size, ``E`` value head size.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from attnkit_conformance import partners
from attnkit_conformance.cases import OTHER_DTYPES, Array, Case, each_dtype, plain
from attnkit_conformance.checking import Checks, over
from attnkit_conformance.compare import assert_within
from attnkit_conformance.measuring import held
from attnkit_conformance.pairs import Law, Pair
from attnkit_conformance.structures import CAUSALLY, causal, chunked, ids, keep, prefix, window
from attnkit_conformance.subject import Subject

_BIAS = np.random.default_rng(3).uniform(-1, 1, (2, 2, 9, 17)).astype(np.float32)
_SINKS = np.array([0.5, -1.0], np.float32)
_SLOPES = np.array([1.0, 0.25], np.float32)


def _law(
    label: str, partner: Callable[[Case], Pair], bits: str = "", sizes: dict[str, Any] | None = None, **options: Any
) -> Law:
    fields = {"queries": 9, "keys": 17, **(sizes or {})}
    return Law(label=label, partner=partner, bits=bits, options=options, **fields)


SQUARE = {"queries": 24, "keys": 24}
GROUPED = {"heads": 4, "kv_heads": 2}
KEYS = [
    _law("keys-permuted", partners.keys_permuted),
    _law("keys-permuted-long", partners.keys_permuted, sizes={"queries": 3, "keys": 161}),
    _law("keys-permuted-dense", partners.keys_permuted, mask=keep(2, 2, 9, 17)),
    _law("keys-permuted-bias", partners.keys_permuted, bias=_BIAS),
    _law("keys-repeated", partners.keys_repeated),
    _law("keys-repeated-long", partners.keys_repeated, sizes={"keys": 50}),
    _law("keys-weighted", partners.keys_weighted),
    _law("dead-key-bias", partners.dead_key_by_bias),
    _law("dead-key-mask", partners.dead_key_by_mask),
    _law("dead-key-length", partners.dead_key_by_length),
]
ROWS = [
    _law("queries-permuted", partners.queries_permuted),
    _law("queries-permuted-dense", partners.queries_permuted, mask=keep(2, 2, 9, 17), bias=_BIAS),
    _law("sequences-permuted", partners.sequences_permuted, bits="batch_invariant", sizes={"batch": 5}),
    _law("sequences-permuted-lengths", partners.sequences_permuted, kv_lengths=np.array([17, 4])),
    _law("causal-prefix", partners.causal_prefix, sizes=SQUARE, **CAUSALLY),
    _law("causal-prefix-window", partners.causal_prefix, sizes=SQUARE, mask=window(5)),
]
HEADS = [
    _law("heads-permuted", partners.heads_permuted, sizes={"heads": 3, "kv_heads": 3}),
    _law("heads-permuted-grouped", partners.heads_permuted, sizes={"heads": 6, "kv_heads": 3}),
    _law("heads-permuted-terms", partners.heads_permuted, sinks=_SINKS, alibi=_SLOPES),
    _law("heads-repeated", partners.heads_repeated, sizes=GROUPED, **CAUSALLY),
    _law("heads-repeated-decode", partners.heads_repeated, sizes={"heads": 6, "kv_heads": 1, "queries": 1, "keys": 40}),
]
FEATURES = each_dtype(
    [
        _law("scale-moved", partners.scale_moved),
        _law("size-moved", partners.size_moved, bits="deterministic"),
        _law("signs-flipped", partners.signs_flipped, bits="deterministic"),
        _law("features-permuted", partners.features_permuted),
        _law("features-padded", partners.features_padded),
    ]
)
VALUES = each_dtype(
    [
        _law("values-scaled", partners.values_scaled, bits="deterministic"),
        _law("values-moved", partners.values_moved, **CAUSALLY),
        _law("columns-changed", partners.columns_changed, bits="deterministic"),
    ]
)
MASKS = [
    _law("as-booleans-causal", partners.as_booleans, mask=causal()),
    _law("as-booleans-causal-high", partners.as_booleans, sizes={"queries": 17, "keys": 9}, mask=causal()),
    _law("as-booleans-window", partners.as_booleans, mask=window(4, 2)),
    _law("as-booleans-prefix", partners.as_booleans, mask=prefix(11)),
    _law("as-booleans-chunked", partners.as_booleans, mask=chunked(5)),
    _law("as-booleans-documents", partners.as_booleans, mask=ids((9,), (17,))),
    _law("booleans-as-bias", partners.booleans_as_bias, mask=keep(9, 17)),
    _law("causal-as-bias", partners.booleans_as_bias, mask=causal()),
    _law("wide-window", partners.wide_window, sizes=SQUARE, mask=causal()),
    _law("masks-in-one", partners.masks_in_one),
]
TERMS = [
    _law("bias-raised", partners.bias_raised, bias=_BIAS),
    _law("sink-as-key", partners.sink_as_key, sinks=_SINKS),
    _law("no-sink", partners.no_sink),
    _law("alibi-as-bias", partners.alibi_as_bias, alibi=_SLOPES),
    _law("wide-cap", partners.wide_cap),
]
PLAIN = Case(label="plain", queries=9, keys=17)
VISIBLE = [
    PLAIN,
    replace(PLAIN, label="causal", options=CAUSALLY),
    replace(PLAIN, label="window", options={"mask": window(3)}),
    replace(PLAIN, label="dense", options={"mask": keep(2, 2, 9, 17)}),
    replace(PLAIN, label="softcap", options={"softcap": 1.5}),
    replace(PLAIN, label="bias", options={"bias": _BIAS}),
    replace(PLAIN, label="grouped", heads=4),
    replace(PLAIN, label="peaked", draw="peaked", keys=161),
    *each_dtype([replace(PLAIN, label="long", queries=5, keys=161)], OTHER_DTYPES),
]
ONE_KEY = each_dtype(
    [
        Case(label="one-key", queries=1, keys=1, head_dim=64),
        Case(label="one-key-rows", queries=7, keys=1, draw="huge"),
        Case(label="window1", queries=7, keys=9, options={"mask": window(1)}),
    ]
)


class TestLaws(Checks):
    """Two calls of which the answer to one says what the answer to the other must be."""

    @over(KEYS)
    def test_keys(self, backend: Subject, case: Law) -> None:
        """A1, A7, A10: keys in another order, several times, weighted by a bias, and dead ones beside them."""
        case.assert_holds(backend)

    @over(ROWS)
    def test_rows_and_sequences(self, backend: Subject, case: Law) -> None:
        """A3, A14: queries and sequences in another order; the first tokens alone, under causal masks."""
        case.assert_holds(backend)

    @over(HEADS)
    def test_heads(self, backend: Subject, case: Law) -> None:
        """A9: heads in another order; grouped heads against keys and values repeated for each."""
        case.assert_holds(backend)

    @over(FEATURES)
    def test_features(self, backend: Subject, case: Law) -> None:
        """A1: scores are dot products, whatever the order, the signs and the powers of two in them."""
        case.assert_holds(backend)

    @over(VALUES)
    def test_values(self, backend: Subject, case: Law) -> None:
        """A1: the output is linear in the values, and each column in its own."""
        case.assert_holds(backend)

    @over(MASKS)
    def test_masks(self, backend: Subject, case: Law) -> None:
        """A4-A6: a mask against what it shows, as booleans and as a bias."""
        case.assert_holds(backend)

    @over(TERMS)
    def test_terms_of_the_scores(self, backend: Subject, case: Law) -> None:
        """A2, A10: terms against what they stand for, and those that are neutral against none."""
        case.assert_holds(backend)


class TestAverages(Checks):
    """A1: an output is an average of the values that its row sees."""

    @over(VISIBLE)
    def test_between_the_least_and_the_largest(self, backend: Subject, case: Case) -> None:
        """Each element lies between the least and the largest of the values that it is made of."""
        output, tau = plain(case.call(backend).output), backend.tolerance(case).output
        value = np.repeat(plain(case.arrays[2]), case.heads // case.kv_heads, axis=1)[:, :, None]
        shown, seen = case.shown[..., None], case.seeing[..., None]
        least = np.where(seen, np.where(shown, value, np.inf).min(axis=3), 0)
        most = np.where(seen, np.where(shown, value, -np.inf).max(axis=3), 0)
        inside = np.clip(np.nan_to_num(output), least, most)
        assert_within(output, inside, tau, what="output that must lie between its values")

    @over(VISIBLE)
    def test_constant_values(self, backend: Subject, case: Case) -> None:
        """The average of equal values is that value, for any weights."""
        query, key, value = case.arrays
        same = case.holding((query, key, np.full_like(value, 1.75)))
        numerics = backend.numerics(case.dtype)
        expected = np.where(case.seeing[..., None], 1.75, 0) * np.ones(case.width)
        assert_within(same.call(backend).output, expected, same.tolerance(numerics).output, what="average of 1.75")

    @over(ONE_KEY)
    def test_one_key_gives_its_value(self, backend: Subject, case: Case) -> None:
        """With a single key in sight the output is its value, bit for bit where rounding it absorbs the rest."""
        numerics = backend.numerics(case.dtype)
        chosen = np.arange(case.queries) + case.keys - case.queries if case.options else np.zeros(case.queries, int)
        expected = plain(case.arrays[2])[:, :, chosen]
        rest = np.abs(expected) * (numerics.u_p + 4 * numerics.u_a)
        absorbed = rest < np.abs(expected) * numerics.u_o / 2
        bound = np.where(absorbed, 0, rest + numerics.u_o * np.abs(expected))
        assert_within(case.call(backend).output, expected, bound, what="value of the only key")

    @over([replace(PLAIN, label="linear", keys=40), replace(PLAIN, label="linear-causal", options=CAUSALLY)])
    def test_sums_of_values(self, backend: Subject, case: Case) -> None:
        """The output of ``2 V + 3 W`` is twice that of ``V`` and three times that of ``W``."""
        one = partners.dyadic(case)
        query, key, value = one.arrays
        two = one.holding((query, key, plain(value)[:, ::-1, ::-1]))
        both = one.holding((query, key, 2 * plain(value) + 3 * plain(two.arrays[2])))
        answers = [plain(part.call(backend).output) for part in (one, two, both)]
        taus = [backend.tolerance(part).output for part in (one, two, both)]
        bound = 2 * taus[0] + 3 * taus[1] + taus[2]
        assert_within(answers[2], 2 * answers[0] + 3 * answers[1], bound, what="output of 2 V + 3 W")

    @over([replace(PLAIN, label="grouped", heads=4), replace(PLAIN, label="grouped-causal", heads=4, options=CAUSALLY)])
    def test_heads_are_not_dealt_out(self, backend: Subject, case: Case) -> None:
        """A9: the heads of a group lie together: the answer is not that of keys and values repeated in turn."""
        query, key, value = case.arrays
        turns = case.heads // case.kv_heads
        dealt = partners.with_options(case, (query, np.tile(key, (1, turns, 1, 1)), np.tile(value, (1, turns, 1, 1))))
        bound = backend.tolerance(case).output
        _assert_other(plain(case.call(backend).output), dealt.truth.output, bound)


def _assert_other(output: Array, wrong: Array, bound: Array) -> None:
    held("output against that of heads dealt out in turn", output.size)
    if not (np.abs(output - wrong) > bound).any():
        raise AssertionError("query head h reads key/value head h % K; it must read h // (H // K)")
