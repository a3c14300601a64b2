"""Covering arrays: few choices that put every two values together, as all-pairs testing does.

Faults of interaction mostly need two or three conditions at once (Kuhn, Wallace and Gallo, IEEE TSE 30, 2004), and all
pairs fit in about as many rows as the two longest factors have pairs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import combinations, product

Choice = Mapping[str, str]
Factors = Mapping[str, Sequence[str]]
Value = tuple[str, str]
Group = frozenset[Value]


def covering(factors: Factors, triples: Collection[str] = ()) -> list[Choice]:
    """Give choices of one value for each factor in which every two values of two factors meet.

    Parameters
    ----------
    factors
        The values of each factor.
    triples
        Factors of which every three values must meet too.
    """
    missing, used = dict.fromkeys(groups(factors, triples)), Counter[Value]()
    rows: list[Choice] = []
    while missing:
        row = _row(factors, triples, missing, used)
        for group in _groups_of(row, triples):
            missing.pop(group, None)
        used.update(row.items())
        rows.append(row)
    return rows


def groups(factors: Factors, triples: Collection[str] = ()) -> Iterator[Group]:
    """Give every pair of values, and every three of the factors in ``triples``, that must meet."""
    for names in _names(factors, triples):
        for values in product(*(factors[name] for name in names)):
            yield frozenset(zip(names, values, strict=True))


def _row(factors: Factors, triples: Collection[str], missing: Mapping[Group, None], used: Counter[Value]) -> Choice:
    """Start from what is missing first; then give each factor the value that covers most, the least used of those."""
    largest: Group = max(missing, key=len)
    row = dict(largest)
    for name in [name for name in factors if name not in row]:

        def gain(value: str, name: str = name) -> tuple[int, int]:
            covered = (group in missing for group in _groups_with(row, name, value, triples))
            return sum(covered), -used[name, value]

        row[name] = max(factors[name], key=gain)
    return {name: row[name] for name in factors}


def _groups_with(row: Choice, name: str, value: str, triples: Collection[str]) -> Iterator[Group]:
    """Give the groups that a value would make with those of a row."""
    for other in row.items():
        yield frozenset(((name, value), other))
    if name in triples:
        for one, other in combinations([item for item in row.items() if item[0] in triples], 2):
            yield frozenset(((name, value), one, other))


def _groups_of(row: Choice, triples: Collection[str]) -> Iterator[Group]:
    for names in _names(row, triples):
        yield frozenset((name, row[name]) for name in names)


def _names(factors: Collection[str], triples: Collection[str]) -> Iterator[tuple[str, ...]]:
    yield from combinations(factors, 2)
    yield from combinations([name for name in factors if name in triples], 3)
