"""Layouts as the suite knows them: what a ring gives up and refuses, and how many pages tokens take."""

from __future__ import annotations

import pytest

from attnkit_conformance.cache_layouts import CONTIGUOUS, Paged, Ring


def test_a_contiguous_cache_gives_up_nothing() -> None:
    assert CONTIGUOUS.gone_after(0, 1000, 5) == 0
    assert CONTIGUOUS.gone_within(0, 3) == 0
    assert CONTIGUOUS.longest_append is None
    assert CONTIGUOUS.first == 0


@pytest.mark.parametrize(
    ("gone", "count", "taken", "after"),
    [(0, 0, 4, 0), (0, 5, 1, 0), (0, 6, 1, 1), (1, 7, 0, 1), (1, 7, 4, 2), (2, 11, 4, 6), (6, 11, 1, 6)],
)
def test_a_ring_keeps_a_window_before_each_append(gone: int, count: int, taken: int, after: int) -> None:
    assert Ring(6, 4).gone_after(gone, count, taken) == after


@pytest.mark.parametrize(("count", "gone"), [(2, 0), (5, 0), (6, 1), (20, 15)])
def test_pinned_tokens_are_not_among_them(count: int, gone: int) -> None:
    assert Ring(4, 8, pinned=2).gone_after(0, count, 1) == gone


@pytest.mark.parametrize(
    ("gone", "kept", "within"),
    [(0, 3, 0), (3, 8, 3), (3, 7, 3), (3, 6, None), (3, 3, None), (3, 2, 0), (3, 0, 0)],
)
def test_it_goes_back_to_a_whole_window_or_to_pinned_tokens(gone: int, kept: int, within: int | None) -> None:
    assert Ring(3, 8, pinned=2).gone_within(gone, kept) == within


def test_a_page_that_is_not_full_is_a_page() -> None:
    assert [Paged(4).pages(tokens) for tokens in (0, 1, 4, 5, 8, 9)] == [0, 1, 1, 2, 2, 3]


def test_names_and_fields() -> None:
    assert [str(layout) for layout in (CONTIGUOUS, Ring(6, 4), Ring(6, 4, 2), Paged(4), Paged(4, 9))] == [
        *("contiguous", "ring6a4", "ring6a4p2", "paged4", "paged4x9"),
    ]
    assert Ring(6, 4, 2).fields == {"window": 6, "max_append": 4, "pinned": 2}
    assert Paged(4).fields == {"page_size": 4, "num_pages": None}
