"""What a wrong row is instead is said where it is certain."""

from __future__ import annotations

import numpy as np
import pytest

from attnkit_conformance.crosscheck.judging import judge
from attnkit_conformance.crosscheck.localising import explanation
from attnkit_conformance.crosscheck.requests import requests
from attnkit_conformance.crosscheck.sides import Live
from attnkit_conformance.selftest.plain import Plain
from attnkit_conformance.subject import Answer


def without(case, tile):
    weights = case.truth.weights.copy()
    weights[..., tile] = 0
    return (weights / weights.sum(axis=-1, keepdims=True)) @ case.arrays[2].astype(np.float64)


def twice(case, tile):
    weights = case.truth.weights.copy()
    weights[..., tile] *= 2
    return (weights / weights.sum(axis=-1, keepdims=True)) @ case.arrays[2].astype(np.float64)


def moved(case, axis):
    return np.roll(case.truth.output, 1, axis)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda case: without(case, slice(64, 128)), "attention without keys 64..127"),
        (lambda case: without(case, slice(37, 38)), "attention without key 37"),
        (lambda case: without(case, slice(100, None)), "attention over the first 100 keys alone"),
        (lambda case: without(case, slice(0, 70)), "attention over the keys from 70 on alone"),
        (lambda case: twice(case, slice(32, 64)), "attention with keys 32..63 counted twice"),
        (lambda case: moved(case, 1), "that of head"),
        (lambda case: moved(case, 2), "that of query"),
        (lambda case: moved(case, 0), "that of sequence"),
        (lambda case: 0 * case.truth.output, "all zeros, as if nothing had been written"),
    ],
)
def test_what_a_wrong_row_is(change, words) -> None:
    (case,) = requests("b2h3t5s140d16", ("float32",), 2)
    side = Live(Plain())
    answer = Answer(change(case).astype(np.float32), None)
    judgement = judge(case, {"A": answer, "B": side.answer(case)}, {n: side.numerics("float32") for n in ("A", "B")})
    text = explanation(case, judgement.parts[0], "A")
    assert text.startswith("first at sequence 0, head 0, query 0")
    assert words in text


def test_nothing_is_said_of_noise() -> None:
    (case,) = requests("b2h3t5s140d16", ("float32",), 2)
    side = Live(Plain())
    noise = case.truth.output + np.random.default_rng(0).standard_normal(case.output_shape)
    answer = Answer(noise.astype(np.float32), None)
    judgement = judge(case, {"A": answer, "B": side.answer(case)}, {n: side.numerics("float32") for n in ("A", "B")})
    assert explanation(case, judgement.parts[0], "A") == "first at sequence 0, head 0, query 0"
    assert explanation(case, judgement.parts[0], "B") == ""
