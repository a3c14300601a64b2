"""Harnesses that stand between a check and an implementation that is not there: one writes down, one reads answers.

Only plain calls of ``attention`` can be put to a program elsewhere. A check that asks for anything else (caches,
gradients, strides, ...) is not covered, and says why.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

import numpy as np

import attnkit as ak
from attnkit_conformance.cases import Case
from attnkit_conformance.harness.local import Harness, Thing
from attnkit_conformance.items import Item
from attnkit_conformance.packages import describe
from attnkit_conformance.selftest.plain import Plain

Array = np.ndarray[Any, Any]
Results = tuple[Thing, ...]
_OTHERS: Final = frozenset(
    {
        *("view", "broadcast", "foreign", "requiring_grad", "needs_grad", "litter", "write", "environment"),
        *("packed", "merge", "reasons", "vjp", "make_cache", "make_pool", "pooled_cache", "load_cache"),
    }
)


class NotCoveredError(Exception):
    """A check asks for what cannot be put as a question."""


class Question(NamedTuple):
    """One call of a check: its name, the call, whether the LSE is wanted, and what tells it from any other."""

    name: str
    case: Case
    lse: bool
    digest: str


class _Declaring(Plain):
    """A correct backend that declares what another one does."""

    name = "offline"

    def __init__(self, capabilities: ak.Capabilities) -> None:
        self._declared = replace(capabilities, libraries=frozenset({"numpy"}), devices=frozenset({"cpu"}))

    def capabilities(self) -> ak.Capabilities:
        """Declare it, for arrays of NumPy."""
        return self._declared


class Asking(Harness):
    """Makes every call of one item a question, and answers it rightly, so that the check goes on to its next call.

    Parameters
    ----------
    capabilities
        What the implementation declares.
    item
        The item.
    most
        Multiplications and additions that a call may need.

    Attributes
    ----------
    questions
        The calls so far.
    why_not
        Why the item cannot be put as questions, if so.
    """

    def __init__(self, capabilities: ak.Capabilities, item: Item, most: float) -> None:
        backend = _Declaring(capabilities)
        super().__init__(backend.name, backend, backend)
        self.item, self._most = item, most
        self.questions: list[Question] = []
        self.why_not = ""

    def __getattribute__(self, name: str) -> Any:
        """Stop where a check asks for what cannot be put as a question."""
        if name in _OTHERS:
            self.why_not = f"{name} is no plain call of attention"
            raise NotCoveredError(self.why_not)
        return super().__getattribute__(name)

    def attention(self, arrays: Sequence[Thing], options: Mapping[str, Any], lse: bool = False) -> Results:
        """Write a call down."""
        question = self._question(arrays, options, lse)
        try:
            results = self.answered(question, lambda: super(Asking, self).attention(arrays, options, lse))
        except ak.UnsupportedError:
            self.questions.append(question)
            raise
        except ak.AttnkitError:
            self.why_not = "the call is wrong, and never reaches an implementation"
            raise
        self.questions.append(question)
        return results

    def answered(self, question: Question, right: Callable[[], Results]) -> Results:
        """Give the answer to a question."""
        del question
        return right()

    def _question(self, arrays: Sequence[Thing], options: Mapping[str, Any], lse: bool) -> Question:
        number = len(self.questions)
        name = hashlib.sha256(f"{self.item.case.seed} {self.item.id} {number}".encode()).hexdigest()[:16]
        try:
            case = _case(arrays, options)
            if _macs(case) > self._most:
                raise NotCoveredError("a call is larger than was asked for")
            told, named = describe(case, lse=lse)
        except NotCoveredError as error:
            self.why_not = str(error)
            raise
        except (ValueError, TypeError, AttributeError) as error:  # its arguments are of a kind that files do not hold
            self.why_not = "a call cannot be written down"
            raise NotCoveredError(self.why_not) from error
        digest = hashlib.sha256(told.model_dump_json().encode())
        for role in sorted(named):
            digest.update(named[role].tobytes())
        return Question(f"q{name}", case, lse, digest.hexdigest())


class Nudging(Asking):
    """Answers a little differently, which must not lead to other questions."""

    def answered(self, question: Question, right: Callable[[], Results]) -> Results:
        """Give the next larger numbers."""
        del question
        return tuple(np.nextafter(result, np.asarray(np.inf, result.dtype)) for result in right())


def _case(arrays: Sequence[Thing], options: Mapping[str, Any]) -> Case:
    query, key, value = arrays
    if not all(isinstance(array, np.ndarray) and array.ndim == 4 for array in arrays):
        raise NotCoveredError("a call whose arrays are not four-dimensional never reaches an implementation")
    (batch, heads, queries, head_dim), (kv_batch, kv_heads, keys, key_dim) = query.shape, key.shape
    fits = (kv_batch, key_dim, *value.shape[:3]) == (batch, head_dim, batch, kv_heads, keys)
    if not fits or not query.dtype == key.dtype == value.dtype or not head_dim or not value.shape[3]:
        raise NotCoveredError("a call whose arrays do not go together never reaches an implementation")
    return Case(
        label="question",
        batch=batch,
        heads=heads,
        kv_heads=kv_heads,
        queries=queries,
        keys=keys,
        head_dim=head_dim,
        value_dim=0 if value.shape[3] == head_dim else value.shape[3],
        dtype=query.dtype.name,
        pinned=("dtype", "head_dim"),
        options={name: option for name, option in options.items() if option is not None},
    ).holding(arrays)


def _macs(case: Case) -> float:
    return float(case.batch * case.heads * case.queries * case.keys * (case.head_dim + case.width))
