"""Where the wrong elements of an array lie: a fault of a tile, a head or a lane shows in their indices.

Axes: ``B`` batch, ``H`` heads, ``T`` rows (queries, or keys in their gradients), ``E`` columns.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

_AXES: Final = ("sequence", "head", "row", "column")
# Tiles in common use have 16 or 64 rows, and a vector load or a tensor core's fragment has 8 columns.
_PERIODS: Final[dict[str, tuple[int, ...]]] = {"row": (64, 16), "column": (8,)}


def place(at: tuple[Any, ...]) -> str:
    """Say where an element of ``[B, H, T, E]`` or ``[B, H, T]`` stands in its tile; empty for other arrays."""
    if len(at) not in (3, 4):
        return ""
    return ", ".join(
        f"{axis} {int(index) % _PERIODS[axis][0]} mod {_PERIODS[axis][0]}"
        for axis, index in zip(_AXES, at, strict=False)
        if axis in _PERIODS
    )


def common(wrong: npt.NDArray[np.bool_]) -> str:
    """Say what the wrong elements of ``[B, H, T, E]`` or ``[B, H, T]`` have in common; empty for nothing."""
    indices = np.argwhere(wrong)
    if len(indices) < 2 or wrong.ndim not in (3, 4):
        return ""
    shared = [_shared(axis, indices[:, n], wrong.shape[n]) for n, axis in enumerate(_AXES[: wrong.ndim])]
    found = ", ".join(filter(None, shared))
    return f"all {len(indices)} wrong elements are in {found}" if found else ""


def _shared(axis: str, indices: npt.NDArray[np.int64], size: int) -> str:
    """Name the one index, or the one residue, that all indices along an axis have; an axis of size 1 says nothing."""
    first = int(indices[0])
    if size > 1 and (indices == first).all():
        return f"{axis} {first}"
    for period in _PERIODS.get(axis, ()):
        if size > period and (indices % period == first % period).all():
            return f"{axis}s {first % period} mod {period}"
    return ""
