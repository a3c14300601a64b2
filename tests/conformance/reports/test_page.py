"""What the page shows: steps of the heat map, and numbers in few characters."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from attnkit_conformance.reports.page import Cell, Page, duration_text, moment_text, ratio_text
from attnkit_conformance.results import Report, Worst

Alter = Callable[..., Report]


def cell(report: Report) -> Cell:
    return Cell(report.results[:1])


@pytest.mark.parametrize(
    ("ratio", "step", "figure"),
    [
        (0.0, "0", "0"),
        (0.001, "0", "<.01"),
        (0.1, "0", "0.10"),
        (0.11, "1", "0.11"),
        (0.25, "1", "0.25"),
        (0.5, "2", "0.50"),
        (0.75, "3", "0.75"),
        (1.0, "4", "1.00"),
    ],
)
def test_steps_of_the_heat_map(clean: Report, changed: Alter, ratio: float, step: str, figure: str) -> None:
    found = cell(changed(clean, worst=Worst(what="output", ratio=ratio)))
    assert (found.step, found.figure) == (step, figure)


@pytest.mark.parametrize(
    ("changes", "step", "figure"),
    [
        ({"worst": Worst(what="output", exact=True)}, "exact", "="),
        ({"worst": Worst(what="refusal", exact=True), "outcome": "refused gqa"}, "", "·"),
        ({"worst": None, "status": "NOT_RUN"}, "", "·"),
        ({"worst": None, "status": "CRASH"}, "over", "✗"),
        ({"worst": Worst(what="output", ratio=0.5), "status": "FAIL"}, "over", "✗"),
        ({"worst": Worst(what="output", ratio=1.5), "status": "FAIL"}, "over", "1.50"),
        ({"worst": Worst(what="output", ratio=math.inf), "status": "FAIL"}, "over", "∞"),
        ({"worst": Worst(what="output", exact=True, ratio=math.inf), "status": "FAIL"}, "over", "✗"),
    ],
)
def test_what_is_no_error_within_a_bound(
    clean: Report, changed: Alter, changes: dict[str, object], step: str, figure: str
) -> None:
    found = cell(changed(clean, **changes))
    assert (found.step, found.figure) == (step, figure)


@pytest.mark.parametrize(
    ("ratio", "text"),
    [(None, "–"), (9.994, "9.99"), (12.3, "12"), (9999.0, "9999"), (1e4, "1e4"), (1.26e15, "1e15"), (math.nan, "NaN")],
)
def test_numbers_in_five_characters(ratio: float | None, text: str) -> None:
    assert ratio_text(ratio) == text
    assert len(text) <= 5


def test_times() -> None:
    assert moment_text("2026-03-01T09:05:00+00:00") == "1 March 2026, 09:05 UTC"
    assert moment_text("yesterday") == "yesterday"
    assert [duration_text(seconds) for seconds in (0.1234, 59.96, 61, 3725.9)] == [
        "0.123 s", "60 s", "1 min 1 s", "62 min 5 s",
    ]  # fmt: skip


def test_requirements_come_by_level_and_in_their_order(faulty: Report) -> None:
    entries = Page(faulty).entries
    assert [entry.level for entry in entries] == sorted(entry.level for entry in entries)
    assert sum(len(entry.results) for entry in entries) == len(faulty.results)
    assert Page(faulty.model_copy(update={"results": faulty.results[::-1]})).entries == [
        type(entry)(entry.id, entry.requirement, entry.results[::-1]) for entry in entries
    ]


def test_the_worst_that_passes_is_within_its_bound(faulty: Report) -> None:
    ratio = Page(faulty).ratio
    assert ratio is not None
    assert 0 < ratio <= 1
