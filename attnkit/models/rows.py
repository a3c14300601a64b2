"""Rows: the tokens of a batch without its padding, since layers work on tokens and attention alone on sequences.

Axes: ``B`` sequences, ``T`` tokens of the longest one, ``N`` valid tokens of all sequences, in order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import array_api_compat
import numpy as np

from attnkit.arrays import namespace
from attnkit.checks import host_lengths
from attnkit.errors import ShapeError
from attnkit.pages import IntArray

Array = Any
TokenIds = Sequence[int] | Sequence[Sequence[int]] | np.ndarray[Any, Any]


class _Places(NamedTuple):
    """Where rows go and where they are found again, as integers in the library that holds them.

    ``out [B * T]`` is the row of each place, ``N`` for padding; ``back [N]`` the place of each row; ``last [B]`` the
    last row of each sequence, ``N`` for one without tokens.
    """

    out: Array
    back: Array
    last: Array


@dataclass(frozen=True, slots=True)
class Rows:
    """Tokens as rows ``[N, ...]``, and the same beside padding ``[B, T, ...]``.

    Attributes
    ----------
    ids
        ``[N]`` token ids.
    batch, length
        ``B`` and ``T``.
    has_batch
        Whether the tokens came as ``[B, T]`` and not as ``[T]``.
    lengths
        Tokens of each sequence, ``[B]``; ``None`` where all have ``T``, so that rows and places are the same.
    """

    ids: IntArray
    batch: int
    length: int
    has_batch: bool
    lengths: IntArray | None = None
    places: _Places | None = None

    @classmethod
    def of(cls, token_ids: TokenIds, lengths: Any, from_numpy: Callable[[Any], Array]) -> Rows:
        """Read ``token_ids``, ``[T]`` or ``[B, T]``, of which each sequence has ``lengths [B]``; ``None`` = ``T``.

        Raises
        ------
        ShapeError
            If there are none, they are no integers, or lengths do not fit.
        """
        ids = _rectangle(token_ids)
        if ids.ndim not in (1, 2) or not ids.size:
            raise ShapeError(f"token_ids must be [T] or [B, T] with at least one token, got {list(ids.shape)}")
        if ids.dtype.kind not in "iu":
            raise ShapeError(f"token_ids must be integers, got {ids.dtype}")
        batch, length = (1, *ids.shape)[-2:]
        taken = None if lengths is None else host_lengths("lengths", lengths, batch, length, "T")
        if taken is None or (taken == length).all():
            return cls(ids.reshape(-1).astype(np.int64, copy=False), batch, length, ids.ndim == 2)
        valid = (np.arange(length) < taken[:, None]).reshape(-1)
        places = _Places(*(from_numpy(array) for array in _places(valid, taken)))
        return cls(ids.reshape(-1)[valid].astype(np.int64), batch, length, ids.ndim == 2, taken, places)

    def spread(self, x: Array) -> Array:
        """Put rows ``[N, ...]`` in their places, ``[B, T, ...]``; padding is zeros."""
        rest = tuple(x.shape[1:])
        placed = x if self.places is None else _take(_padded(x), self.places.out)
        return namespace(x).reshape(placed, (self.batch, self.length, *rest))

    def collect(self, x: Array) -> Array:
        """Take the rows ``[N, ...]`` out of their places, ``[B, T, ...]``."""
        flat = namespace(x).reshape(x, (self.batch * self.length, *x.shape[2:]))
        return flat if self.places is None else _take(flat, self.places.back)

    def last(self, x: Array) -> Array:
        """Take the last row of each sequence, ``[B, 1, ...]``; zeros for one without tokens."""
        if self.places is None:
            return self.spread(x)[:, -1:]
        return _take(_padded(x), self.places.last)[:, None]


def _rectangle(token_ids: TokenIds) -> np.ndarray[Any, Any]:
    try:
        return np.asarray(token_ids)
    except ValueError as error:
        raise ShapeError(
            "token_ids must be [T] or [B, T], got rows of different lengths; pad them on the right and give lengths"
        ) from error


def _places(valid: np.ndarray[Any, np.dtype[np.bool_]], taken: IntArray) -> tuple[IntArray, IntArray, IntArray]:
    count = int(taken.sum())
    out = np.where(valid, np.cumsum(valid) - 1, count)
    return out, np.flatnonzero(valid), np.where(taken > 0, np.cumsum(taken) - 1, count)


def _padded(x: Array) -> Array:
    """Add a row of zeros."""
    xp = namespace(x)
    return xp.concat([x, xp.zeros((1, *x.shape[1:]), dtype=x.dtype, device=array_api_compat.device(x))], axis=0)


def _take(x: Array, rows: Array) -> Array:
    return namespace(x).take(x, rows, axis=0)
