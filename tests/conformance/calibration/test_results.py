"""The committed calibration: complete, accepted, and what is measured here and now."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from attnkit_conformance.calibration import Results, Row, committed, grid
from attnkit_conformance.calibration.measure import measure_backward, measure_forward
from attnkit_conformance.calibration.run import targets
from attnkit_conformance.calibration.table import markdown, refreshed, zoo_table
from attnkit_conformance.calibration.zoo import GRADIENT_ZOO, ZOO, Algorithm

RESULTS = committed()
PAGE = Path(__file__).parents[3] / "docs" / "tolerance.md"
AGAIN = [("tiles of 64", "float32"), ("truncating", "float32"), ("powers of 2", "bfloat16"),
         ("flash, divided first", "float16"), ("flash, split in 3", "bfloat16")]  # fmt: skip
GRADIENTS_AGAIN = [("truncating", "float32"), ("flash, whole", "bfloat16")]


def of(zoo: tuple[Algorithm, ...], name: str) -> Algorithm:
    return next(algorithm for algorithm in zoo if algorithm.name == name)


def assert_as_committed(rows: list[Row]) -> None:
    """No larger than what was measured with more seeds, but for a different order of sums on other hardware.

    The mean square over one seed of several is at most as many times that over all.
    """
    known = {(row.name, row.dtype, row.draw, row.what): row for row in RESULTS.zoo}
    assert rows
    for row in rows:
        before = known[row.name, row.dtype, row.draw, row.what]
        assert row.profile == before.profile
        assert row.most <= min(1.25 * before.most, 1.0), row
        assert row.rms <= 1.25 * before.rms * RESULTS.seeds**0.5, row


@pytest.mark.parametrize(("name", "dtype"), AGAIN)
def test_it_is_measured_again(name: str, dtype: str) -> None:
    subject = of(ZOO, name).make()
    assert_as_committed(list(measure_forward(subject, name, dtype, 1, keys=grid.LONGEST)))


@pytest.mark.parametrize(("name", "dtype"), GRADIENTS_AGAIN)
def test_gradients_are_measured_again(name: str, dtype: str) -> None:
    assert_as_committed(list(measure_backward(of(GRADIENT_ZOO, name).make(), name, dtype, 1)))


def test_every_algorithm_was_measured_on_every_draw() -> None:
    expected = Counter(
        (algorithm.name, dtype, draw, what)
        for algorithm in ZOO
        for dtype in algorithm.dtypes
        for draw, _ in grid.forward(dtype, 1)
        for what in ("output", "lse")
    )
    expected += Counter(
        (algorithm.name, dtype, draw, "gradients")
        for algorithm in GRADIENT_ZOO
        for dtype in algorithm.dtypes
        for draw, _ in grid.backward(dtype, 1)
    )
    assert Counter((row.name, row.dtype, row.draw, row.what) for row in RESULTS.zoo) == expected


def test_every_path_was_measured() -> None:
    assert {row.name for row in RESULTS.backends} >= set(targets())


def test_correct_algorithms_are_accepted() -> None:
    assert RESULTS.rejected() == []


def test_a_bound_that_rejects_a_correct_algorithm_is_told() -> None:
    worse = RESULTS.zoo[0]._replace(most=0.95)
    assert RESULTS.model_copy(update={"zoo": (*RESULTS.zoo, worse)}).rejected() == [worse]


@pytest.mark.parametrize(
    ("profile", "dtype"),
    [
        ("fa-16", "bfloat16"),
        ("fa-16", "float16"),
        ("fp32P-16", "bfloat16"),
        ("fp32P-16", "float16"),
        ("strict-fp32+sequential", "float32"),
        ("strict-fp32+truncating", "float32"),
    ],
)
def test_bounds_are_tight(profile: str, dtype: str) -> None:
    rows = [row for row in RESULTS.zoo if (row.profile, row.dtype, row.what) == (profile, dtype, "output")]
    assert max(row.most for row in rows) >= 0.3


def test_errors_of_the_zoo_have_no_direction() -> None:
    """In 16 bits and in short rows; where all addends are alike, so are their errors."""
    for row in RESULTS.zoo:
        if row.what == "output" and row.dtype in ("bfloat16", "float16") and not row.draw.startswith(grid.LONG):
            assert abs(row.bias) <= 0.03


def test_it_survives_the_file() -> None:
    assert Results.model_validate_json(RESULTS.dump()) == RESULTS


def test_the_documentation_shows_it() -> None:
    page = PAGE.read_text("utf-8")
    assert refreshed(page, RESULTS) == page
    assert markdown(RESULTS) in page


def test_the_table_names_the_worst() -> None:
    rows = (
        Row("one", "fa-16", "bfloat16", "normal", "output", 10, 0.5, 0.4, 0.2, 0.01),
        Row("two", "fa-16", "bfloat16", "huge", "output", 10, 0.7, 0.3, 0.1, -0.02),
        Row("two", "fa-16", "bfloat16", "long constant", "output", 10, 0.1, 0.9, 0.9, -0.9),
    )
    results = Results(date="2025-01-01", environment={}, seeds=1, zoo=rows, backends=())
    assert list(zoo_table(results))[2] == "| fa-16 | bfloat16 | 0.70 (huge) | - | - | 0.40 | 0.20 | -0.020 |"
