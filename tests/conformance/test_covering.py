"""Covering arrays put every pair together, every triple that is asked for, and stay small."""

from __future__ import annotations

from itertools import combinations

import pytest

from attnkit_conformance.covering import covering, groups

FACTORS = {"one": ("a", "b", "c"), "two": ("a", "b"), "three": ("a", "b", "c", "d"), "four": ("a",), "five": ("a", "b")}


@pytest.mark.parametrize("triples", [(), ("one", "two", "three"), ("one", "three", "five", "two")])
def test_every_group_of_values_meets(triples: tuple[str, ...]) -> None:
    rows = covering(FACTORS, triples)
    met = {frozenset(group) for row in rows for size in (2, 3) for group in combinations(row.items(), size)}
    assert set(groups(FACTORS, triples)) <= met
    assert all(list(row) == list(FACTORS) for row in rows)


def test_there_are_few_rows() -> None:
    assert len(covering(FACTORS)) <= 1.3 * 3 * 4
    assert len(covering(FACTORS, ("one", "two", "three"))) <= 1.3 * 3 * 2 * 4


def test_it_is_the_same_every_time() -> None:
    assert covering(FACTORS, ("one", "two", "three")) == covering(FACTORS, ("one", "two", "three"))


def test_every_pair_is_a_group_once() -> None:
    found = list(groups({"one": "ab", "two": "cde"}))
    assert len(found) == len(set(found)) == 6
