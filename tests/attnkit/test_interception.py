"""A plug-in's interceptor gets the calls on its own arrays, first, and may give the result."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import attnkit as ak
from attnkit.interception import interceptor
from attnkit.registry import Registry


@pytest.fixture
def seen(kit: Any, nobody: Registry) -> list[Any]:
    """Register an interceptor of toy arrays that answers rows of ones with sevens, and notes every call."""
    calls: list[Any] = []

    def intercept(query: Any, key: Any, value: Any, options: Any, lse: bool, backend: Any) -> Any:
        calls.append((query.shape, options, lse, backend))
        return ak.AttentionOutput(np.full_like(query, 7), None) if query.flat[0] == 1 else None

    owns = ((kit.toy_name, "cpu"),)
    nobody.register(kit.spec("toys", owns=owns, intercept=lambda: intercept))
    nobody.register(kit.spec("others", owns=(("numpy.ndarray", "cpu"),), attention=kit.constant(2)))
    return calls


def toy(kit: Any, number: float, rank: int = 4) -> Any:
    return np.full((1,) * (rank - 1) + (2,), number, np.float32).view(kit.Toy)


def test_it_may_give_the_result(kit: Any, seen: list[Any]) -> None:
    array = toy(kit, 1)
    assert (ak.attention(array, array, array, scale=2.0, backend="others") == 7).all()
    ((shape, options, lse, backend),) = seen
    assert (shape, options.scale, lse, backend) == ((1, 1, 1, 2), 2.0, False, "others")


def test_none_lets_the_call_go_on(kit: Any, seen: list[Any]) -> None:
    array = toy(kit, 3)
    assert (ak.attention(array, array, array, backend="others") == 2).all()
    assert len(seen) == 1


def test_it_meets_four_axes_and_the_result_has_the_callers(kit: Any, seen: list[Any]) -> None:
    array = toy(kit, 1, rank=2)
    assert ak.attention(array, array, array).shape == (1, 2)
    assert seen[0][0] == (1, 1, 1, 2)


def test_arrays_of_others_pass_it_by(seen: list[Any]) -> None:
    array = np.ones((1, 1, 1, 2), np.float32)
    assert (ak.attention(array, array, array) == 2).all()
    assert seen == []


def test_it_is_forgotten_with_its_backend(kit: Any, seen: list[Any], nobody: Registry) -> None:
    assert interceptor(kit.Toy) is not None
    nobody.unregister("toys")
    assert interceptor(kit.Toy) is None


def test_one_that_fails_to_load_is_named(kit: Any, nobody: Registry) -> None:
    def broken() -> Any:
        raise ImportError("no such library")

    nobody.register(kit.spec("broken", owns=((kit.toy_name, "cpu"),), intercept=broken))
    with pytest.raises(ak.PluginError, match="'broken' failed to give its interceptor: no such library"):
        ak.attention(*[toy(kit, 1)] * 3)
