"""Picture: the errors of one answer, small enough to be kept: over queries and heads, and in units in the last place.

Axes: ``B`` batch, ``H`` query heads, ``T`` query length, ``E`` value head size.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from pydantic import BaseModel, ConfigDict

from attnkit.numerics import UNIT_ROUNDOFF
from attnkit_conformance.crosscheck.judging import Name, Part

Array = np.ndarray[Any, Any]
MOST_ROWS: Final = 64
MOST_COLUMNS: Final = 256
EDGES: Final = (0, 0.5, 1, 2, 4, 8, 16, 64, 256, 2**20, 2**60)
"""Bounds of the bins of ``ulps``; what is larger, or no number, is in the last."""


class Data(BaseModel):
    """Data of a report."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")


class Picture(Data):
    """The errors of an output.

    Attributes
    ----------
    side
        Whose.
    heads
        Largest error in units of tau: a list for each sequence and head, of queries; neighbours joined where there are
        more than fit.
    queries
        How many queries a number of ``heads`` stands for.
    ulps
        How many elements are off by how many units in the last place of the output: counts between ``EDGES``.
    """

    side: Name
    heads: list[list[float]]
    queries: int
    ulps: list[int]


def picture_of(part: Part, side: Name, dtype: str) -> Picture | None:
    """Give the picture of a part, where the side gave it."""
    error, given = part.error[side], part.given[side]
    if error is None or given is None or error.ndim != 4 or not error.size:
        return None
    rows = error.max(axis=-1).reshape(-1, error.shape[2])[:MOST_ROWS]
    step = -(-rows.shape[1] // MOST_COLUMNS)
    edges = np.arange(0, rows.shape[1], step)
    heads = np.maximum.reduceat(rows, edges, axis=1)
    finite = np.where(np.isfinite(heads), heads, 1e30)
    return Picture(side=side, heads=finite.tolist(), queries=step, ulps=_histogram(given, part.truth, dtype))


def _histogram(given: Array, truth: Array, dtype: str) -> list[int]:
    """Count errors in units in the last place."""
    with np.errstate(all="ignore"):
        _, exponent = np.frexp(np.where(np.isfinite(truth), truth, 0))
        ulps = np.abs(given - truth) / np.ldexp(2 * UNIT_ROUNDOFF[dtype], exponent - 1)
    ulps = np.where(np.isnan(given) & np.isnan(truth), 0, np.where(np.isfinite(ulps), ulps, EDGES[-1]))
    counts, _ = np.histogram(np.minimum(ulps, EDGES[-1]), EDGES)
    return [int(count) for count in counts]
