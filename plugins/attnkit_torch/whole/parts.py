"""A call in parts that a fused kernel knows: full, or causal from the top left.

Axes: ``B`` batch, ``H`` query heads, ``K`` key/value heads, ``T`` query length, ``S`` key length.
"""

from __future__ import annotations

from itertools import groupby
from typing import NamedTuple

from torch import Tensor

from attnkit import AttentionRequest, Operands


class Part(NamedTuple):
    """Keys that every query of a work sees; under ``causal`` query ``i`` sees those up to the ``i``-th."""

    keys: slice
    causal: bool


class Work(NamedTuple):
    """Some sequences, those queries of them that see any key, and the parts of the keys, one or two."""

    sequences: slice
    rows: slice
    parts: tuple[Part, ...]

    def is_whole(self, query: Tensor) -> bool:
        """Tell whether there is no other query."""
        return self.sequences == slice(0, query.shape[0]) and self.rows == slice(0, query.shape[2])


def works(request: AttentionRequest, operands: Operands, batch: int) -> tuple[Work, ...]:
    """Cut a call whose mask is ``None`` or causal; neighbours with equal bounds go together.

    Queries in no work see no key, and keys in no work are seen by none.
    """
    found, start = [], 0
    for bounds, sequences in groupby(map(operands.bounds, range(batch if request.num_heads else 0))):
        stop = start + len(list(sequences))
        first, parts = _parts(*bounds, request.mask.causal)
        if parts:
            found.append(Work(slice(start, stop), slice(first, bounds.query_length), parts))
        start = stop
    return tuple(found)


def _parts(
    queries: int, keys: int, query_position: int, key_position: int, causal: bool
) -> tuple[int, tuple[Part, ...]]:
    """Give the first query of a sequence that sees a key, and the parts of its keys."""
    if not causal:
        return 0, ((Part(slice(0, keys), False),) if keys and queries else ())
    first = max(0, key_position - query_position)
    past = query_position + first - key_position
    seen = min(keys, past + queries - first)
    if first >= queries or not seen:
        return 0, ()
    if past + 1 >= seen:
        return first, (Part(slice(0, seen), False),)
    square = Part(slice(past, seen), True)
    return first, ((Part(slice(0, past), False), square) if past else (square,))
