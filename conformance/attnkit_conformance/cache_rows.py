"""Row: one sequence of one layer of a cache, as plain arrays of every token that it was given.

Axes: ``K`` key/value heads, ``n`` tokens from position 0 on, ``m`` tokens held, ``F`` features of a key or a value.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

import attnkit as ak
from attnkit_conformance.cache_layouts import Layout
from attnkit_conformance.cases import Array

Tokens = tuple[Array, Array]
"""Keys ``[..., D]`` and values ``[..., E]``."""


@dataclass(frozen=True, eq=False)
class Row:
    """One sequence of one layer; every change makes a new one.

    Attributes
    ----------
    given
        Keys and values ``[K, n, F]`` that it was given.
    read
        What reading gave for them when it was first asked, ``[K, n, F]``.
    known
        Where that is known, ``[n]``.
    gone
        Tokens given up since, next to the first few that the layout keeps.
    """

    given: Tokens
    read: Tokens
    known: Array
    gone: int = 0

    @classmethod
    def empty(cls, given: Tokens, stored: Tokens) -> Self:
        """Give a row without tokens, of the heads, features and element types of tokens ``[K, n, F]``."""
        return cls(_changed(given, _nothing), _changed(stored, _nothing), np.zeros(0, bool))

    @property
    def count(self) -> int:
        """Position of the next token."""
        return len(self.known)

    def held(self, layout: Layout) -> Array:
        """Give the positions of the tokens that it holds, ``[m]``."""
        positions = np.arange(self.count)
        behind = layout.first + self.gone
        return np.concatenate([positions[: min(layout.first, behind)], positions[behind:]]) if self.gone else positions

    def taking(self, given: Tokens, stored: Tokens, layout: Layout, *, exact: bool) -> Row:
        """Give the row after some more tokens ``[K, T, F]``, as they were given and in the cache's element type.

        ``exact``: reading gives the latter.
        """
        taken = given[0].shape[1]
        return Row(
            _joined(self.given, given),
            _joined(self.read, stored),
            np.concatenate([self.known, np.full(taken, exact)]),
            layout.gone_after(self.gone, self.count, taken),
        )

    def cut(self, kept: int, layout: Layout) -> Row:
        """Give the row of the first ``kept`` positions, which the layout can go back to."""
        given, read = (_changed(tokens, lambda array: array[:, :kept]) for tokens in (self.given, self.read))
        return Row(given, read, self.known[:kept], layout.gone_within(self.gone, kept) or 0)

    def learned(self, positions: Array, read: Tokens) -> Row:
        """Give the row once reading gave ``read [K, m, F]`` for some positions ``[m]``."""
        key, value = (array.copy() for array in self.read)
        key[:, positions], value[:, positions] = read
        known = self.known.copy()
        known[positions] = True
        return replace(self, read=(key, value), known=known)


def coded(tokens: Array, codec: ak.Codec, dtype: str) -> tuple[Array, Array]:
    """Give what reading tokens ``[..., F]`` of a codec must give, and how far it may be from that, in float64.

    A block that holds NaN or infinity is NaN in all its features; native storage rounds, and that exactly.
    """
    if codec.kind == "native":
        return np.asarray(tokens.astype(np.dtype(dtype)), np.float64), np.zeros(tokens.shape)
    wide = np.asarray(tokens, np.float64)
    blocks = wide.reshape(*wide.shape[:-1], -1, codec.block or max(wide.shape[-1], 1))
    finite = np.isfinite(blocks).all(axis=-1, keepdims=True)
    expected = np.where(finite, blocks, np.nan).reshape(wide.shape)
    return expected, codec.bound(tokens, dtype) if tokens.size else np.zeros(wide.shape)


def _nothing(array: Array) -> Array:
    return array[:, :0]


def _joined(first: Tokens, second: Tokens) -> Tokens:
    return np.concatenate([first[0], second[0]], axis=1), np.concatenate([first[1], second[1]], axis=1)


def _changed(tokens: Tokens, change: Callable[[Array], Any]) -> Tokens:
    return change(tokens[0]), change(tokens[1])
