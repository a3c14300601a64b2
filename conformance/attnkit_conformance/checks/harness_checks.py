"""The way to the backend, before anything is said about attention: a failure here lies with the adapter (level 0).

Axes: ``B`` batch, ``H`` query heads, ``T`` query length, ``S`` key length, ``D`` query/key head size, ``E`` value head
size.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Self

import ml_dtypes
import numpy as np

import attnkit as ak
from attnkit.capabilities import CONTRACT_VERSION
from attnkit_conformance.cases import DTYPES, Array, Case
from attnkit_conformance.checking import Checks, over
from attnkit_conformance.compare import assert_equal, assert_like
from attnkit_conformance.custom import arithmetic_of
from attnkit_conformance.measuring import Comparison, note
from attnkit_conformance.subject import Subject

LEAST_HEAD, LARGEST_HEAD = 8, 256
"""Some head size up to this one must be declared."""
LEAST_LONGEST = 64
"""So many keys must be taken by everyone."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Question(Case):
    """A question about what is declared; no backend may refuse it."""

    def on(self, capabilities: ak.Capabilities) -> Self:
        """Stay as it is."""
        del capabilities
        return self

    def undeclared(self, capabilities: ak.Capabilities) -> tuple[str, ...]:
        """Ask for nothing."""
        del capabilities
        return ()


# Every size is another one, so that axes that are taken for each other do not fit.
EASY = Case(label="easy", batch=2, heads=3, kv_heads=3, queries=5, keys=4, head_dim=8)


class TestHarness(Checks):
    """Arrays go in and come out, one easy call is right, refusals are data, and what is declared can be meant."""

    @over([Question(label="round-trip")])
    def test_arrays_come_back(self, backend: Subject, case: Question) -> None:
        """A11: shape, element type and every number, in every declared element type."""
        for dtype in sorted(backend.capabilities.dtypes):
            for array in _arrays(case, dtype):
                what = f"{dtype} array of shape {list(array.shape)} that came back"
                found = backend.numpy(backend.array(array))
                assert_like(found, array.shape, dtype, what=what)
                if array.size:
                    assert_equal(found, array, what=what)

    @over([EASY])
    def test_one_plain_call(self, backend: Subject, case: Case) -> None:
        """A1: with queries of zeros, the output is the mean of the values of each head, ``[B, H, T, E]``."""
        query, key, value = case.arrays
        easy = case.holding((0 * query, key, np.round(4 * np.asarray(value, np.float64))))
        backend.assert_true(easy, easy.call(backend))

    @over([EASY])
    def test_refusals_carry_data(self, backend: Subject, case: Case) -> None:
        """A18, S2: each reason has a code, a field, what is required and what came, and the message shows them."""
        try:
            backend.harness.attention([backend.harness.foreign(array) for array in case.arrays], {})
        except ak.UnsupportedError as error:
            _assert_none(_vague(error), "a refusal must carry data")
        else:
            raise AssertionError("arrays of a library that nobody has heard of must be refused")

    @over([Question(label="declaration")])
    def test_the_declaration_makes_sense(self, backend: Subject, case: Question) -> None:
        """A11, A18: element types with a profile each, a head size, a library, a device, a version of the contract."""
        del case
        problems = [*_strange(backend.capabilities), *_odd_version(backend.description.contract_version)]
        _assert_none(problems, "what is declared must make sense")


class TestMinimum(Checks):
    """The least that a backend must declare (level 1)."""

    @over([Question(label="minimum")])
    def test_the_core_is_declared(self, backend: Subject, case: Question) -> None:
        """A18: one of the element types, some head size of use, keys enough for the core."""
        del case
        _assert_none(_missing(backend.capabilities), "the core must be declared")


def _arrays(case: Case, dtype: str) -> Iterator[Array]:
    """Give arrays of several ranks and without elements, and one of the numbers at the ends of the type."""
    rng = case.rng(dtype)
    for shape in ((2, 3, 5, 4), (1, 7, 1), (2, 0, 3)):
        yield rng.standard_normal(shape).astype(np.dtype(dtype))
    ends = ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]  # it has no types
    yield np.array([0, -1, ends.max, ends.min, ends.smallest_normal, np.inf, -np.inf, np.nan], np.dtype(dtype))


def _vague(error: ak.UnsupportedError) -> Iterator[str]:
    """Say what a refusal leaves open."""
    reasons = [reason for found in error.reasons.values() for reason in found]
    if not reasons:
        yield "it has no reasons"
    for reason in reasons:
        for part in ("code", "field", "required", "actual"):
            if not getattr(reason, part):
                yield f"the reason {reason.code!r} has no {part}"
        if str(reason) not in str(error):
            yield f"its message does not show the reason {str(reason)!r}"


def _strange(declared: ak.Capabilities) -> Iterator[str]:
    """Say what cannot be meant."""
    for name in ("dtypes", "libraries", "devices"):
        if not getattr(declared, name):
            yield f"{name} is empty"
    for dtype in sorted(declared.dtypes):
        try:
            arithmetic_of(declared.numerics[dtype], dtype)
        except (ValueError, TypeError) as error:
            yield f"numerics of {dtype}: {error}"
    if not any(size in declared.head_dims for size in range(1, 1025)):
        yield f"head_dims has no size at all: {declared.head_dims}"
    if declared.poison not in ("padding", "masked"):
        yield f"poison must be 'padding' or 'masked', got {declared.poison!r}"
    for item in fields(ak.Capabilities):
        if type(item.default) is bool and type(getattr(declared, item.name)) is not bool:
            yield f"{item.name} must be True or False, got {getattr(declared, item.name)!r}"


def _odd_version(version: str) -> Iterator[str]:
    if version.partition(".")[0] != CONTRACT_VERSION.partition(".")[0]:
        yield f"contract_version must be {CONTRACT_VERSION} or of the same major version, got {version!r}"


def _missing(declared: ak.Capabilities) -> Iterator[str]:
    """Say what of the core lies outside."""
    if not declared.dtypes & set(DTYPES):
        yield f"dtypes must have one of {', '.join(DTYPES)}, got {sorted(declared.dtypes)}"
    if not any(size in declared.head_dims for size in range(LEAST_HEAD, LARGEST_HEAD + 1)):
        yield f"head_dims must have a size from {LEAST_HEAD} to {LARGEST_HEAD}, got {declared.head_dims}"
    if declared.max_key_length is not None and declared.max_key_length < LEAST_LONGEST:
        yield f"max_key_length must be None or at least {LEAST_LONGEST}, got {declared.max_key_length}"


def _assert_none(problems: Iterator[str] | list[str], what: str) -> None:
    found = list(problems)
    note(Comparison(what, 1, exact=True, ratio=np.inf if found else 0.0))
    if found:
        raise AssertionError(f"{what}: {'; '.join(found)}")
