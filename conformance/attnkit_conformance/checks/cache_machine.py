"""Any history of a cache: appends, cuts, copies, failures and queries in any order, found by Hypothesis (C1-C9)."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from attnkit_conformance.cache_case import CacheCase
from attnkit_conformance.cache_layouts import Paged, Ring
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
LAYOUTS: Final = [
    _cache("layout", layout=Paged(4), ragged=True, layers=2),
    _cache("layout", layout=Paged(1), codecs=("int4", "int8")),
    _cache("layout", layout=Paged(3, 24), ragged=True, codecs=("int8", "int8")),
    _cache("layout", layout=Paged(4), max_length=20, layers=2, codecs=("fp8", "fp8")),
    _cache("layout", layout=Paged(64), heads=4, codecs=("int8/4", "native")),
    _cache("layout", layout=Ring(4, 5), ragged=True, layers=2),
    _cache("layout", layout=Ring(3, 4, pinned=2), ragged=True, codecs=("int8", "int4"), options={"mask": window(3)}),
    _cache("layout", layout=Ring(1, 3, pinned=1), layers=2, codecs=("fp8", "fp8"), options={"mask": window(1)}),
    _cache("layout", codecs=("int8", "int4/4"), ragged=True, layers=2),
    _cache("layout", codecs=("fp8", "int8"), max_length=20, dtype="bfloat16", pinned=("dtype",), heads=4),
]
LONG_HISTORIES: Final = [replace(case, label=f"long-{case.label}") for case in (*HISTORIES, *LAYOUTS)]


class TestCacheMachine(Checks):
    """C1-C9: whatever came before, a cache is equal to the plain lists of what it was given."""

    @over([*HISTORIES, *LAYOUTS])
    def test_histories(self, backend: Subject, case: CacheCase) -> None:
        """Short histories, many of them."""
        _explore(backend, case, examples=10, steps=16)

    @over(LONG_HISTORIES)
    def test_long_histories(self, backend: Subject, case: CacheCase) -> None:
        """Longer ones, and more."""
        _explore(backend, case, examples=20, steps=30)


def _explore(backend: Subject, case: CacheCase, *, examples: int, steps: int) -> None:
    from attnkit_conformance.histories import explore  # it needs Hypothesis, which nothing else here does

    explore(backend, case, int(case.rng("histories").integers(2**32)), examples=examples, steps=steps)
