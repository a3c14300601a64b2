"""Names: which may be registered, and what they do."""

# ruff: noqa: E402  # imports follow the skip of those who lack the packages

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="pip install 'attnkit[torch]'")
pytest.importorskip("transformers", reason="pip install 'attnkit[transformers]'")

from transformers import AttentionInterface, AttentionMaskInterface

import attnkit as ak
from attnkit.integrations.transformers import _extra, register
from attnkit.integrations.transformers.errors import MissingExtraError


@pytest.mark.parametrize(
    "name", ["sdpa", "attnkit_sdpa", "attnkit_Flash", "flex", "eager", "paged", "attnkit|x", "attnkit/x", "a:b", "", 3]
)
def test_names_that_transformers_misreads_are_refused(name) -> None:
    with pytest.raises(ValueError, match="name must"):
        register(name)
    assert name in {"sdpa"} or name not in AttentionInterface()


def test_a_name_of_somebody_else_is_refused(implementation) -> None:
    name = implementation(print, None)
    with pytest.raises(ValueError, match="somebody else"):
        register(name)
    assert AttentionInterface()[name] is print


def test_an_unknown_backend_is_refused_at_once() -> None:
    with pytest.raises(ak.BackendNotFoundError):
        register("attnkit_nowhere", backend="nowhere")
    assert "attnkit_nowhere" not in AttentionInterface()


def test_both_functions_are_registered_and_again_is_harmless(zoo) -> None:
    register("attnkit")
    register("attnkit", backend="torch")
    assert "attnkit" in AttentionInterface()
    assert "attnkit" in AttentionMaskInterface()


@pytest.mark.parametrize(("name", "backend"), [("attnkit", "torch"), ("attnkit_numpy", "numpy")])
def test_a_name_fixes_its_backend(zoo, name, backend) -> None:
    with ak.trace() as calls:
        zoo.run(zoo.model("llama", name), "llama", "prompt")
    assert [call.backend for call in calls] == [backend] * 2


def test_without_a_backend_the_context_chooses(zoo) -> None:
    register("attnkit_any")
    for backend in ("numpy", "torch:dense"):
        with ak.use_backend(backend), ak.trace() as calls:
            zoo.run(zoo.model("llama", "attnkit_any"), "llama", "prompt")
        assert {call.choice for call in calls} == {backend}


def test_what_is_missing_or_too_old_is_said() -> None:
    with pytest.raises(MissingExtraError, match=r"nonesuch >= 1\.0, which is not installed.*attnkit\[transformers\]"):
        _extra.require({"nonesuch": (1, 0)})
    with pytest.raises(MissingExtraError, match=r"torch >= 99\.1, found .*pip install"):
        _extra.require({"torch": (99, 1)})
    assert issubclass(MissingExtraError, ImportError)
