"""Capabilities: what a backend declares, as data, and the refusals that follow from it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from attnkit.errors import PluginError, Reason
from attnkit.request import AttentionRequest

_NUMERICS = {"float64": "float64", "float32": "strict-fp32", "float16": "fa-16", "bfloat16": "fa-16"}


@dataclass(frozen=True, slots=True)
class Sizes:
    """A range of sizes: ``least <= size <= most`` and ``size % multiple == 0``; ``most=None`` is unlimited."""

    least: int = 1
    most: int | None = None
    multiple: int = 1

    def __contains__(self, size: int) -> bool:
        return self.least <= size and (self.most is None or size <= self.most) and size % self.multiple == 0

    def __str__(self) -> str:
        limit = f">= {self.least}" if self.most is None else f"from {self.least} to {self.most}"
        return limit if self.multiple == 1 else f"{limit}, a multiple of {self.multiple}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What a backend can do. What is not declared is refused, with the field's name as the code of the reason.

    Unmasked and causal attention of one head count (``K = H``), empty rows and empty axes are the core that every
    backend has; everything else defaults to "no".

    Attributes
    ----------
    libraries
        Array libraries it takes, by the root of their module name.
    devices
        Device kinds it takes.
    dtypes
        Element types it takes.
    head_dims
        Head sizes ``D`` (and ``E``) it takes.
    max_key_length
        Longest key axis, a power of two (requests round theirs up to one), or ``None``.
    gqa
        Fewer key/value heads than query heads.
    value_dim
        ``E != D``.
    window, prefix, chunked, documents, dense
        The mask kinds besides causal, and that any declared kinds may be joined.
    bias, alibi, softcap, sinks
        The terms of the scores.
    lengths
        ``query_lengths`` and ``kv_lengths``.
    offsets
        ``query_offset`` and ``key_offset``.
    lse
        Log-sum-exp.
    kv_dtype
        Keys and values (of a cache) in another element type than the query.
    layouts, codecs
        The layouts and codecs of caches that it holds; attnkit's own caches, which every backend has, know them all.
    grad
        Gradients with respect to query, key, value, bias and sinks.
    poison
        How far NaN and infinity are kept out of results: ``"padding"`` (slots beyond a length) or ``"masked"`` (hidden
        keys too).
    deterministic
        Equal inputs give equal bits from run to run.
    batch_invariant
        A sequence gives equal bits alone and in any batch.
    numerics
        Element type -> name of the numerics profile that bounds its error (see ``attnkit.numerics``).
    """

    libraries: frozenset[str] = frozenset({"numpy"})
    devices: frozenset[str] = frozenset({"cpu"})
    dtypes: frozenset[str] = frozenset({"float32"})
    head_dims: Sizes = Sizes()
    max_key_length: int | None = None
    gqa: bool = False
    value_dim: bool = False
    window: bool = False
    prefix: bool = False
    chunked: bool = False
    documents: bool = False
    dense: bool = False
    bias: bool = False
    alibi: bool = False
    softcap: bool = False
    sinks: bool = False
    lengths: bool = False
    offsets: bool = False
    lse: bool = False
    kv_dtype: bool = False
    layouts: frozenset[str] = frozenset({"contiguous", "ring", "paged"})
    codecs: frozenset[str] = frozenset({"native", "int8", "int4", "fp8"})
    grad: bool = False
    poison: Literal["padding", "masked"] = "padding"
    deterministic: bool = True
    batch_invariant: bool = False
    numerics: Mapping[str, str] = field(default_factory=lambda: dict(_NUMERICS))

    def __post_init__(self) -> None:
        limit = self.max_key_length
        if limit is not None and (limit < 1 or limit & (limit - 1)):
            raise PluginError(f"capabilities: max_key_length must be a power of two or None, got {limit}")
        missing = sorted(self.dtypes - set(self.numerics))
        if missing:
            raise PluginError(f"capabilities: numerics must name a profile for each of dtypes, missing {missing}")

    @classmethod
    def declare(cls, contract_version: str, /, **declared: Any) -> Capabilities:
        """Build capabilities that may come from a newer minor version of the contract: unknown fields are left out.

        Raises
        ------
        PluginError
            If a field is unknown although ``contract_version`` is not newer than ours.
        """
        known = {item.name for item in fields(cls)}
        unknown = sorted(set(declared) - known)
        if unknown and _minor(contract_version) <= _minor(CONTRACT_VERSION):
            raise PluginError(
                f"capabilities: unknown fields {unknown} for contract {contract_version}; known: {sorted(known)}"
            )
        return cls(**{name: value for name, value in declared.items() if name in known})

    def unsupported(self, request: AttentionRequest) -> list[Reason]:
        """Give every reason against a request that follows from what is declared."""
        return [*self._refused_kinds(request), *self._refused_sizes(request), *self._refused_options(request)]

    def _refused_kinds(self, request: AttentionRequest) -> Iterator[Reason]:
        roots = {name.partition(".")[0] for name in request.array_type}
        if not roots & self.libraries:
            yield _reason("libraries", "query", f"an array of {_list(self.libraries)}", request.array_type[0])
        kind = request.device.partition(":")[0]
        if kind not in self.devices and "*" not in self.devices:
            yield _reason("devices", "device", _list(self.devices), request.device)
        if request.dtype not in self.dtypes:
            yield _reason("dtypes", "dtype", _list(self.dtypes), request.dtype)
        if request.kv_dtype != request.dtype and not self.kv_dtype:
            yield _reason("kv_dtype", "kv_dtype", f"the query's ({request.dtype})", request.kv_dtype)

    def _refused_sizes(self, request: AttentionRequest) -> Iterator[Reason]:
        for name in ("head_dim", "value_dim"):
            size = getattr(request, name)
            if size not in self.head_dims and (name == "head_dim" or size != request.head_dim):
                yield _reason("head_dims", name, str(self.head_dims), size)
        if self.max_key_length is not None and request.key_length > self.max_key_length:
            yield _reason("max_key_length", "key_length", f"<= {self.max_key_length}", f"up to {request.key_length}")
        if request.num_kv_heads != request.num_heads and not self.gqa:
            yield _reason("gqa", "num_kv_heads", f"num_heads ({request.num_heads})", request.num_kv_heads)
        if request.value_dim != request.head_dim and not self.value_dim:
            yield _reason("value_dim", "value_dim", f"head_dim ({request.head_dim})", request.value_dim)

    def _refused_options(self, request: AttentionRequest) -> Iterator[Reason]:
        for code, option, used in _options(request):
            if used and not getattr(self, code):
                yield _reason(code, option, "absent", "given")


CONTRACT_VERSION = "1.0"


def _options(request: AttentionRequest) -> Iterator[tuple[str, str, bool]]:
    """Give ``(capability, option, whether the request uses it)``."""
    mask = request.mask
    yield "window", "mask.window", mask.left is not None or mask.right is not None
    yield "prefix", "mask.prefix", mask.prefix is not None
    yield "chunked", "mask.chunked", bool(mask.chunks)
    yield "documents", "mask.documents", mask.documents > 0
    yield "dense", "mask.dense", mask.dense > 0
    yield "bias", "bias", request.bias is not None
    yield "softcap", "softcap", request.softcap is not None
    yield "alibi", "alibi", request.alibi
    yield "sinks", "sinks", request.sinks
    yield "lengths", "query_lengths", request.query_lengths
    yield "lengths", "kv_lengths", request.kv_lengths
    yield "offsets", "query_offset", request.query_offset
    yield "offsets", "key_offset", request.key_offset
    yield "lse", "lse", request.lse
    yield "grad", "grad", request.grad


def _reason(code: str, name: str, required: str, actual: object) -> Reason:
    hints = {
        "grad": "detach the inputs, or choose a backend that declares grad",
        "libraries": "convert the arrays, or choose a backend of their library",
        "dtypes": "convert the arrays by value",
    }
    return Reason(code, name, required, str(actual), hints.get(code, ""))


def _list(names: frozenset[str]) -> str:
    return " or ".join(sorted(names))


def _minor(version: str) -> int:
    return int(version.partition(".")[2].partition(".")[0] or 0)
