"""Tokens that can be told apart: each carries its own number in its values, whatever codec stores them.

Values are octal digits of the number, a little beside them: in every codec and element type the nearest integers are
the digits again, so that reading tells which tokens a cache holds. Number 0 is padding.

Axes: ``B`` sequences, ``K`` key/value heads, ``T`` new tokens, ``n`` stored tokens, ``N`` tokens ever made, ``F``
features of a key or a value, ``E`` value head size.
"""

from __future__ import annotations

import numpy as np

import attnkit as ak
from attnkit_conformance.cases import Array

_BASE = 8  # int4 has 16 levels over the digits of a head, which then are half a level apart at the least
_BESIDE = 0.03


class Tokens:
    """All tokens that were ever made, as they were given and as they were first read."""

    def __init__(self, config: ak.KVCacheConfig) -> None:
        heads, sizes = config.num_kv_heads, (config.head_dim, config.value_dim)
        self._codecs = config.key_codec, config.value_codec
        self._dtype = config.dtype
        self._powers = _BASE ** np.arange(heads * config.value_dim).reshape(heads, config.value_dim)
        self.given = [np.zeros((1, heads, size), np.float32) for size in sizes]
        self.read = [array.astype(np.dtype(self._dtype)) for array in self.given]
        self._known = np.ones(1, bool)

    def draw(self, rng: np.random.Generator, batch: int, count: int) -> Array:
        """Make new tokens, and give their numbers ``[B, T]``."""
        first = len(self._known)
        numbers = np.arange(first, first + batch * count)
        heads, size = self._powers.shape
        digits = numbers[:, None, None] // self._powers % _BASE
        keys = rng.standard_normal((len(numbers), heads, self.given[0].shape[-1]))
        values = digits + rng.uniform(-_BESIDE, _BESIDE, (len(numbers), heads, size))
        new = [array.astype(np.float32) for array in (keys, values)]
        self.given = [np.concatenate(pair) for pair in zip(self.given, new, strict=True)]
        stored = [array.astype(np.dtype(self._dtype)) for array in new]
        self.read = [np.concatenate(pair) for pair in zip(self.read, stored, strict=True)]
        self._known = np.concatenate([self._known, np.full(len(numbers), self._exact)])
        return numbers.reshape(batch, count)

    def arrays(self, numbers: Array, *, read: bool = False) -> list[Array]:
        """Give keys and values ``[B, K, T, F]`` of tokens ``[B, T]``."""
        return [array[numbers].transpose(0, 2, 1, 3) for array in (self.read if read else self.given)]

    def check(self, what: str, numbers: Array, arrays: tuple[Array, Array]) -> None:
        """Raise unless keys and values ``[B, K, n, F]`` that were read are those of tokens ``[B, n]``.

        What is read of a token first obeys the bound of its codec, and stays for ever, bit for bit.
        """
        key, value = (array.transpose(0, 2, 1, 3) for array in arrays)
        found = self._numbers(value)
        if found.shape != numbers.shape:
            raise AssertionError(f"{what}: [B, n] must be {list(numbers.shape)}, got {list(found.shape)}")
        for sequence in np.flatnonzero((found != numbers).any(axis=1))[:1].tolist():
            held, expected = found[sequence].tolist(), numbers[sequence].tolist()
            raise AssertionError(f"sequence {sequence} of {what} holds tokens {held}, must hold {expected}")
        for half, (name, array) in enumerate((("key", key), ("value", value))):
            self._check_half(f"{name} of {what}", half, numbers, array)
        self._known[numbers] = True

    @property
    def _exact(self) -> bool:
        return all(codec.kind == "native" for codec in self._codecs)

    def _numbers(self, value: Array) -> Array:
        """Give the numbers ``[B, n]`` of tokens ``[B, n, K, E]``; -1 where a value is none of any token."""
        with np.errstate(invalid="ignore"):
            digits = np.rint(value.astype(np.float64))
            sound = np.all((digits >= 0) & (digits < _BASE), axis=(2, 3))
        whole = np.where(sound[..., None, None], digits, 0).astype(np.int64)
        return np.where(sound, (whole * self._powers).sum(axis=(2, 3)), -1)

    def _check_half(self, what: str, half: int, numbers: Array, tokens: Array) -> None:
        if tokens.dtype != self.read[half].dtype:
            raise AssertionError(f"{what} is {tokens.dtype}, and must be {self.read[half].dtype}")
        known, expected = self._known[numbers], self.read[half][numbers]
        changed = known & np.any(_bytes(tokens) != _bytes(expected), axis=(2, 3))
        if changed.any():
            raise AssertionError(f"{what}: other bits than were first read of tokens {numbers[changed].tolist()}")
        new = numbers[~known]
        if new.size:
            given = self.given[half][new]
            error = np.abs(tokens[~known].astype(np.float64) - given)
            beyond = ~(error <= self._codecs[half].bound(given, self._dtype)).all(axis=(1, 2))
            if beyond.any():
                raise AssertionError(f"{what}: beyond the bound of {self._codecs[half]} at {new[beyond].tolist()}")
            self.read[half][new] = tokens[~known]


def _bytes(array: Array) -> Array:
    return np.ascontiguousarray(array).view(np.uint8)
