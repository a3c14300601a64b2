"""Errors cross as data and come back as what a check would catch in one process."""

from __future__ import annotations

import json

import pytest

import attnkit as ak
from attnkit_conformance.harness import failures
from attnkit_conformance.harness.failures import BackendError, is_from_backend, raised, told
from attnkit_conformance.harness.targets import TargetError, UnavailableError

REASONS = {
    "mine": (ak.Reason("sinks", "sinks", "absent", "given"), ak.Reason("gqa", "num_kv_heads", "4", "2", "use 4")),
    "mine:fast": (ak.Reason("path", "query_length", "1", "7"),),
}


class OwnError(ValueError):
    """A plug-in's."""


class ShapeError(Exception):
    """Of the same name as one of attnkit, and no more."""


def crossed(error: Exception) -> Exception:
    return raised(json.loads(json.dumps(told(error))))


@pytest.mark.parametrize(
    "kind",
    [
        *(ak.AttnkitError, ak.BackendNotFoundError, ak.BackendUnavailableError, ak.PluginError, ak.ShapeError),
        *(ak.DTypeError, ak.CacheCapacityError, ak.DeviceError, TargetError, UnavailableError),
    ],
)
def test_errors_of_attnkit_are_what_they_were(kind: type[Exception]) -> None:
    back = crossed(kind("query: shape must be [B, H, T, D]"))
    assert type(back) is kind
    assert str(back) == "query: shape must be [B, H, T, D]"


def test_a_refusal_keeps_all_reasons() -> None:
    error = ak.UnsupportedError("no backend takes this call:", REASONS)
    back = crossed(error)
    assert type(back) is ak.UnsupportedError
    assert back.reasons == REASONS
    assert str(back) == str(error)


@pytest.mark.parametrize("kind", failures._BUILTIN.values())
def test_builtin_errors_are_caught_as_such_and_known_as_the_backends(kind: type[Exception]) -> None:
    back = crossed(kind("out of memory"))
    assert isinstance(back, kind)
    assert isinstance(back, BackendError)
    assert type(back).__name__ == kind.__name__
    assert "out of memory" in str(back)


def test_the_nearest_class_that_is_known_is_taken() -> None:
    back = crossed(OwnError("odd"))
    assert isinstance(back, ValueError)
    assert str(back) == "OwnError: odd"
    assert isinstance(crossed(type("Grown", (ak.ShapeError,), {})("odd")), ak.ShapeError)


def test_what_is_unknown_is_an_error_of_the_backend() -> None:
    for error in (ShapeError("not attnkit's"), StopAsyncIteration("odd")):
        back = crossed(error)
        assert type(back) is BackendError
        assert str(back) == f"{type(error).__name__}: {error}"


def test_an_error_says_where_it_was_raised() -> None:
    try:
        raise OwnError("odd")
    except OwnError as error:
        (note,) = crossed(error).__notes__
    assert "test_failures.py:" in note
    assert "test_an_error_says_where_it_was_raised" in note


def test_an_error_that_cannot_be_told_is_told_of() -> None:
    class MuteError(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no words")

    assert str(crossed(MuteError())) == "MuteError: (it cannot be shown)"


def test_whose_an_error_is() -> None:
    assert is_from_backend(AssertionError())
    assert is_from_backend(ak.ShapeError())
    assert is_from_backend(crossed(IndexError("7")))
    assert not is_from_backend(IndexError("7"))
