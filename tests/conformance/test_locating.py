"""Failures say where the wrong elements lie, and what their bound is made of."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from attnkit_conformance.cases import Case
from attnkit_conformance.compare import assert_within
from attnkit_conformance.locating import common, place
from attnkit_conformance.measuring import Mismatch, measuring
from attnkit_conformance.selftest.plain import Plain, unregistered

SHAPE = (2, 4, 130, 24)


def wrong(*places: Any) -> np.ndarray[Any, Any]:
    found = np.zeros(SHAPE, bool)
    for at in places:
        found[at] = True
    return found


@pytest.mark.parametrize(
    ("places", "expected"),
    [
        ([np.s_[0, 3, 5:9, :]], "all 96 wrong elements are in sequence 0, head 3"),
        ([np.s_[:, :, 15::16, :]], "all 1536 wrong elements are in rows 15 mod 16"),
        ([np.s_[:, :, 63::64, :]], "all 384 wrong elements are in rows 63 mod 64"),
        ([np.s_[:, :, 7, :]], "all 192 wrong elements are in row 7"),
        ([np.s_[:, :, :, 3::8]], "all 3120 wrong elements are in columns 3 mod 8"),
        ([np.s_[1, :, :, 5]], "all 520 wrong elements are in sequence 1, column 5"),
        ([np.s_[0, 0, 0, 0], np.s_[1, 1, 1, 1]], ""),
        ([np.s_[0, 0, 0, 0]], ""),
        ([], ""),
    ],
)
def test_what_wrong_elements_have_in_common(places: list[Any], expected: str) -> None:
    assert common(wrong(*places)) == expected


def test_an_axis_of_one_tells_nothing() -> None:
    assert common(np.ones((1, 1, 2, 1), bool)) == ""


def test_other_arrays_are_left_alone() -> None:
    assert common(np.ones((3, 3), bool)) == ""
    assert place((3, 3)) == ""


def test_place_in_a_tile() -> None:
    assert place((0, 1, 79, 11)) == "row 15 mod 64, column 3 mod 8"
    assert place((0, 1, 64)) == "row 0 mod 64"


def test_a_failure_says_all_of_it() -> None:
    expected = np.zeros(SHAPE)
    actual = np.where(wrong(np.s_[:, 2, 15::16, :]), 3.0, 0.0)
    with measuring() as notes, pytest.raises(Mismatch) as caught:
        assert_within(actual, expected, 1.0, what="output", term=lambda at: f"term of {at}")
    (note,) = notes
    assert note.term == "term of (0, 2, 15, 0)"
    assert str(caught.value).endswith(
        "ratio 3; row 15 mod 64, column 0 mod 8; all 384 wrong elements are in head 2, rows 15 mod 16; "
        "tau is mostly term of (0, 2, 15, 0)"
    )


def test_what_is_right_is_not_explained() -> None:
    with measuring() as notes:
        assert_within(np.zeros(SHAPE), np.zeros(SHAPE), 1.0, what="output", term=lambda at: pytest.fail("asked"))
    assert notes[0].term == ""


@pytest.mark.parametrize(("dtype", "term"), [("float32", "sums"), ("bfloat16", "output rounding")])
def test_the_term_of_an_output_is_named(dtype: str, term: str) -> None:
    class Doubled(Plain):
        def finish(self, output: Any, query: Any, request: Any) -> Any:
            return super().finish(2 * output, query, request)

    case, subject = Case(label="term", keys=40, dtype=dtype, draw="uniform"), unregistered(Doubled())
    with measuring() as notes, pytest.raises(Mismatch, match=f"tau is mostly {term}"):
        subject.assert_true(case, case.call(subject))
    assert [note.term for note in notes if note.what == "output"] == [term]
