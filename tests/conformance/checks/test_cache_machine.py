"""Histories of caches: the model keeps up with the cache, and what fails is a short program."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from attnkit.cache import ContiguousCache
from attnkit_conformance.cache_model import CacheCase, History
from attnkit_conformance.checks.cache_machine import HISTORIES
from attnkit_conformance.histories import explore
from attnkit_conformance.selftest.cache_mutants import FaultyCaches
from attnkit_conformance.selftest.plain import Plain, unregistered
from attnkit_conformance.subject import Subject

RAGGED = next(case for case in HISTORIES if case.ragged)


class DropsOneMore(ContiguousCache):
    """Forgets one token more where more than two are dropped."""

    def drop(self, count: Any) -> None:
        super().drop(count)
        if (np.asarray(count) > 2).any():
            self._counts[:] = np.maximum(self._counts - 1, 0)


def test_a_failure_is_told_as_a_straight_line_program() -> None:
    subject = Subject(FaultyCaches("drops-one-more", Plain, DropsOneMore))
    with pytest.raises(AssertionError) as caught:
        explore(subject, HISTORIES[0], 1, examples=30, steps=12)
    told = str(caught.value).partition("after this program:\n")[2].splitlines()
    assert told == [
        f"    cache = ak.make_cache(ak.KVCacheConfig({_config(HISTORIES[0])}))",
        "    cache[0].append(*tokens(4))",
        "    cache.drop(3)",
    ]


def test_an_exception_of_a_cache_is_told_with_its_kind() -> None:
    class Breaks(ContiguousCache):
        def reset(self) -> None:
            raise ZeroDivisionError("reset")

    subject = Subject(FaultyCaches("breaks", Plain, Breaks))
    with pytest.raises(AssertionError, match=r"(?s)ZeroDivisionError: reset\nafter this program:.*cache\.reset\(\)$"):
        explore(subject, HISTORIES[0], 1, examples=10, steps=8)


def test_lengths_move_along_with_their_sequences() -> None:
    model = History(unregistered(Plain()), RAGGED)
    for layer in model.layers:
        model.append(model.tokens(3), np.array([1, 3]), layer=layer)
    model.reorder(np.array([1, 1]))
    model.attend(3)
    model.append(model.tokens(0))
    model.attend(3)
    assert model.lengths().tolist() == [3, 3]


def test_an_uneven_stack_drops_from_what_every_layer_holds() -> None:
    model = History(unregistered(Plain()), RAGGED)
    model.extend(4)
    model.append(model.tokens(2), layer=0)
    assert model.least().tolist() == [4, 4]
    model.drop(1)
    model.check()
    assert model.lengths(0).tolist() == model.lengths(1).tolist() == [3, 3]


def test_names_tell_histories_apart() -> None:
    assert len({str(case) for case in HISTORIES}) == len(HISTORIES)


def _config(case: CacheCase) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in case.config().items())
