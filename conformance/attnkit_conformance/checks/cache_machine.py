"""Any history of a cache: appends, cuts, copies, failures and queries in any order, found by Hypothesis (C1-C7)."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from attnkit_conformance.cache_model import CacheCase
from attnkit_conformance.checking import Checks, over
from attnkit_conformance.structures import CAUSALLY, causal, window
from attnkit_conformance.subject import Subject


def _cache(label: str, **fields: object) -> CacheCase:
    given = {"queries": 8, "keys": 8, "head_dim": 8, "options": CAUSALLY, **fields}
    return CacheCase(label=f"history-{label}", **given)  # type: ignore[arg-type]  # the fields of a case


HISTORIES: Final = [
    _cache("growing"),
    _cache("fixed", max_length=20),
    _cache("grouped", heads=4, max_length=20),
    _cache("window", options={"mask": window(5)}),
    _cache("softcap", options={"mask": causal(), "softcap": 2.0}),
    _cache("stack", layers=3),
    _cache("value", value_dim=16),
    _cache("ragged", ragged=True, layers=2),
    _cache("ragged", ragged=True, batch=3, heads=4, max_length=20),
    _cache("stored", stored="float16", pinned=("dtype",)),
    _cache("types", dtype="bfloat16", pinned=("dtype",), ragged=True),
]
LONG_HISTORIES: Final = [replace(case, label=f"long-{case.label}") for case in HISTORIES]


class TestCacheMachine(Checks):
    """C1-C7: whatever came before, a cache is equal to the plain lists of what it was given."""

    @over(HISTORIES)
    def test_histories(self, backend: Subject, case: CacheCase) -> None:
        """Short histories, many of them."""
        _explore(backend, case, examples=10, steps=12)

    @over(LONG_HISTORIES)
    def test_long_histories(self, backend: Subject, case: CacheCase) -> None:
        """Longer ones, and more."""
        _explore(backend, case, examples=20, steps=30)


def _explore(backend: Subject, case: CacheCase, *, examples: int, steps: int) -> None:
    from attnkit_conformance.histories import explore  # it needs Hypothesis, which nothing else here does

    explore(backend, case, int(case.rng("histories").integers(2**32)), examples=examples, steps=steps)
