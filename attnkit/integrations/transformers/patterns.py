"""Reads the mask functions of transformers: what they hide, as parts that a ``Mask`` can say too.

transformers describes a mask as a function of indices, built from a few known ones. Those are recognised here by their
name and read through the variables they close over; a function with anything else in it is not read at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from torch import Tensor
from transformers import masking_utils


class Pattern(NamedTuple):
    """What a mask function shows: the conjunction of all that is set.

    Attributes
    ----------
    causal
        Keys up to the query.
    left, right
        A window, counted as in ``Mask.window``.
    chunk, start
        Keys of the query's own chunk; chunks are counted from ``start``, ``[B]``.
    sequences
        Keys of the query's own sequence, ids ``[B, T]`` with ``T = S``.
    """

    causal: bool = False
    left: int | None = None
    right: int | None = None
    chunk: int | None = None
    start: Tensor | None = None
    sequences: Tensor | None = None


class _UnknownError(Exception):
    """A mask function that is not read."""


def read_pattern(function: Callable[..., Any]) -> Pattern | None:
    """Give what a mask function of transformers shows, or ``None`` if it has parts that are not known here."""
    found: dict[str, Any] = {}
    try:
        for name, part in _parts(function):
            if name in found and found[name] is not part:
                return None
            found[name] = part
    except _UnknownError:
        return None
    # Positions that start anew order the keys of one sequence as indices do, and nothing else.
    if found.pop("renumbered", False) and ("sequences" not in found or "chunk" in found):
        return None
    return Pattern(**found)


def _parts(function: Callable[..., Any]) -> Iterator[tuple[str, Any]]:
    if function is masking_utils.causal_mask_function:
        yield "causal", True
        return
    if function is masking_utils.bidirectional_mask_function:
        return
    kind, held = _closure(function)
    if kind == "and_masks":
        for part in held["mask_functions"]:
            yield from _parts(part)
    elif kind == "remap_positions_for_packed_sequence":
        yield "renumbered", True
        yield from _parts(held["mask_function"])
    elif kind == "packed_sequence_mask_function":
        yield "sequences", held["packed_sequence_mask"]
    elif kind == "sliding_window_overlay" and held["sliding_window"] >= 1:
        yield "left", held["sliding_window"]
    elif kind == "sliding_window_bidirectional_overlay" and held["sliding_window"] >= 0:
        yield "left", held["sliding_window"] + 1
        yield "right", held["sliding_window"]
    elif kind == "chunked_overlay" and held["chunk_size"] >= 1:
        yield "chunk", held["chunk_size"]
        yield "start", held["left_padding"]
    else:
        raise _UnknownError


def _closure(function: Callable[..., Any]) -> tuple[str, dict[str, Any]]:
    """Give the name of the function of ``masking_utils`` that made this one, and the variables it closes over."""
    code, cells = getattr(function, "__code__", None), getattr(function, "__closure__", None)
    if code is None or cells is None or function.__module__ != masking_utils.__name__:
        raise _UnknownError
    kind = function.__qualname__.partition(".")[0]
    held = dict(zip(code.co_freevars, (cell.cell_contents for cell in cells), strict=True))
    if set(held) != _VARIABLES.get(kind):
        raise _UnknownError
    return kind, held


_VARIABLES = {
    "and_masks": {"mask_functions"},
    "chunked_overlay": {"chunk_size", "left_padding"},
    "packed_sequence_mask_function": {"packed_sequence_mask"},
    "remap_positions_for_packed_sequence": {"mask_function", "position_ids"},
    "sliding_window_bidirectional_overlay": {"sliding_window"},
    "sliding_window_overlay": {"sliding_window"},
}
