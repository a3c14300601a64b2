"""Describing: a call as plain data and named arrays, and back, without a bit lost.

Axes: ``B`` batch, ``H`` query heads, ``K`` key/value heads, ``T`` query length, ``S`` key length, ``D`` query/key head
size, ``E`` value head size.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Final, Literal

import ml_dtypes  # noqa: F401  # makes numpy.dtype("bfloat16") known
import numpy as np
from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, PositiveInt

import attnkit as ak
from attnkit_conformance.cases import Case
from attnkit_conformance.packages.errors import PackageError
from attnkit_conformance.packages.wording import semantics

Array = np.ndarray[Any, Any]
DType = Literal["float32", "float64", "bfloat16", "float16", "bool", "int64"]
ARRAYS: Final = ("query", "key", "value")
_OPERANDS: Final = ("bias", "alibi", "sinks")
_NUMBERS: Final = ("query_lengths", "kv_lengths", "query_offset", "key_offset")
_DOCUMENTS: Final = ("queries", "keys")


class _Data(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ArrayDescription(_Data):
    """Element type and shape of an array; its elements lie in a file, row-major and little-endian."""

    dtype: DType
    shape: Annotated[tuple[NonNegativeInt, ...], Field(max_length=4)]

    @property
    def count(self) -> int:
        """Elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of its file."""
        return self.count * np.dtype(self.dtype).itemsize


class MaskTerm(_Data):
    """One kind of mask and its arguments; a key is visible where every term of a mask lets it.

    Attributes
    ----------
    kind
        Its name; ``semantics`` of the call says what it means.
    left, right, n
        Its numbers; ``None`` = without limit.
    arrays
        Roles of its arrays: ids of queries and of keys, or the booleans, broadcast to ``[B, H, T, S]``.
    """

    kind: Literal["causal", "window", "prefix", "chunked", "documents", "dense"]
    left: int | None = None
    right: int | None = None
    n: int | None = None
    arrays: tuple[str, ...] = ()


class CallDescription(_Data):
    """A call of attention.

    Attributes
    ----------
    batch, heads, kv_heads, queries, keys, head_dim, value_dim
        ``B``, ``H``, ``K``, ``T``, ``S``, ``D``, ``E``; query head ``h`` reads key/value head ``h // (H // K)``.
    dtype
        Element type of query, key, value, and output.
    scale
        What products of query and key are multiplied with; ``scale_hex`` is the very number.
    softcap
        ``c`` of ``c * tanh(score / c)``, applied before bias and mask; ``None``: none.
    mask
        Its terms.
    lse
        Whether the natural log of the normaliser is wanted, ``[B, H, T]``, float32, or float64 for float64.
    arrays
        Role -> element type and shape: query ``[B, H, T, D]``, key ``[B, K, S, D]``, value ``[B, K, S, E]``, bias,
        alibi (slopes ``[H]`` or ``[B, H]``), sinks ``[H]``, and query_lengths, kv_lengths, query_offset, key_offset
        (``[B]`` or ``[]``), and those of the mask.
    semantics
        What the call means, in words.
    """

    batch: NonNegativeInt
    heads: NonNegativeInt
    kv_heads: NonNegativeInt
    queries: NonNegativeInt
    keys: NonNegativeInt
    head_dim: PositiveInt
    value_dim: PositiveInt
    dtype: Literal["float32", "float64", "bfloat16", "float16"]
    scale: float
    scale_hex: str
    softcap: float | None = None
    mask: tuple[MaskTerm, ...] = ()
    lse: bool = True
    arrays: Mapping[str, ArrayDescription]
    semantics: tuple[str, ...] = ()


def describe(case: Case, *, lse: bool = True) -> tuple[CallDescription, dict[str, Array]]:
    """Give a call as data, and its arrays by their roles."""
    options = {name: option for name, option in case.options.items() if option is not None}
    mask = options.get("mask")
    terms, arrays = _terms(() if mask is None else mask.terms)
    named = dict(zip(ARRAYS, map(np.asarray, case.arrays), strict=True)) | arrays
    named |= {name: np.asarray(options[name]) for name in _OPERANDS if name in options}
    named |= {name: np.asarray(options[name], np.int64) for name in _NUMBERS if name in options}
    scale = float(options.get("scale", 1 / math.sqrt(case.head_dim)))
    told = CallDescription(
        batch=case.batch,
        heads=case.heads,
        kv_heads=case.kv_heads,
        queries=case.queries,
        keys=case.keys,
        head_dim=case.head_dim,
        value_dim=case.width,
        dtype=case.dtype,  # type: ignore[arg-type]  # one of the four
        scale=scale,
        scale_hex=scale.hex(),
        softcap=None if options.get("softcap") is None else float(options["softcap"]),
        mask=tuple(terms),
        lse=lse,
        arrays={
            role: ArrayDescription(dtype=_dtype(array), shape=array.shape) for role, array in sorted(named.items())
        },
        semantics=semantics(case, options),
    )
    return told, named


def case_of(told: CallDescription, arrays: Mapping[str, Array], label: str = "") -> Case:
    """Give the case of a description and its arrays.

    Raises
    ------
    PackageError
        If they make no call.
    """
    missing = sorted({*ARRAYS, *(role for term in told.mask for role in term.arrays)} - set(arrays))
    if missing:
        raise PackageError(f"{label or 'call'}: no array {missing[0]!r}; there are {', '.join(sorted(arrays))}")
    options: dict[str, Any] = {name: arrays[name] for name in _OPERANDS if name in arrays}
    options |= {name: arrays[name] if arrays[name].ndim else int(arrays[name]) for name in _NUMBERS if name in arrays}
    if told.scale != 1 / math.sqrt(told.head_dim):
        options["scale"] = float.fromhex(told.scale_hex)
    if told.softcap is not None:
        options["softcap"] = told.softcap
    try:
        if told.mask:
            options["mask"] = ak.Mask(tuple(_term(term, arrays) for term in told.mask))
    except ak.AttnkitError as error:
        raise PackageError(f"{label or 'call'}: {error}") from error
    case = Case(
        label=label,
        batch=told.batch,
        heads=told.heads,
        kv_heads=told.kv_heads,
        queries=told.queries,
        keys=told.keys,
        head_dim=told.head_dim,
        value_dim=0 if told.value_dim == told.head_dim else told.value_dim,
        dtype=told.dtype,
        pinned=("dtype", "head_dim"),
        options=options,
    )
    shapes = (
        (told.batch, told.heads, told.queries, told.head_dim),
        (told.batch, told.kv_heads, told.keys, told.head_dim),
        (told.batch, told.kv_heads, told.keys, told.value_dim),
    )
    for role, shape in zip(ARRAYS, shapes, strict=True):
        if arrays[role].shape != shape or arrays[role].dtype.name != told.dtype:
            got = f"{arrays[role].dtype.name} {list(arrays[role].shape)}"
            raise PackageError(f"{label or 'call'}: {role} must be {told.dtype} {list(shape)}, got {got}")
    return case.holding(arrays[role] for role in ARRAYS)


def lines(told: CallDescription) -> Iterator[str]:
    """Give the same as lines of a name, a tab and a value, for who has no reader of JSON."""
    for name in ("batch", "heads", "kv_heads", "queries", "keys", "head_dim", "value_dim", "dtype"):
        yield f"{name}\t{getattr(told, name)}"
    yield f"scale\t{told.scale_hex}"
    yield f"softcap\t{(told.softcap or 0.0).hex()}"
    yield f"lse\t{int(told.lse)}"
    for term in told.mask:
        numbers = (term.left, term.right) if term.kind == "window" else (term.n,)
        shown = ["-" if number is None else str(number) for number in numbers]
        yield "\t".join([term.kind, *(term.arrays or ([] if term.kind == "causal" else shown))])


def _dtype(array: Array) -> Any:
    return array.dtype.name


def _terms(terms: Any) -> tuple[list[MaskTerm], dict[str, Array]]:
    found, arrays = [], dict[str, Array]()
    for number, (kind, *arguments) in enumerate(terms):
        names = _DOCUMENTS if kind == "documents" else ("array",) if kind == "dense" else ()
        roles = tuple(f"mask.{number}.{name}" for name in names)
        if roles:
            kept = np.bool_ if kind == "dense" else np.int64
            arrays |= {role: np.asarray(given, kept) for role, given in zip(roles, arguments, strict=True)}
            found.append(MaskTerm(kind=kind, arrays=roles))
        elif kind == "window":
            found.append(MaskTerm(kind=kind, left=arguments[0], right=arguments[1]))
        else:
            found.append(MaskTerm(kind=kind, n=arguments[0] if arguments else None))
    return found, arrays


def _term(term: MaskTerm, arrays: Mapping[str, Array]) -> tuple[Any, ...]:
    if term.arrays:
        return (term.kind, *(arrays[role] for role in term.arrays))
    if term.kind == "window":
        return (term.kind, term.left, term.right)
    return (term.kind,) if term.kind == "causal" else (term.kind, term.n)
