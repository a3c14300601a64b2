"""Packed cases know their sequences, and which of them is refused first."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import attnkit as ak
from attnkit_conformance.checks.packed import EMPTY, NOTHING, SEQUENCES, PackedCase
from attnkit_conformance.selftest.plain import EVERYTHING, Plain, unregistered

EVERY = [*SEQUENCES, *EMPTY]


@pytest.mark.parametrize("case", EVERY, ids=str)
def test_its_sequences_are_its_tokens(case: PackedCase) -> None:
    query, key, value = case.arrays
    for alone, (queries, keys) in zip(case.alone, case.cuts(), strict=True):
        assert alone.output_shape == (1, case.heads, queries.stop - queries.start, case.width)
        for array, whole, cut in zip(alone.arrays, (query, key, value), (queries, keys, keys), strict=True):
            np.testing.assert_array_equal(array, whole[:, :, cut])
    assert sum(alone.queries for alone in case.alone) == case.queries


def test_a_limit_on_keys_counts_for_each_sequence() -> None:
    case = next(case for case in SEQUENCES if case.label == "packed-long")
    assert case.keys == 202
    assert case.undeclared(replace(EVERYTHING, max_key_length=256)) == ()
    assert case.undeclared(replace(EVERYTHING, max_key_length=128)) == ("max_key_length",)
    spread = replace(case, query_counts=(70, 70, 62), key_counts=(70, 70, 62))
    assert spread.undeclared(replace(EVERYTHING, max_key_length=128)) == ()


def test_no_sequences_are_asked_about_as_a_whole() -> None:
    without = replace(NOTHING[0], heads=4)
    assert without.undeclared(ak.Capabilities()) == ("gqa",)


def test_names_tell_cases_apart() -> None:
    assert len({str(case) for case in [*EVERY, *NOTHING]}) == len(EVERY) + len(NOTHING)


def test_what_is_asked_is_attention_packed() -> None:
    """The output of the case is that of the public function, tokens first there and heads first here."""
    case, subject = SEQUENCES[1], unregistered(Plain())
    query, key, value = (array[0].swapaxes(0, 1) for array in case.arrays)
    expected = ak.attention_packed(query, key, value, *case.cumulative, **case.options, backend=Plain())
    np.testing.assert_array_equal(case.call(subject).output[0].swapaxes(0, 1), expected)
