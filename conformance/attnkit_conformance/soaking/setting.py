"""Settings: which caches are under random use."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import attnkit as ak

HEADS = 4
_SIZES: dict[str, Any] = {"num_layers": 2, "batch_size": 2, "num_kv_heads": 2, "head_dim": 4, "value_dim": 3}

LAYOUTS: dict[str, dict[str, Any]] = {
    "growing": {},
    "fixed": {"max_length": 20},
    "ring": {"layout": "ring", "window": 5, "max_append": 4},
    "ring-of-1": {"layout": "ring", "window": 1, "max_append": 3},
    "pinned": {"layout": "ring", "window": 3, "max_append": 5, "pinned": 2},
    "paged": {"layout": "paged", "page_size": 4},
    "pages-of-1": {"layout": "paged", "page_size": 1, "max_length": 24},
    "pool": {"layout": "paged", "page_size": 3, "num_pages": 16},
    "shared-pool": {"layout": "paged", "page_size": 2, "num_pages": 40},
}
CODECS: dict[str, dict[str, Any]] = {
    "native": {},
    "half": {"dtype": "float16"},
    "int8": {"codec": "int8"},
    "int4": {"key_codec": "int4/2", "value_codec": "int4"},
    "fp8": {"codec": "fp8", "dtype": "bfloat16"},
    "mixed": {"key_codec": "int8/2", "value_codec": "native", "dtype": "float64"},
}


@dataclass(frozen=True)
class Setting:
    """Caches of one configuration.

    Attributes
    ----------
    name
        Layout, codec and backend.
    config
        Of each cache.
    backends
        Where they may lie; in the first to begin with.
    caches
        How many; several share one pool.
    """

    name: str
    config: ak.KVCacheConfig
    backends: tuple[str, ...]
    caches: int = 1

    def make(self) -> dict[str, ak.KVCache]:
        """Give empty caches by name."""
        backend = self.backends[0]
        if self.caches == 1:
            return {"cache": ak.make_cache(self.config, backend=backend)}
        pool = ak.PagePool(self.config, backend=backend)
        return {name: ak.make_cache(self.config, backend=backend, pool=pool) for name in self._names}

    @property
    def program(self) -> list[str]:
        """How they are made, as a straight line of calls."""
        fields = {name: str(value) if isinstance(value, ak.Codec) else value for name, value in self.config}
        given = ", ".join(f"{name}={value!r}" for name, value in fields.items() if value is not None)
        lines, make = [f"config = ak.KVCacheConfig({given})"], f"ak.make_cache(config, backend={self.backends[0]!r}"
        if self.caches == 1:
            return [*lines, f"cache = {make})"]
        pool = f"pool = ak.PagePool(config, backend={self.backends[0]!r})"
        return [*lines, pool, *(f"{name} = {make}, pool=pool)" for name in self._names)]

    @property
    def _names(self) -> list[str]:
        return ["first", "second", "third"][: self.caches]


def settings(backends: Sequence[str]) -> list[Setting]:
    """Give every layout with every codec, on every backend."""
    return [
        Setting(
            f"{layout}-{codec}-{backend}",
            ak.KVCacheConfig(**{**_SIZES, **LAYOUTS[layout], **CODECS[codec]}),
            (backend, *(other for other in backends if other != backend)),
            2 if layout == "shared-pool" else 1,
        )
        for layout in LAYOUTS
        for codec in CODECS
        for backend in backends
    ]
