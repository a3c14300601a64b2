"""What tests of the core share: a backend in a few lines, and a registry that knows nobody."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

import numpy as np
import pytest

import attnkit as ak
from attnkit import interception, selection
from attnkit.registry import Registry

MASKS = ("window", "prefix", "chunked", "documents", "dense")
OPTIONS = ("gqa", "value_dim", "bias", "alibi", "softcap", "sinks", "lengths", "offsets", "lse", "kv_dtype")
YES = dict.fromkeys(MASKS + OPTIONS, True)


class Toy(np.ndarray):
    """A NumPy array of a type of its own, which no installed backend claims by name."""


class Plain(ak.Backend):
    """The definition in float64, on NumPy arrays; keys that no query sees are never read."""

    name = "plain"

    def capabilities(self) -> ak.Capabilities:
        return ak.Capabilities(dtypes=frozenset({"float16", "bfloat16", "float32", "float64"}), **YES)

    @np.errstate(all="ignore")
    def attention(
        self, query: Any, key: Any, value: Any, operands: ak.Operands, request: ak.AttentionRequest
    ) -> ak.AttentionOutput:
        shape = (*query.shape[:3], key.shape[2])
        shown = np.broadcast_to(request.visible(operands), shape)
        read = shown.any(axis=2)[..., None]
        key, value = (np.repeat(array.astype(np.float64), request.group, axis=1) for array in (key, value))
        scores = request.scale * (query.astype(np.float64) @ np.where(read, key, 0).swapaxes(-1, -2))
        if request.softcap is not None:
            scores = request.softcap * np.tanh(scores / request.softcap)
        bias = request.score_bias(operands)
        scores = np.where(shown, scores if bias is None else scores + bias, -np.inf)
        sinks = np.full(shape[1], -np.inf) if operands.sinks is None else operands.sinks.astype(np.float64)
        top = np.maximum(scores.max(axis=-1, initial=-np.inf), sinks[:, None])
        base = np.where(np.isfinite(top), top, 0)
        weights = np.exp(scores - base[..., None])
        total = weights.sum(axis=-1) + np.exp(sinks[:, None] - base)
        output = weights @ np.where(read, value, 0) / np.where(total > 0, total, 1)[..., None]
        return ak.AttentionOutput(output.astype(query.dtype), (base + np.log(total)).astype(request.accumulate))

    def from_numpy(self, array: Any) -> Any:
        return array.copy()

    def to_numpy(self, array: Any) -> Any:
        return array.copy()


def make_backend(name: str, **members: Any) -> ak.Backend:
    """Give a ``Plain`` of another name; ``members`` replace attributes of its class."""
    return type(name.title(), (Plain,), {"name": name, **members})()


def make_spec(name: str, **fields: Any) -> ak.BackendSpec:
    """Give the spec of a ``Plain`` of that name; what is no field of a spec is a member of the backend."""
    members = {key: fields.pop(key) for key in list(fields) if key not in ak.BackendSpec.__dataclass_fields__}
    members |= {key: fields[key] for key in ("paths",) if key in fields}  # of the backend and told by its spec
    return ak.BackendSpec(**{"name": name, "load": lambda: make_backend(name, **members), **fields})


def make_constant(number: float) -> Callable[..., ak.AttentionOutput]:
    """Give an ``attention`` that gives this number everywhere: proof of who ran."""

    def attention(_self: ak.Backend, query: Any, _key: Any, value: Any, _operands: Any, request: Any) -> Any:
        output = np.full((*query.shape[:3], value.shape[3]), number, query.dtype)
        return ak.AttentionOutput(output, np.zeros(query.shape[:3], request.accumulate))

    return attention


class Kit:
    """Under importlib mode tests cannot import this file."""

    Plain = Plain
    Toy = Toy
    toy_name = f"{Toy.__module__}.{Toy.__qualname__}"
    yes = YES
    backend = staticmethod(make_backend)
    spec = staticmethod(make_spec)
    constant = staticmethod(make_constant)


@pytest.fixture(scope="session")
def kit() -> type[Kit]:
    return Kit


@pytest.fixture
def nobody(monkeypatch: pytest.MonkeyPatch) -> Iterator[Registry]:
    """Put an empty registry, which looks for no entry points, in the place of the shared one."""
    registry = Registry()
    monkeypatch.setattr("attnkit.registry.entry_points", lambda group: [])
    for module in ("registry", "selection", "explanation", "interception", "api"):
        monkeypatch.setattr(import_module(f"attnkit.{module}"), "registry", registry)
    monkeypatch.delenv(selection.ENVIRONMENT, raising=False)
    forget = (selection._select.cache_clear, interception._interceptor.cache_clear)
    for clear in forget:  # their keys have the generation of a registry, not the registry
        clear()
    yield registry
    for clear in forget:
        clear()


@pytest.fixture
def three(nobody: Registry) -> Registry:
    """Register three backends: ``a`` owns NumPy arrays, ``b`` and ``c`` are there for those who name them."""
    ak.register(make_spec("a", owns=(("numpy.ndarray", "cpu"),), attention=make_constant(1)))
    ak.register(make_spec("b", attention=make_constant(2), paths=("fast", "exact")))
    ak.register(make_spec("c", attention=make_constant(3)))
    return nobody


@pytest.fixture
def plain(nobody: Registry) -> str:
    """Register ``Plain`` as the only backend, owner of NumPy arrays."""
    nobody.register(make_spec("plain", owns=(("numpy.ndarray", "cpu"),)))
    return "plain"


@pytest.fixture
def draw() -> Callable[..., Any]:
    """Draw standard normal arrays, the same ones in each test."""
    generator = np.random.default_rng(20240607)

    def draw(*shape: int, dtype: Any = np.float64) -> Any:
        return generator.standard_normal(shape).astype(dtype)

    return draw
