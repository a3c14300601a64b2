"""Differences of definition are told by name: each convention, and no other, explains the backend that has it."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

import attnkit as ak
from attnkit import reference
from attnkit_conformance.crosscheck import crosscheck
from attnkit_conformance.crosscheck.conventions import CONVENTIONS
from attnkit_conformance.crosscheck.requests import requests
from attnkit_conformance.selftest.plain import Plain

SAYS = [convention.says for convention in CONVENTIONS]


class Other(Plain):
    """Computes in float64 what a convention makes of a call."""

    name = "other"

    def __init__(self, change) -> None:
        self.change = change

    def attention(self, query, key, value, operands, request):
        options = {
            "mask": self.terms,
            "scale": request.scale,
            "softcap": request.softcap,
            "bias": operands.bias,
            "sinks": operands.sinks,
            "kv_lengths": operands.kv_lengths,
        }
        output, lse = self.change(query, key, value, {n: o for n, o in options.items() if o is not None})
        return ak.AttentionOutput(output.astype(query.dtype), lse.astype(np.float32) if request.lse else None)


def of(**changes):
    def change(query, key, value, options):
        truth = reference.attention(query, key, value, **{**options, **changes})
        return truth.output, truth.lse

    return change


def empty(fill):
    def change(query, key, value, options):
        truth = reference.attention(query, key, value, **options)
        hidden = ~truth.problem.shown.any(axis=-1)
        return np.where(hidden[..., None], fill(value), truth.output), truth.lse

    return change


def base_2(query, key, value, options):
    truth = reference.attention(query, key, value, **options)
    return truth.output, truth.lse / math.log(2)


def capped_last(query, key, value, options):
    options = dict(options)
    cap, bias = options.pop("softcap"), options.pop("bias")
    scores = np.einsum("bhtd,bhsd->bhts", query, key, dtype=np.float64) * options.pop("scale") + bias
    truth = reference.attention(0 * query, key, value, **options, bias=cap * np.tanh(scores / cap))
    return truth.output, truth.lse


CASES = {
    "the first query": ("b2h2t5s9d8:causal", of(query_offset=0)),
    "queries are aligned with the end": ("b2h2t5s9d8:causal,lengths", of(query_offset=4)),
    "gives NaN": ("b1h2t9s4d8:causal", empty(lambda _: np.nan)),
    "gives the mean": ("b1h2t9s4d8:causal", empty(lambda value: value.mean(axis=2, keepdims=True))),
    "base 2": ("b1h2t3s5d8:causal", base_2),
    "True in a dense mask hides": ("b1h2t5s9d8:dense", None),
    "a window counts keys before": ("b1h2t5s9d8:window=3/0", of(mask=(("window", 4, 0),))),
    "a window of w reaches": ("b1h2t5s9d8:window=3/0", of(mask=(("window", 2, 0),))),
    "sinks are left out": ("b1h2t5s9d8:sinks", of(sinks=None)),
    "soft-capped after": ("b1h2t5s9d8:softcap=2,bias", capped_last),
    "not scaled": ("b1h2t5s9d8:causal", of(scale=1.0)),
}


@pytest.mark.parametrize("word", CASES)
def test_a_convention_is_told_by_its_name(word) -> None:
    spec, change = CASES[word]
    (case,) = requests(spec, ("float32",), 3)
    mask = case.options.get("mask")
    if change is None:
        change = of(mask=(("dense", ~mask.dense_arrays[0]),))
    side = Other(change)
    side.terms = None if mask is None else mask.terms
    (expected,) = [says for says in SAYS if word in says]
    report = crosscheck(side, "numpy", [case])
    (finding,) = report.findings
    assert finding.conventions == {"A": [expected]}
    assert finding.explanation == finding.smallest == ""


def test_every_convention_is_tested() -> None:
    assert len(CASES) == len(CONVENTIONS)


def test_a_fault_of_arithmetic_is_no_convention(faulty, plain) -> None:
    report = crosscheck(faulty("rescale_total_missing"), plain, requests("structures", ("float32",), 0), shrink=False)
    assert report.blamed == {"A"}
    assert all(finding.conventions == {} for finding in report.findings)


def test_a_convention_beside_a_fault_explains_nothing(plain) -> None:
    (case,) = requests("b1h2t5s9d8:sinks", ("float32",), 0)
    side = Other(of(sinks=None, scale=0.5))
    side.terms = None
    (finding,) = crosscheck(side, plain, [replace(case)], shrink=False).findings
    assert finding.conventions == {}
