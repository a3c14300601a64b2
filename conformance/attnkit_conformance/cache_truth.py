"""What attending over a cache must give: the oracle over the tokens that it holds, at the positions they stand at.

Axes: ``B`` sequences, ``H`` query heads, ``K`` key/value heads, ``T`` query length, ``n`` stored tokens, ``D`` key head
size, ``E`` value head size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

import attnkit as ak
from attnkit import reference
from attnkit.tolerance import Arithmetic, Tolerance
from attnkit_conformance.cases import Array
from attnkit_conformance.oracle import tolerance_of, truth_of


class Places(NamedTuple):
    """Where the tokens of a layer stand.

    Attributes
    ----------
    held
        The positions of the tokens that each sequence holds.
    counts
        The position of the next token of each sequence, ``[B]``.
    first
        Tokens at the beginning of each sequence that are seen outside of any window.
    """

    held: Sequence[Array]
    counts: Array
    first: int = 0

    @property
    def lengths(self) -> Array:
        """Tokens that each sequence holds, ``[B]``."""
        return np.array([len(positions) for positions in self.held], np.int64)


def stored_truth(query: Array, key: Array, value: Array, options: Mapping[str, Any], places: Places) -> reference.Truth:
    """Give attention of ``query [B, H, T, D]`` over ``key [B, K, n, D]`` and ``value [B, K, n, E]``.

    ``options`` are those of ``attend``: without ``query_offset`` the last query stands on the last token. What follows
    the tokens of a sequence in ``key`` and ``value`` is padding.
    """
    gone = places.counts - places.lengths
    options = {**options, "kv_lengths": places.lengths}
    if places.first:
        options = _apart(query, key, options, places)
    elif gone.any():
        options["key_offset"] = gone
    return truth_of(query, key, value, options)


def stored_tolerance(truth: reference.Truth, numerics: Arithmetic, places: Places) -> Tolerance:
    """Give how far attending may be from it; tokens that are seen outside of windows make one more part of the keys."""
    return truth.tolerance(numerics, tiles=truth.usual_tiles + 1) if places.first else tolerance_of(truth, numerics)


def _apart(query: Array, key: Array, options: Mapping[str, Any], places: Places) -> dict[str, Any]:
    """Say by a dense mask and a bias what masks and ALiBi say by positions, since these have a gap."""
    (batch, heads, rows, _), keys = query.shape, key.shape[2]
    lengths = options.get("query_lengths")
    last = places.counts - (rows if lengths is None else np.asarray(lengths))
    offset = np.broadcast_to(last if options.get("query_offset") is None else options["query_offset"], (batch,))
    p = (offset[:, None] + np.arange(rows))[:, None, :, None]
    j = np.array([np.pad(positions, (0, keys - len(positions))) for positions in places.held]).reshape(
        batch, 1, 1, keys
    )
    changed = {**options, "mask": ak.Mask.dense(_shown(options.get("mask"), p, j, places.first))}
    slopes = changed.pop("alibi", None)
    if slopes is not None:
        changed["bias"] = -np.asarray(slopes, np.float64).reshape(-1, heads, 1, 1) * np.abs(p - j)
    return changed


def _shown(mask: ak.Mask | None, p: Array, j: Array, first: int) -> Array:
    """Tell which keys at positions ``j`` a query at ``p`` sees; the left end of a window hides no first token."""
    shown = np.ones(np.broadcast_shapes(p.shape, j.shape), bool)
    for term in () if mask is None else mask.terms:
        match term:
            case ("causal",):
                shown &= j <= p
            case ("window", left, right):
                shown &= (left is None) | (j < first) | (p - (left or 0) < j)
                shown &= (right is None) | (j <= p + (right or 0))
            case ("prefix", n):
                shown &= (j < n) | (j <= p)
            case ("chunked", n):
                shown &= j // n == p // n
            case _:
                raise NotImplementedError(f"no case of a ring has a mask of kind {term[0]!r}")
    return shown
