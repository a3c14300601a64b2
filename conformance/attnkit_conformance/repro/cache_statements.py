"""Statements about caches: a part of ``Statements``."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any, Final

from attnkit import KVCacheConfig
from attnkit_conformance.repro.literals import called, literal
from attnkit_conformance.repro.names import Names
from attnkit_conformance.repro.tape import NUMBERS, Call

_NEW_PATH: Final = """def new_path():
    return Path(mkdtemp()) / "cache.safetensors"
"""
_DAMAGED: Final = """def damaged(path, place, bits):
    content = bytearray(path.read_bytes())
    at = round(place * (len(content) - 1))
    if bits:
        content[at] ^= bits
    else:
        del content[at:]
    other = new_path()
    other.write_bytes(content)
    return other
"""


class CacheStatements(ABC):
    """Writes calls that are about caches."""

    _names: Names
    _helpers: dict[str, str]

    @abstractmethod
    def _value(self, item: Any) -> str:
        """Give what an argument is called, or is."""

    @abstractmethod
    def _options(self, options: Mapping[str, Any]) -> Iterator[str]:
        """Give keyword arguments."""

    @abstractmethod
    def _made(self, call: Call, expression: str) -> str:
        """Give a statement: an assignment, where anything is made of the result."""

    def _make_cache(self, call: Call) -> str:
        return self._made(call, called("ak.make_cache", [_config(call), "backend=BACKEND"]))

    def _make_pool(self, call: Call) -> str:
        return self._made(call, called("ak.PagePool", [_config(call), "backend=BACKEND"]))

    def _pooled_cache(self, call: Call) -> str:
        pool = self._value(call.given["pool"])
        return self._made(call, called("ak.make_cache", [_config(call), "backend=BACKEND", f"pool={pool}"]))

    def _cache_call(self, call: Call) -> str:
        arguments = [*map(self._value, call.given["arguments"]), *self._options(call.given["options"])]
        made = called(f"{self._layer(call)}.{call.given['method']}", arguments)
        number = call.given["method"] in NUMBERS and self._names.of_call(call.number)
        return self._made(call, f"np.array({made})" if number else made)

    def _cache_kept(self, call: Call) -> str:
        arguments = list(map(self._value, call.given["arguments"]))
        return self._made(call, called(f"{self._cache(call)}.{call.given['method']}", arguments))

    def _cache_counter(self, call: Call) -> str:
        return self._made(call, f"{self._layer(call)}.{call.given['name']}")

    def _cache_count(self, call: Call) -> str:
        return self._made(call, f"np.array({self._layer(call)}.{call.given['name']})")

    def _cache_checked(self, call: Call) -> str:
        return f"{self._cache(call)}.check_invariants()"

    def _save_cache(self, call: Call) -> str:
        self._helpers["new_path"] = _NEW_PATH
        name = self._names.of_call(call.number)
        return f"{name} = new_path()\n{self._cache(call)}.save({name})"

    def _load_cache(self, call: Call) -> str:
        config = [] if call.given["config"] is None else [f"config={_config(call)}"]
        return self._made(call, called("ak.load_cache", [self._value(call.given["file"]), "backend=BACKEND", *config]))

    def _offload_to_file(self, call: Call) -> str:
        self._helpers["new_path"] = _NEW_PATH
        return self._made(call, f"{self._cache(call)}.offload({call.given['sequence']}, new_path())")

    def _damaged(self, call: Call) -> str:
        self._helpers |= {"new_path": _NEW_PATH, "damaged": _DAMAGED}
        place, bits = literal(call.given["place"]), literal(call.given["bits"])
        return self._made(call, f"damaged({self._value(call.given['file'])}, {place}, {bits})")

    def _cache(self, call: Call) -> str:
        return self._value(call.given["cache"])

    def _layer(self, call: Call) -> str:
        layer = call.given["layer"]
        return self._cache(call) + ("" if layer is None else f"[{layer}]")


def _config(call: Call) -> str:
    """Give the configuration of a call, without what it is by default."""
    usual = {name: item.default for name, item in KVCacheConfig.model_fields.items()}
    config = {name: value for name, value in call.given["config"].items() if value != usual[name]}
    if config.get("value_dim") == config.get("head_dim"):
        config.pop("value_dim", None)
    if config.get("key_codec") == config.get("value_codec") is not None:
        config["codec"] = config.pop("key_codec")
        del config["value_codec"]
    fields = ", ".join(f"{name}={literal(value)}" for name, value in config.items())
    return f"ak.KVCacheConfig({fields})"
