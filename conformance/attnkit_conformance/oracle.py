"""The oracle's answers, remembered: it is slow, and every backend is asked the same."""

from __future__ import annotations

import hashlib
import pickle
from collections import OrderedDict
from collections.abc import Callable, Mapping
from functools import partial, wraps
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import numpy as np

from attnkit import reference
from attnkit.numerics import Numerics
from attnkit.tolerance import Arithmetic, Tolerance, output_deviation, output_terms
from attnkit_conformance.custom import CustomNumerics, assert_telling

Array = np.ndarray[Any, Any]
Fact = TypeVar("Fact")
AnyArithmetic = TypeVar("AnyArithmetic", bound=Arithmetic)
_ROOM = 1 << 23  # scores of all answers together; each comes with a few arrays of that size


class _Memory:
    """The answers that were asked for last, as far as there is room."""

    def __init__(self, room: int) -> None:
        self._left = room
        self._known: OrderedDict[bytes, reference.Truth] = OrderedDict()

    def get(self, name: bytes, make: Callable[[], reference.Truth]) -> reference.Truth:
        """Give an answer, made now if it is not known."""
        if name not in self._known:
            self._known[name] = make()
            self._left -= self._known[name].weights.size
        self._known.move_to_end(name)
        while self._left < 0 and len(self._known) > 1:
            _, oldest = self._known.popitem(last=False)
            self._left += oldest.weights.size
        return self._known[name]


_MEMORY = _Memory(_ROOM)


def _as_long_as_the_truth(
    function: Callable[[reference.Truth, AnyArithmetic], Fact],
) -> Callable[[reference.Truth, AnyArithmetic], Fact]:
    """Remember what a function gives as long as the answer that it is about."""
    known: WeakKeyDictionary[reference.Truth, dict[AnyArithmetic, Fact]] = WeakKeyDictionary()

    @wraps(function)
    def remembered(truth: reference.Truth, numerics: AnyArithmetic) -> Fact:
        facts = known.setdefault(truth, {})
        if numerics not in facts:
            facts[numerics] = function(truth, numerics)
        return facts[numerics]

    return remembered


def truth_of(query: Array, key: Array, value: Array, options: Mapping[str, Any]) -> reference.Truth:
    """Give what the oracle says about a call."""
    content = {name: getattr(option, "terms", option) for name, option in sorted(options.items())}
    known = hashlib.blake2b(pickle.dumps((query, key, value, content))).digest()
    return _MEMORY.get(known, partial(reference.attention, query, key, value, **options))


@_as_long_as_the_truth
def tolerance_of(truth: reference.Truth, numerics: Arithmetic) -> Tolerance:
    """Give how far a backend of these numerics may be from it.

    Raises
    ------
    UnsupportedError
        If numerics of one's own have no bound that tells anything, see ``attnkit_conformance.custom``.
    """
    bound = truth.tolerance(numerics)
    if isinstance(numerics, CustomNumerics):
        assert_telling(bound.output, truth.problem.value, partial(dominant_term, truth, numerics))
    return bound


def dominant_term(truth: reference.Truth, numerics: Arithmetic, at: tuple[int, ...]) -> str:
    """Name the largest of the terms that the bound of an output element ``[b, h, i, e]`` is the sum of."""
    b, h, i, e = at
    terms = output_terms(truth.facts(b, h, i, truth.usual_tiles), numerics)
    return max(terms, key=lambda name: np.nan_to_num(terms[name][e], nan=np.inf, posinf=np.inf))


@_as_long_as_the_truth
def deviation_of(truth: reference.Truth, numerics: Numerics) -> Array:
    """Predict the standard deviation of the error of every element of the output, ``[B, H, T, E]``."""
    deviation = np.empty_like(truth.output)
    for b, h, i in np.ndindex(truth.lse.shape):
        deviation[b, h, i] = output_deviation(truth.facts(b, h, i, truth.usual_tiles), numerics)
    return deviation
