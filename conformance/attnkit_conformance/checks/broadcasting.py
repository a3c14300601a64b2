"""Arrays that stand for larger ones: every form of a mask and a bias, and heads that are one (A2, A5, A13).

Axes: ``B`` batch, ``H`` query heads, ``K`` key/value heads, ``T`` query length, ``S`` key length.
"""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np

from attnkit_conformance.cases import DTYPES, Case, each_dtype
from attnkit_conformance.checking import Checks, over
from attnkit_conformance.structures import CAUSALLY, keep
from attnkit_conformance.subject import Subject

_FULL = (3, 2, 5, 9)  # no two axes alike
_FORMS = [
    tuple(size if full else 1 for size, full in zip(_FULL, axes, strict=True)) for axes in product((0, 1), repeat=4)
]
_TAILS = (1, 31, 32, 33, 64, 65)


def _case(label: str, form: tuple[int, ...], **options: Any) -> Case:
    batch, heads, queries, keys = _FULL
    name = f"{label}-{'x'.join(map(str, form))}"
    return Case(label=name, batch=batch, heads=heads, kv_heads=heads, queries=queries, keys=keys, options=options)


def _floats(*shape: int) -> np.ndarray[Any, Any]:
    return (2 * np.random.default_rng(shape).standard_normal(shape)).astype(np.float32)


DENSE = [_case("dense", form, mask=keep(*form)) for form in [*_FORMS, _FULL[2:], (1, 9)]]
BIASES = [_case("bias", form, bias=_floats(*form)) for form in [*_FORMS, _FULL[2:], (1, 9)]]
BIAS_TYPES = each_dtype(
    Case(label=f"bias-of-{dtype}", queries=5, keys=9, options={"bias": _floats(5, 9).astype(np.dtype(dtype))})
    for dtype in DTYPES
)
ONE_HEAD = [
    Case(label=f"one-head-{label}", heads=3, kv_heads=3, queries=min(keys, 4), keys=keys, options=options)
    for keys in _TAILS
    for label, options in (("causal", CAUSALLY), ("dense", {"mask": keep(2, 1, min(keys, 4), keys)}))
]


class TestBroadcasting(Checks):
    """A2: what broadcasts to [B, H, T, S] means the same as what it stands for."""

    @over([*DENSE, *BIASES])
    def test_every_form(self, backend: Subject, case: Case) -> None:
        """Each axis full or 1, in all combinations, and arrays of two axes."""
        backend.assert_true(case, case.call(backend))

    @over(BIAS_TYPES)
    def test_types_of_a_bias(self, backend: Subject, case: Case) -> None:
        """A6: a bias of any element type, beside queries of any, is converted by value."""
        backend.assert_true(case, case.call(backend))

    @over(ONE_HEAD)
    def test_heads_that_are_one(self, backend: Subject, case: Case) -> None:
        """A13: one head repeated without a copy (stride 0), with masks, at lengths around the sizes of tiles."""
        query, key, value = case.arrays
        same = case.holding((query, *(np.broadcast_to(array[:, :1], array.shape) for array in (key, value))))
        wide = [backend.harness.broadcast(array[:, :1].copy(), array.shape) for array in (key, value)]
        backend.assert_true(same, backend.ask([backend.array(query), *wide], backend.options(case.options)))
