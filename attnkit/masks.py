"""Mask: which keys a query may see, as a value.

Axes: ``B`` batch, ``H`` query heads, ``T`` query length, ``S`` key length. ``p`` is the position of a query, ``j`` the
position of a key. Sources: contract A3-A5.

=================  ====================================================
``causal``         ``j <= p``
``window(l, r)``   ``p - l < j <= p + r`` (``None`` = unlimited)
``prefix(n)``      ``j < n or j <= p``
``chunked(n)``     ``j // n == p // n``
``documents(a,b)`` equal ids
``dense(array)``   ``True`` = keep
=================  ====================================================

The first four look at positions alone; what they mean is in ``attnkit.structure``.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from attnkit.errors import DTypeError, ShapeError
from attnkit.mask_terms import KINDS, Term, canonical, check_size, check_term, same_argument, structure_of
from attnkit.structure import MaskStructure, same_document, visible

Array = Any


@dataclass(frozen=True, eq=False)
class Mask:
    """A frozen set of terms that a key must satisfy all of; joined by ``&``.

    Build one with ``causal``, ``window``, ``prefix``, ``chunked``, ``documents`` or ``dense``; ``None`` in place of a
    mask means that every valid key is visible.

    Attributes
    ----------
    terms
        Tuples of a kind's name and its arguments, in canonical order: ``(("causal",), ("window", 4, 0))``.
    """

    terms: tuple[Term, ...]

    def __post_init__(self) -> None:
        if not isinstance(self.terms, tuple) or not self.terms:
            raise ShapeError(f"mask: terms must be a tuple of at least one term, got {self.terms!r}")
        object.__setattr__(self, "terms", canonical(map(check_term, self.terms)))

    @staticmethod
    def causal() -> Mask:
        """Hide the keys after the query: visible where ``j <= p``."""
        return Mask((("causal",),))

    @staticmethod
    def window(left: int | None, right: int | None = 0) -> Mask:
        """Keep the keys near the query: visible where ``p - left < j <= p + right``.

        Parameters
        ----------
        left
            How many keys up to and including the query's own, at least 1, or ``None`` for unlimited.
        right
            How many keys after it, at least 0, or ``None`` for unlimited.

        Raises
        ------
        ShapeError
            If ``left`` is below 1 or ``right`` below 0.
        """
        return Mask((("window", left, right),))

    @staticmethod
    def prefix(n: int) -> Mask:
        """Show the first ``n`` keys to everyone and the rest causally: visible where ``j < n or j <= p``."""
        return Mask((("prefix", n),))

    @staticmethod
    def chunked(n: int) -> Mask:
        """Keep the keys of the query's own chunk of ``n`` positions: visible where ``j // n == p // n``."""
        return Mask((("chunked", n),))

    @staticmethod
    def documents(ids_q: Array, ids_k: Array) -> Mask:
        """Keep the keys of the query's own document: visible where the ids are equal.

        Parameters
        ----------
        ids_q
            Integers ``[T]`` or ``[B, T]``.
        ids_k
            Integers ``[S]`` or ``[B, S]``.
        """
        return Mask((("documents", ids_q, ids_k),))

    @staticmethod
    def dense(array: Array) -> Mask:
        """Keep the keys where ``array`` is ``True``; booleans that broadcast to ``[B, H, T, S]``."""
        return Mask((("dense", array),))

    def __and__(self, other: Mask) -> Mask:
        """Join two masks: a key stays visible where both show it."""
        if not isinstance(other, Mask):
            raise DTypeError(f"mask: & joins Masks, got {type(other).__name__}; wrap booleans in Mask.dense(...)")
        return Mask(self.terms + other.terms)

    __rand__ = __and__
    __array_ufunc__ = None  # otherwise NumPy would join each element of an array with the mask

    @cached_property
    def structure(self) -> MaskStructure:
        """The hashable part: everything but the arrays."""
        return structure_of(self.terms)

    @cached_property
    def document_ids(self) -> tuple[tuple[Array, Array], ...]:
        """The ``(ids_q, ids_k)`` pairs of the ``documents`` terms."""
        return tuple((term[1], term[2]) for term in self.terms if term[0] == "documents")

    @cached_property
    def dense_arrays(self) -> tuple[Array, ...]:
        """The boolean arrays of the ``dense`` terms."""
        return tuple(term[1] for term in self.terms if term[0] == "dense")

    def as_array(
        self, query_length: int, key_length: int, *, query_offset: Any = None, key_offset: Any = 0
    ) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Give the meaning of the mask as booleans, ``True`` = visible.

        Parameters
        ----------
        query_length, key_length
            ``T`` and ``S``.
        query_offset, key_offset
            Positions of query 0 and key 0, an integer or ``[B]``; by default the last query stands on the last key.

        Returns
        -------
        ``[T, S]``, or ``[B, 1, T, S]`` where an offset or ids differ by sequence; a dense array may add ``[B, H]``.

        Raises
        ------
        ShapeError, DTypeError
            If a length or offset is no integer, or an array of the mask does not fit the lengths.
        """
        query_length, key_length = _length("query_length", query_length), _length("key_length", key_length)
        self._check_fit(query_length, key_length)
        key_offset = _offset("key_offset", key_offset)
        aligned = key_offset + (key_length - query_length)
        query_offset = aligned if query_offset is None else _offset("query_offset", query_offset)
        rows = _per_sequence(query_offset) + np.arange(query_length)[:, None]
        keys = _per_sequence(key_offset) + np.arange(key_length)[None, :]
        shown = visible(self.structure, rows, keys)
        for ids_q, ids_k in self.document_ids:
            shown = shown & same_document(np.asarray(ids_q), np.asarray(ids_k))
        for array in self.dense_arrays:
            shown = shown & np.asarray(array)
        return np.ascontiguousarray(
            np.broadcast_to(shown, np.broadcast_shapes(shown.shape, (query_length, key_length)))
        )

    def _check_fit(self, queries: int, keys: int) -> None:
        shapes = [array.shape for array in self.dense_arrays]
        fits = all(shape[-2] in (1, queries) and shape[-1] in (1, keys) for shape in shapes)
        if not fits or any((q.shape[-1], k.shape[-1]) != (queries, keys) for q, k in self.document_ids):
            raise ShapeError(f"mask: arrays must fit [T, S] = [{queries}, {keys}], got {self!r}")

    def to_dict(self) -> dict[str, Any]:
        """Give the mask as JSON-ready data; ``from_dict`` reads it back."""
        return {"terms": [_dump(term) for term in self.terms]}

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> Mask:
        """Read what ``to_dict`` wrote.

        Raises
        ------
        ShapeError
            If the data is not of that form.
        """
        terms = data.get("terms") if isinstance(data, Mapping) and set(data) == {"terms"} else None
        if not isinstance(terms, list | tuple) or not terms or not all(isinstance(term, Mapping) for term in terms):
            raise ShapeError(
                f"mask data must be {{'terms': [{{'kind': ...}}, ...]}} with at least one term, got {data!r}"
            )
        mask = _load(terms[0])
        for term in terms[1:]:
            mask = mask & _load(term)
        return mask

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Mask):
            return NotImplemented
        return self.structure == other.structure and all(
            same_argument(a, b)
            for mine, theirs in zip(self.terms, other.terms, strict=True)
            for a, b in zip(mine, theirs, strict=True)
        )

    def __hash__(self) -> int:
        return hash(self.structure)

    def __repr__(self) -> str:
        return " & ".join(f"{term[0]}({', '.join(map(_show, term[1:]))})" for term in self.terms)


def _per_sequence(offset: Array) -> Array:
    return offset if offset.ndim == 0 else offset[:, None, None, None]


def _length(name: str, value: Any) -> int:
    length = check_size(name, value, 0)
    return 0 if length is None else length


def _offset(name: str, value: Any) -> np.ndarray[Any, Any]:
    offset = np.asarray(value)
    if offset.dtype.kind not in "iu" or offset.ndim > 1:
        raise DTypeError(f"mask: {name} must be an integer or integers [B], got {value!r}")
    return offset


def _show(argument: Any) -> str:
    return f"{argument.dtype}{list(argument.shape)}" if hasattr(argument, "shape") else repr(argument)


def _dump(term: Term) -> dict[str, Any]:
    kind, *arguments = term
    if kind == "documents":
        return {"kind": kind, "ids_q": np.asarray(arguments[0]).tolist(), "ids_k": np.asarray(arguments[1]).tolist()}
    if kind == "dense":
        array = np.asarray(arguments[0])
        bits = base64.b64encode(np.packbits(array).tobytes()).decode()
        return {"kind": kind, "shape": list(array.shape), "bits": bits}
    if kind == "window":
        return {"kind": kind, "left": arguments[0], "right": arguments[1]}
    return {"kind": kind} if kind == "causal" else {"kind": kind, "n": arguments[0]}


def _load(term: Mapping[str, Any]) -> Mask:
    fields = dict(term)
    kind = fields.pop("kind", None)
    if kind == "dense":
        return Mask.dense(_unpack(fields))
    if kind not in KINDS:
        raise ShapeError(f"mask: kind must be one of {', '.join(KINDS)}, got {kind!r}")
    try:
        return getattr(Mask, kind)(**fields)  # type: ignore[no-any-return]
    except TypeError as error:
        if isinstance(error, DTypeError):
            raise
        raise ShapeError(f"mask: the data of {kind} does not fit: {error}") from error


def _unpack(fields: Mapping[str, Any]) -> np.ndarray[Any, np.dtype[np.bool_]]:
    try:
        shape = tuple(fields["shape"])
        if set(fields) != {"shape", "bits"} or any(not isinstance(size, int) or size < 0 for size in shape):
            raise ValueError(f"got {dict(fields)!r}")
        bits = np.frombuffer(base64.b64decode(fields["bits"], validate=True), np.uint8)
        if len(bits) != -(-math.prod(shape) // 8):
            raise ValueError(f"shape {shape} needs {math.prod(shape)} bits, got {len(bits)} bytes")
        return np.unpackbits(bits, count=math.prod(shape)).astype(bool).reshape(shape)
    except (KeyError, TypeError, ValueError) as error:
        raise ShapeError(f"mask: a dense term needs a shape and that many packed bits; {error}") from error
