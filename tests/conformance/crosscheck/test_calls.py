"""Requests that are asked in a way of their own: heads without a copy, laws of equal bits, many roundings together."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from attnkit_conformance.crosscheck import crosscheck
from attnkit_conformance.crosscheck.fuzzing import fuzz
from attnkit_conformance.crosscheck.page import page
from attnkit_conformance.crosscheck.requests import requests
from attnkit_conformance.crosscheck.sides import Live
from attnkit_conformance.selftest.plain import EVERYTHING, Plain
from attnkit_conformance.selftest.probe_mutants import TwoTiles

DTYPES = ("float32", "float64", "float16", "bfloat16")
FAULTS = {  # what finds it, and how its complaints begin
    "columns_share_a_scale": ("laws", "law: output by the law columns-changed: "),
    "first_sequence_by_other_tiles": ("laws", "law: output by the law sequences-permuted: "),
    "query_rounded_up": ("laws", "law: output by the law signs-flipped: "),
    "one_head_loses_the_tail": ("repeated-head", "output: "),
    "scalar_promotes": ("", "output must be float32, got float64"),
    "flash_weights_cut_off": ("rounding", "rounding: direction of the errors of output: "),
}


def asked(group, dtypes):
    return requests(group, dtypes, 0) if group else fuzz(60, 0, dtypes)


@pytest.mark.parametrize("place", ["A", "B"])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_beyond_single_numbers_is_found_and_blamed(fault, place, faulty, plain) -> None:
    group, begins = FAULTS[fault]
    sides = (faulty(fault), plain) if place == "A" else (plain, faulty(fault))
    dtype = "bfloat16" if group == "rounding" else "float32"
    report = crosscheck(*sides, asked(group, (dtype,)), shrink=False, keep_going=False)
    (finding,) = report.findings
    assert (finding.blamed, report.agree) == (place, False)
    assert finding.complaints[place].startswith(begins)
    assert (finding.weights == "") == (begins != "output: ")
    assert begins in page(report)


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("other", ["torch", "torch:tiled", "numpy:dense", "cuda-emulated"])
def test_correct_sides_keep_their_promises(other, seed) -> None:
    dtypes = [dtype for dtype in DTYPES if dtype in Live(other).capabilities.dtypes]
    report = crosscheck("numpy", other, requests("laws;repeated-head", dtypes, seed))
    assert report.agree, report.findings
    assert report.compared == report.asked


def test_correct_sides_round_to_nearest() -> None:
    report = crosscheck("numpy", "torch", requests("rounding", ("bfloat16",), 1))
    assert report.agree, report.findings


def test_a_law_that_is_not_declared_is_not_asked() -> None:
    class Modest(TwoTiles):
        name = "modest"
        declared = replace(EVERYTHING, batch_invariant=False)

    assert crosscheck(Modest(), Plain(), requests("laws", ("float32",), 0)).agree


def test_a_broken_law_is_shown_on_a_small_request(faulty, plain, tmp_path) -> None:
    law = [case for case in requests("laws", ("float32",), 0) if case.label == "columns-changed"]
    (finding,) = crosscheck(faulty("columns_share_a_scale"), plain, law, repro=tmp_path).findings
    assert finding.smallest.startswith("columns-changed-b1h1k1t1s")
    assert (finding.explanation, finding.weights, finding.folder, finding.picture) == ("", "", "", None)


def test_a_rounding_is_about_all_its_numbers(faulty, plain, tmp_path) -> None:
    case = requests("rounding", ("bfloat16",), 0)[0]
    (finding,) = crosscheck(faulty("flash_weights_cut_off"), plain, [case], repro=tmp_path).findings
    assert (finding.smallest, finding.folder) == ("", "")


def test_a_repeated_head_stays_one_when_it_is_changed() -> None:
    case = requests("repeated-head", ("float32",), 0)[0]
    other = case.holding([np.random.default_rng(0).standard_normal(array.shape) for array in case.arrays])
    for array in (*case.arrays[1:], *other.arrays[1:]):
        assert (array == array[:, :1]).all()


def test_what_a_backend_raises_is_no_law() -> None:
    class Raising(Plain):
        name = "raising"

        def attention(self, *_):
            raise AssertionError("mine")

    report = crosscheck(Raising(), Plain(), requests("laws", ("float32",), 0)[:1], shrink=False)
    assert report.findings[0].complaints == {"A": "error: AssertionError: mine"}
