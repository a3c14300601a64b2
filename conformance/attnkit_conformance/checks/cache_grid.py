"""Layouts, codecs and element types of caches in few cases, in which every two of them meet that can.

``LAYOUTS`` are those that every backend has, as long as it leaves caches to attnkit; ``GRID`` are all others.
"""

from __future__ import annotations

from typing import Any, Final

from attnkit_conformance.cache_case import CacheCase
from attnkit_conformance.cache_layouts import Paged, Ring
from attnkit_conformance.structures import CAUSALLY


def cache_case(label: str, tokens: int = 24, **fields: Any) -> CacheCase:
    """Give a causal case of a cache."""
    return CacheCase(label=label, queries=tokens, keys=tokens, **{"options": CAUSALLY, **fields})


def _layout(**fields: Any) -> CacheCase:
    return cache_case("layout", **{"layers": 2, "chunk": 2, **fields})


def _grid(**fields: Any) -> CacheCase:
    return cache_case("grid", **{"chunk": 2, **fields})


LAYOUTS: Final = [
    _layout(layout=Paged(4)),
    _layout(layout=Paged(3), codecs=("int8", "int8")),
    _layout(codecs=("int4/4", "int8"), layers=1),
]
GRID: Final = [
    _grid(layout=Ring(6, 4), layers=2),
    _grid(layout=Ring(4, 5, pinned=2), codecs=("int8", "int8")),
    _grid(layout=Ring(5, 8, pinned=1), codecs=("native", "fp8"), dtype="float16", pinned=("dtype",), layers=2),
    _grid(layout=Ring(1, 3), codecs=("int4", "int4"), heads=4),
    _grid(layout=Paged(1), codecs=("int4", "int4")),
    _grid(layout=Paged(64), codecs=("fp8", "fp8"), heads=4),
    _grid(layout=Paged(5), max_length=60, dtype="bfloat16", pinned=("dtype",), layers=2),
    _grid(layout=Paged(4, 60), codecs=("int8/8", "native"), value_dim=8, dtype="float64", pinned=("dtype",)),
    _grid(max_length=60, codecs=("fp8", "fp8"), dtype="bfloat16", pinned=("dtype",)),
    _grid(codecs=("int8", "int4"), heads=4, layers=2),
]
