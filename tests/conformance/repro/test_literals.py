"""What is written into a program is read as the same thing."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from attnkit_conformance.harness.foreign import Foreign
from attnkit_conformance.harness.tracking import Tracked, requiring_grad
from attnkit_conformance.harness.views import VIEWS
from attnkit_conformance.repro.literals import Data, called, index, literal, source

ARRAYS = [
    np.zeros((2, 0, 3), np.float32),
    np.zeros((1, 1, 2, 4), np.float16),
    np.full((3, 5), -2.5, np.float64),
    np.array([0.1, -3.0, 1e-30], np.float32).reshape(1, 3, 1),
    np.array([0.1, np.nan, np.inf, -np.inf], np.float64),
    np.array([1.5, -0.1, 3e38], ml_dtypes.bfloat16),
    np.array([4, 9]),
    np.array([True, False]).reshape(1, 2),
    np.array([-0.0, 1.0], np.float32),
    np.array(3, np.int32),
    np.arange(5, dtype=np.int32),
]


@pytest.mark.parametrize("array", ARRAYS, ids=str)
def test_short_arrays_are_written_out(array: Any) -> None:
    data = Data()
    found = eval(data.expression("given", array), {"np": np, "ml_dtypes": ml_dtypes})
    assert not data.used
    assert (found.shape, found.dtype) == (array.shape, array.dtype)
    assert found.tobytes() == array.tobytes()


@pytest.mark.parametrize("array", [np.arange(20.0), np.random.default_rng(0).random(9)], ids=["long", "odd"])
def test_other_arrays_are_read(array: Any) -> None:
    data = Data()
    assert data.expression("given", array) == 'data["given"]'
    assert data.expression("given", 2 * array) == 'data["given_2"]'
    assert data.used
    assert data.arrays["given_2"].tolist() == (2 * array).tolist()


def test_bfloat16_is_read_as_what_it_is() -> None:
    array = np.arange(20).astype(ml_dtypes.bfloat16)
    assert Data().expression("given", array) == 'data["given"].view(ml_dtypes.bfloat16)'


@pytest.mark.parametrize(
    "value",
    [None, True, 3, -0.5, float("inf"), "causal", (1,), (1, (2.0, None)), [1.5, 2], {"b", "a"}, np.float64(0.5)],
)
def test_values_are_read_as_the_same(value: Any) -> None:
    found = eval(literal(value), {"np": np})
    assert (found, type(found)) == (value, type(value))


def test_numbers_of_numpy_are_plain_where_it_does_not_matter() -> None:
    assert literal(np.int64(3)) == "3"
    assert literal(np.bool_(True)) == "True"


def test_indices() -> None:
    assert index(()) == ""
    assert index((slice(None), slice(2, 3), 1)) == "[:, 2:3, 1]"


def test_long_calls_are_wrapped() -> None:
    assert called("f", ["a", "b=1"]) == "f(a, b=1)"
    assert called("f", ["a" * 60, "b" * 40]) == f"f(\n    {'a' * 60}, {'b' * 40}\n)"
    assert called("f", ["a" * 60, "b" * 60]) == f"f(\n    {'a' * 60},\n    {'b' * 60},\n)"


@pytest.mark.parametrize("thing", [*VIEWS.values(), Foreign, Tracked, requiring_grad], ids=lambda thing: thing.__name__)
def test_helpers_stand_alone(thing: Any) -> None:
    text = source(thing)
    assert ":" in text
    assert '"""' not in text
    assert "Any" not in text
    found: dict[str, Any] = {}
    exec(f"import array_api_compat\nimport numpy as np\nclass Tracked(np.ndarray): pass\n{text}", found)
    assert thing.__name__ in found


@pytest.mark.parametrize("how", VIEWS)
def test_views_mean_the_same(how: str) -> None:
    found: dict[str, Any] = {}
    exec(f"import array_api_compat\nimport numpy as np\n{source(VIEWS[how])}", found)
    array = np.random.default_rng(0).random((2, 3, 4, 5))
    assert (found[VIEWS[how].__name__](np.array, array) == array).all()
