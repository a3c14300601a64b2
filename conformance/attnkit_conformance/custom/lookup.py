"""Lookup: what ``Capabilities.numerics`` or a manifest tells of an element type, a profile or a declaration."""

from __future__ import annotations

from functools import lru_cache

from attnkit.errors import DTypeError, UnsupportedError
from attnkit.numerics import Numerics, numerics_for
from attnkit.tolerance import Arithmetic
from attnkit_conformance.custom.declaration import CustomNumerics


def label_of(arithmetic: Arithmetic) -> str:
    """Give what stands for numerics in a line: the name of a profile, or the verdict class of one's own."""
    return arithmetic.verdict if isinstance(arithmetic, CustomNumerics) else arithmetic.name


def reason_of(error: UnsupportedError) -> str:
    """Give why a call cannot be judged, on one line."""
    return str(next(reason for reasons in error.reasons.values() for reason in reasons))


@lru_cache(maxsize=64)
def arithmetic_of(told: str, dtype: str) -> Numerics | CustomNumerics:
    """Give what ``Capabilities.numerics`` or a manifest tells of an element type: a profile, or a declaration as JSON.

    Raises
    ------
    ValueError
        If there is no profile of that name, or the declaration is none.
    DTypeError
        If it is of another element type.
    """
    if not told.startswith("{"):
        return numerics_for(told, dtype)
    own = CustomNumerics.model_validate_json(told)
    if own.dtype != dtype:
        raise DTypeError(f"numerics {own.name!r} is for arrays of {own.dtype}, got {dtype}")
    return own
