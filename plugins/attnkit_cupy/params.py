"""AttentionParams: the one argument of every attention kernel, declared once for both languages.

``FIELDS`` gives the NumPy dtype that the host fills in, and the C struct of ``kernels/params.cuh``, which a test holds
equal to ``declaration()``.
"""

from __future__ import annotations

import struct
from itertools import accumulate, chain
from typing import Any, NamedTuple, Self

import numpy as np


class Field(NamedTuple):
    """One member of the struct: its C type, name, length (1 = no array) and what it means."""

    ctype: str
    name: str
    length: int
    comment: str


_NUMPY = {"ptr": "u8", "i64": "i8", "int": "i4", "float": "f4"}
_PACKED = {"ptr": "Q", "i64": "q", "int": "i", "float": "f"}

FIELDS = (
    Field("ptr", "query", 1, "[B, H, T, D]"),
    Field("ptr", "output", 1, "[B, H, T, E]"),
    Field("ptr", "lse", 1, "float [B, H, T], contiguous, natural logarithm; null: not wanted"),
    Field("ptr", "partial_output", 1, "float [splits, B, H, T, E], contiguous; flash_decode alone"),
    Field("ptr", "partial_lse", 1, "float [splits, B, H, T], contiguous; flash_decode alone"),
    Field("ptr", "key", 1, "[B, K, S, D], or a plane [K, N, F]"),
    Field("ptr", "value", 1, "[B, K, S, E], or a plane [K, N, F]"),
    Field("ptr", "key_scales", 1, "float plane [K, N, blocks * numbers]; null: native storage"),
    Field("ptr", "value_scales", 1, "the same of the values"),
    Field("ptr", "page_table", 1, "int [B, pages]: the first slot of each page; null: key j lies at slot j"),
    Field("ptr", "page_start", 1, "i64 [B]: tokens of the first page before key 0; null: 0"),
    Field("ptr", "bias", 1, "broadcast to [B, H, T, S] by its strides; null: none"),
    Field("ptr", "dense", 1, "unsigned char, broadcast to [B, H, T, S] by its strides; null: none"),
    Field("ptr", "alibi", 1, "float [B, H] by alibi_stride; null: none"),
    Field("ptr", "sinks", 1, "float [H]; null: none"),
    Field("ptr", "query_lengths", 1, "i64 [B]; null: T"),
    Field("ptr", "kv_lengths", 1, "i64 [B]; null: S"),
    Field("ptr", "query_offset", 1, "i64 [B]; null: aligned to the bottom right"),
    Field("ptr", "key_offset", 1, "i64 [B]; null: 0"),
    Field("ptr", "query_documents", 2, "i64 [B, T] by document_strides; null: no such term"),
    Field("ptr", "key_documents", 2, "i64 [B, S] by document_strides"),
    Field("i64", "query_strides", 3, "in elements: sequence, head, token; features are contiguous"),
    Field("i64", "output_strides", 3, ""),
    Field("i64", "key_strides", 3, "in elements: sequence, head, token or slot"),
    Field("i64", "value_strides", 3, ""),
    Field("i64", "key_scales_strides", 3, ""),
    Field("i64", "value_scales_strides", 3, ""),
    Field("i64", "page_table_stride", 1, "pages of a row of the table"),
    Field("i64", "bias_strides", 4, "in elements: sequence, head, token, key"),
    Field("i64", "dense_strides", 4, ""),
    Field("i64", "alibi_stride", 1, "in elements, from one sequence to the next"),
    Field("i64", "document_strides", 4, "in elements, from one sequence to the next: queries and keys of each term"),
    Field("i64", "left", 1, "window: keys up to and including the query's own; -1: no limit"),
    Field("i64", "right", 1, "window: keys after it; -1: no limit"),
    Field("i64", "prefix", 1, "keys that everyone sees, the rest causally; -1: no such term"),
    Field("i64", "chunks", 4, "sizes of chunks; 0: no such term"),
    Field("float", "scale", 1, "of the products: scale * scale_power"),
    Field("float", "scale_power", 1, "a power of two; 1 unless no float holds the whole scale"),
    Field("float", "softcap", 1, "softcap * softcap_power; 0: none"),
    Field("float", "softcap_power", 1, "a power of two; 1 unless no float holds the whole soft-cap"),
    Field("int", "causal", 1, "1: keys after the query are hidden"),
    Field("int", "batch", 1, "B"),
    Field("int", "heads", 1, "H"),
    Field("int", "kv_heads", 1, "K"),
    Field("int", "group", 1, "G = H / K"),
    Field("int", "queries", 1, "T"),
    Field("int", "keys", 1, "S"),
    Field("int", "head_dim", 1, "D"),
    Field("int", "value_dim", 1, "E"),
    Field("int", "page_size", 1, "slots of a page"),
    Field("int", "splits", 1, "parts of the keys of flash_decode"),
    Field("int", "query_type", 1, "element types, see ElementType; the output has the query's"),
    Field("int", "key_type", 1, ""),
    Field("int", "value_type", 1, ""),
    Field("int", "bias_type", 1, ""),
    Field("int", "stored_type", 1, "what decoded keys and values are rounded to: float, half or bfloat16"),
    Field("int", "key_block", 1, "features that share a scale"),
    Field("int", "value_block", 1, ""),
)

ELEMENT_TYPES = {"float32": 0, "float16": 1, "bfloat16": 2, "float64": 3, "int8": 4, "int4": 5, "fp8": 6}
"""The numbers that stand for element types and codecs in a kernel."""
ELEMENT_NAMES = {number: name for name, number in ELEMENT_TYPES.items()}

DTYPE: np.dtype[Any] = np.dtype(
    [(field.name, _NUMPY[field.ctype], (field.length,) if field.length > 1 else ()) for field in FIELDS], align=True
)
"""The struct as NumPy lays it out: as C does."""

_ALIGNED = "@" + "".join(f"{field.length}{_PACKED[field.ctype]}" for field in FIELDS) + "0q"
_STRUCT = struct.Struct(_ALIGNED)
_STARTS = dict(zip((field.name for field in FIELDS), accumulate((f.length for f in FIELDS), initial=0), strict=False))
_STOPS = {field.name: _STARTS[field.name] + field.length for field in FIELDS}
_ZEROS = tuple(chain.from_iterable([0] * field.length for field in FIELDS))


class Params:
    """The members of one AttentionParams, zero until they are set; a launch packs them into the kernel's argument."""

    __slots__ = ("_values",)

    def __init__(self) -> None:
        self._values: list[float] = list(_ZEROS)

    def copy(self) -> Self:
        """Give another one with the same members."""
        other = type(self)()
        other._values[:] = self._values
        return other

    def set(self, **members: float) -> None:
        """Set members that are no arrays."""
        for name, value in members.items():
            self._values[_STARTS[name]] = value

    def fill(self, name: str, values: tuple[int, ...]) -> None:
        """Set the first elements of a member that is an array."""
        start = _STARTS[name]
        if start + len(values) > _STOPS[name]:
            raise ValueError(f"{name} of AttentionParams has fewer than {len(values)} elements")
        self._values[start : start + len(values)] = values

    def get(self, name: str) -> float:
        """Give a member, or the first element of an array."""
        return self._values[_STARTS[name]]

    def packed(self) -> np.ndarray[Any, Any]:
        """Give the struct, as an array of one element, which goes to a kernel by value."""
        return np.frombuffer(_STRUCT.pack(*self._values), DTYPE)


def declaration() -> str:
    """Give the text of ``kernels/params.cuh``."""
    lines = [
        "// params.cuh -- the one argument of every attention kernel; written by attnkit_cupy/params.py, do not edit.",
        "// Axes: B sequences, H query heads, K key/value heads, T queries, S keys, N slots, D and E head sizes,",
        "// F features of a plane.",
        "#pragma once",
        '#include "port.cuh"',
        "",
        "namespace attn {",
        "",
        "enum ElementType : int {",
        *(f"  TYPE_{name.upper()} = {number}," for name, number in ELEMENT_TYPES.items()),
        "};",
        "",
        "struct AttentionParams {",
        *(_member(field) for field in FIELDS),
        "};",
        "",
        f'static_assert(sizeof(AttentionParams) == {DTYPE.itemsize}, "AttentionParams is laid out as NumPy does");',
        "",
        "}  // namespace attn",
        "",
    ]
    return "\n".join(lines)


def _member(field: Field) -> str:
    ctype = "const void*" if field.ctype == "ptr" else field.ctype
    suffix = f"[{field.length}]" if field.length > 1 else ""
    comment = f"  // {field.comment}" if field.comment else ""
    return f"  {ctype} {field.name}{suffix};{comment}"
