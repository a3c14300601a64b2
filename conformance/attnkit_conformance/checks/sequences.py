"""Calls one after the other, and arrays in several places: nothing is kept or shared that must not be (A13, A18).

A kernel that is compiled, or a wrapper that is planned, for one call is used again for the next of the same shapes;
what the two differ in must not be part of what is kept.

Axes: ``B`` batch, ``H`` query heads, ``T`` query length, ``S`` key length, ``D`` query/key head size.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from attnkit_conformance.cases import Case
from attnkit_conformance.checking import Checks, over
from attnkit_conformance.compare import assert_equal
from attnkit_conformance.structures import causal, chunked, ids, keep, prefix, window
from attnkit_conformance.subject import Subject


@dataclass(frozen=True, kw_only=True, eq=False)
class Pair(Case):
    """A case, and other options of the same kind and shapes.

    Attributes
    ----------
    other
        The other options.
    """

    other: Mapping[str, Any] = field(default_factory=dict)


def _pair(label: str, options: Mapping[str, Any], other: Mapping[str, Any]) -> Pair:
    return Pair(label=f"then-{label}", queries=5, keys=9, options=options, other=other)


def _line(low: float, high: float, *shape: int) -> np.ndarray[Any, Any]:
    return np.linspace(low, high, int(np.prod(shape)), dtype=np.float32).reshape(shape)


PAIRS = [
    _pair("nothing", {}, {}),
    _pair("causal", {"mask": causal()}, {"mask": causal(), "scale": 1.5}),
    _pair("scale", {"scale": 0.7}, {"scale": -2.0}),
    _pair("window", {"mask": window(3)}, {"mask": window(2, 4)}),
    _pair("prefix", {"mask": prefix(6)}, {"mask": prefix(8)}),
    _pair("chunked", {"mask": chunked(4)}, {"mask": chunked(3)}),
    _pair("documents", {"mask": ids((5,), (9,))}, {"mask": ids((5,), (9,), count=2)}),
    _pair("dense", {"mask": keep(5, 9)}, {"mask": keep(5, 9, share=0.3)}),
    _pair("softcap", {"softcap": 0.5}, {"softcap": 3.0}),
    _pair("bias", {"bias": _line(-1, 1, 5, 9)}, {"bias": _line(2, -2, 5, 9)}),
    _pair("alibi", {"alibi": _line(1, 0.25, 2)}, {"alibi": _line(0.1, 2, 2)}),
    _pair("sinks", {"sinks": _line(1, -1, 2)}, {"sinks": _line(-3, 4, 2)}),
    _pair("kv-lengths", {"kv_lengths": np.array([4, 9])}, {"kv_lengths": np.array([8, 2])}),
    _pair(
        "query-lengths",
        {"query_lengths": np.array([2, 5]), "mask": causal()},
        {"query_lengths": np.array([4, 1]), "mask": causal()},
    ),
    _pair("offsets", {"query_offset": 1, "mask": causal()}, {"query_offset": np.array([0, 6]), "mask": causal()}),
]
ALIKE = [
    Case(label="alike", queries=9, keys=9),
    Case(label="alike-causal", queries=33, keys=33, options={"mask": causal()}),
]


class TestSequences(Checks):
    """A13: equal shapes, other contents and options."""

    @over(PAIRS)
    def test_no_call_remembers_another(self, backend: Subject, case: Pair) -> None:
        """With the options, without, with others, with none of its own arrays, and as at first."""
        fresh = replace(case, label=f"{case.label}-fresh")
        without = replace(case, options={}).holding(case.arrays)
        others = replace(case, options=case.other).holding(case.arrays)
        for number, asked in enumerate((case, without, others, fresh, without, case)):
            backend.assert_true(asked, asked.call(backend), what=f"call {number + 1} of six: ")

    @over(ALIKE)
    def test_one_array_in_every_role(self, backend: Subject, case: Case) -> None:
        """A13: query, key and value may be one array; none is written over while it is still read."""
        query, _, _ = case.arrays
        same = case.holding((query, query, query))
        one = backend.array(query)
        backend.assert_true(same, backend.ask([one, one, one], backend.options(case.options)))
        assert_equal(backend.numpy(one), query, what="the one array after the call")
