"""The oracle's memory: it gives what it gave, and does not grow without end."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable

import numpy as np
import pytest

from attnkit import reference
from attnkit.numerics import numerics_for
from attnkit_conformance import oracle
from attnkit_conformance.oracle import tolerance_of, truth_of

FLOAT32 = numerics_for("strict-fp32", "float32")
Answer = Callable[..., reference.Truth]


@pytest.fixture
def answer(monkeypatch: pytest.MonkeyPatch) -> Answer:
    """Ask an oracle that has room for 100 scores."""
    monkeypatch.setattr(oracle, "_MEMORY", oracle._Memory(100))

    def answer(number: float, keys: int = 6) -> reference.Truth:
        array = np.full((1, 1, keys, 4), number)
        return truth_of(array[:, :, :5], array, array, {})

    return answer


def test_what_was_asked_before_is_known(answer: Answer) -> None:
    assert answer(1) is answer(1)
    assert answer(1) is not answer(2)


def test_what_was_not_asked_for_long_is_forgotten(answer: Answer) -> None:
    first, second, third = answer(1), answer(2), answer(3)  # 30 scores each
    assert answer(1) is first
    answer(4)
    assert answer(1) is first
    assert answer(3) is third
    assert answer(2) is not second


def test_one_that_is_larger_than_the_room_is_an_answer_all_the_same(answer: Answer) -> None:
    large = answer(1, keys=50)
    assert answer(1, keys=50) is large
    answer(2)
    assert answer(1, keys=50) is not large


def test_bounds_go_with_their_truths(answer: Answer) -> None:
    truth = answer(1, keys=50)
    bound = tolerance_of(truth, FLOAT32)
    assert tolerance_of(truth, FLOAT32) is bound
    assert tolerance_of(truth, numerics_for("fp32P-16", "bfloat16")) is not bound
    kept = [weakref.ref(truth), weakref.ref(bound.output)]
    answer(2)
    del truth, bound
    gc.collect()
    assert [reference() for reference in kept] == [None, None]
