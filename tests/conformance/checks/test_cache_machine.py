"""Histories of caches: the model keeps up with the cache, and what fails is a short program."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from attnkit.cache import ContiguousCache, PagedCache
from attnkit_conformance.cache_case import CacheCase
from attnkit_conformance.cache_model import History
from attnkit_conformance.checks.cache_machine import HISTORIES, LAYOUTS
from attnkit_conformance.histories import explore
from attnkit_conformance.selftest.faulty_caches import cache_fault
from attnkit_conformance.selftest.plain import Plain, unregistered

RAGGED = next(case for case in HISTORIES if case.ragged)
PAGED = LAYOUTS[0]


class DropsOneMore(ContiguousCache):
    """Forgets one token more where more than two are dropped."""

    def drop(self, count: Any) -> None:
        super().drop(count)
        if (np.asarray(count) > 2).any():
            super().drop(np.minimum(self.next_position, 1))


class ForksTheFirst(PagedCache):
    """Copies the first sequence, whichever is asked for."""

    def fork(self, sequence: int) -> int:
        del sequence
        return super().fork(0)


def program(error: BaseException) -> list[str]:
    return [line.strip() for line in str(error).partition("after this program:\n")[2].splitlines()]


def test_a_failure_is_told_as_a_straight_line_program() -> None:
    subject = cache_fault("drops_one_more", "TestCacheMachine", DropsOneMore).subject()
    with pytest.raises(AssertionError) as caught:
        explore(subject, HISTORIES[0], 1, examples=30, steps=12)
    assert program(caught.value) == [
        f"cache = ak.make_cache(ak.KVCacheConfig({_config(HISTORIES[0])}))",
        "cache[0].append(*tokens(4))",
        "cache.drop(3)",
    ]


def test_steps_about_sequences_are_part_of_the_program() -> None:
    subject = cache_fault("forks_the_first", "TestCacheMachine", ForksTheFirst).subject()
    with pytest.raises(AssertionError) as caught:
        explore(subject, PAGED, 1, examples=30, steps=12)
    told = program(caught.value)
    assert told[0] == f"cache = ak.make_cache(ak.KVCacheConfig({_config(PAGED)}))"
    assert told[-1] == "cache.fork(1)"
    assert len(told) <= 4


def test_an_exception_of_a_cache_is_told_with_its_kind() -> None:
    class Breaks(ContiguousCache):
        def snapshot(self) -> Any:
            raise ZeroDivisionError("snapshot")

    subject = cache_fault("breaks", "TestCacheMachine", Breaks).subject()
    with pytest.raises(AssertionError, match=r"(?s)ZeroDivisionError: snapshot\nafter this program:.*snapshot\(\)$"):
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
    assert not model.is_even
    model.drop(1)
    model.check()
    assert model.is_even
    assert model.lengths(0).tolist() == model.lengths(1).tolist() == [3, 3]


def test_names_tell_histories_apart() -> None:
    every = [*HISTORIES, *LAYOUTS]
    assert len({str(case) for case in every}) == len(every)


def _config(case: CacheCase) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in case.config().items())
