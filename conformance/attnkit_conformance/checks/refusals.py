"""An option is applied or refused, never dropped; what is declared is taken, what is not is refused (A18).

Axes: ``B`` batch, ``H`` query heads, ``K`` key/value heads, ``T`` query length, ``S`` key length, ``D`` query/key head
size, ``E`` value head size.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

import attnkit as ak
from attnkit_conformance.cases import DTYPES, Case, plain
from attnkit_conformance.checking import Checks, over
from attnkit_conformance.compare import assert_raises
from attnkit_conformance.measuring import held
from attnkit_conformance.structures import causal, chunked, ids, keep, prefix, window
from attnkit_conformance.subject import Subject

Array = Any


def _one(label: str, **options: Any) -> Case:
    return Case(label=label, queries=5, keys=9, options=options)


PLAIN = Case(label="plain", queries=5, keys=9)
OPTIONS = [
    _one("causal", mask=causal()),
    _one("window", mask=window(3)),
    _one("window-right", mask=window(None, 1)),
    _one("prefix", mask=prefix(2)),
    _one("chunked", mask=chunked(4)),
    _one("documents", mask=ids((5,), (9,))),
    _one("dense", mask=keep(5, 9)),
    _one("scale", scale=0.7),
    _one("softcap", softcap=0.5),
    _one("bias", bias=np.linspace(-1, 1, 45, dtype=np.float32).reshape(5, 9)),
    _one("alibi", alibi=np.array([1.0, 0.25], np.float32)),
    _one("sinks", sinks=np.array([1.0, -1.0], np.float32)),
    _one("query_lengths", query_lengths=np.array([3, 5]), mask=causal()),
    _one("kv_lengths", kv_lengths=np.array([4, 9])),
    _one("query_offset", query_offset=1, mask=causal()),
    _one("key_offset", key_offset=3, mask=chunked(4)),
]
SIZES = [
    PLAIN,
    replace(PLAIN, label="gqa", heads=4),
    replace(PLAIN, label="value_dim", value_dim=8),
    replace(PLAIN, label="lse", lse=True),
    *(replace(PLAIN, label="dtype", dtype=dtype, pinned=("dtype",)) for dtype in DTYPES),
    *(replace(PLAIN, label="head_dim", head_dim=size, pinned=("head_dim",)) for size in (1, 7, 12, 72, 576)),
]
SEVERAL = [
    _one(
        "everything",
        bias=np.ones((5, 9), np.float32),
        alibi=np.ones(2, np.float32),
        sinks=np.ones(2, np.float32),
        softcap=1.0,
        kv_lengths=np.array([4, 9]),
        query_offset=2,
        mask=window(3) & chunked(4) & ids((5,), (9,)) & keep(5, 9),
    ),
    replace(_one("sizes", mask=prefix(3)), heads=4, value_dim=8, lse=True),
]


class TestApplied(Checks):
    """A18: every option alone, and many at once. The oracle's answer, or all reasons."""

    @over([*SIZES, *OPTIONS, *SEVERAL])
    def test_applied_or_refused(self, backend: Subject, case: Case) -> None:
        """Applied where it is declared, refused with the code of each where it is not."""
        backend.assert_true(case, case.call(backend))

    @over(OPTIONS)
    def test_options_make_a_difference(self, backend: Subject, case: Case) -> None:
        """The result is not that of the same call without the option."""
        without = replace(case, options={}).holding(case.arrays)
        bound = backend.tolerance(case).output
        difference = np.abs(plain(case.call(backend).output) - without.truth.output)
        held(f"effect of {', '.join(case.options)}", difference.size)
        if not (difference > bound).any():
            raise AssertionError(f"the output with {', '.join(case.options)} is the output without")


class TestRefused(Checks):
    """What no backend may take."""

    @over([PLAIN])
    def test_foreign_arrays(self, backend: Subject, case: Case) -> None:
        """A18: arrays of a library that is not declared are refused with the code ``libraries``."""
        backend.assert_refused({"libraries"}, _call(backend, *map(backend.harness.foreign, case.arrays)))

    @over([PLAIN])
    def test_gradients(self, backend: Subject, case: Case) -> None:
        """A16: inputs that require gradients are refused with the code ``grad``, never silently detached."""
        arrays = [backend.harness.requiring_grad(array) for array in case.arrays]
        if not all(map(backend.harness.needs_grad, arrays)):
            held("its library has no gradients to detach")
            return
        if backend.capabilities.grad:
            backend.assert_true(case, backend.ask(arrays, {}))
        else:
            backend.assert_refused({"grad"}, _call(backend, *arrays))

    @over([PLAIN])
    def test_mixed_types(self, backend: Subject, case: Case) -> None:
        """A11: query, key and value of different element types raise ``DTypeError``."""
        query, key, value = map(backend.array, case.arrays)
        other = backend.array(case.arrays[1].astype(np.float32 if case.dtype == "float16" else np.float16))
        for arrays in ((query, other, value), (query, key, other), (query, other, other)):
            assert_raises(ak.DTypeError, _call(backend, *arrays))

    @over([replace(PLAIN, heads=4, kv_heads=4)])
    def test_heads_that_do_not_divide(self, backend: Subject, case: Case) -> None:
        """A9: ``H % K != 0`` raises ``ShapeError``."""
        query, key, value = case.arrays
        fewer = map(backend.array, (query, key[:, :3].copy(), value[:, :3].copy()))
        assert_raises(ak.ShapeError, _call(backend, *fewer))


def _call(backend: Subject, *arrays: Array) -> Callable[[], object]:
    return partial(backend.harness.attention, arrays, {})
