"""Storage codecs of KV caches: how tokens become the planes that a cache stores, and how far decoding is from them.

A codec works on each token, each head and each block of features by itself, so that planes can be moved, forked, cut
and saved without being decoded. Every library stores the same bits and decodes them to the same bits.

Axes: ``B`` batch, ``H`` query heads, ``K`` key/value heads, ``T`` query length, ``S`` key length, ``D`` query/key head
size, ``E`` value head size, ``F`` features of a plane. ``...`` is any number of leading axes.
"""

from __future__ import annotations

from typing import Any, Literal, Self

import array_api_compat
import ml_dtypes
import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, PositiveInt, model_validator

from attnkit.arrays import Array, namespace, numpy_dtype
from attnkit.codec_forms import FORMS, FloatArray
from attnkit.errors import ShapeError

_U = 2.0**-24  # unit roundoff of float32
_ETA = 2.0**-149  # its smallest positive number


class Codec(BaseModel):
    """How keys or values are stored.

    With ``lo`` and ``hi`` the smallest and largest feature of a block and ``half = hi/2 - lo/2``, all in float32::

        int8   level = -127 .. 127          scale = half / 127,  mid = lo + half,  code = (x - mid) / scale
        int4   level = -7.5, -6.5 .. 7.5    scale = half / 7.5,  mid = lo + half,  code = (x - mid) / scale + 7.5
        fp8    level = a float8 e4m3fn      scale = max|x| / 448,                  code = x / scale

    A code is rounded to the nearest level, ties to the even code, and saturates. The decoded token is
    ``level * scale + mid`` in float32 (``level * scale`` in fp8), rounded to the element type of the cache. A block of
    equal features is exact in int8 and int4. Where ``mid`` plus the largest level would overflow, ``scale`` is smaller
    by the factor ``1 - 2**-20``, so that a token that is finite in the element type of the cache decodes to finite
    numbers. Decoded tokens that are encoded again have scales a rounding away, and in a narrow element type sometimes
    other codes: a cache moves codes and never encodes twice.

    A block that holds NaN or infinity, in float32, decodes to NaN in all its features; other blocks are untouched.

    A string stands for a codec wherever one is asked for: ``"int8"``, or ``"int8/32"`` for blocks of 32 features.

    Attributes
    ----------
    kind
        ``"native"`` stores tokens in the element type of the cache.
    block
        Features that share a scale; ``None`` = the whole head.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["native", "int8", "int4", "fp8"] = "native"
    block: PositiveInt | None = None

    @model_validator(mode="before")
    @classmethod
    def _read(cls, data: Any) -> Any:
        if not isinstance(data, str):
            return data
        kind, slash, block = data.partition("/")
        return {"kind": kind, "block": block} if slash else {"kind": kind}

    @model_validator(mode="after")
    def _fit(self) -> Self:
        if self.kind == "native" and self.block is not None:
            raise ValueError(f"block must not be given for native storage, which has no scales, got {self.block}")
        return self

    def __str__(self) -> str:
        return self.kind if self.block is None else f"{self.kind}/{self.block}"

    def check(self, name: str, size: int) -> None:
        """Refuse a head size that the block does not divide; ``name`` is the argument it came from.

        Raises
        ------
        ShapeError
            If ``size`` is not a multiple of ``block``.
        """
        if self.block is not None and size % self.block:
            raise ShapeError(
                f"{name} must be a multiple of block = {self.block} of codec {self}, got {size}; "
                "choose a block that divides it, or none"
            )

    def planes(self, size: int, dtype: str) -> tuple[tuple[int, str], ...]:
        """Give the features ``F`` and the element type of each plane, for heads of ``size`` features.

        Native storage is one plane of type ``dtype``. The others are a plane of codes and one of scales, which holds
        ``scale, mid`` of one block after the other, or ``scale`` alone in fp8. int4 puts two features into a byte, the
        even one into its low half.
        """
        if self.kind == "native":
            return ((size, dtype),)
        form = FORMS[self.kind]
        return (-(-size // form.packed), form.dtype), (self._blocks(size) * form.numbers, "float32")

    def bytes_per_token(self, size: int, dtype: str) -> int:
        """Give the bytes that one head of one token takes."""
        return sum(features * numpy_dtype(name).itemsize for features, name in self.planes(size, dtype))

    def encode(self, tokens: Array, dtype: str) -> tuple[Array, ...]:
        """Turn tokens ``[..., size]`` of any float type into planes ``[..., F]``, for a cache of type ``dtype``.

        Native storage converts by value, and gives the tokens themselves where there is nothing to convert.
        """
        xp = namespace(tokens)
        tokens = tokens.detach() if hasattr(tokens, "detach") else tokens
        with np.errstate(all="ignore"):
            if self.kind == "native":
                return (xp.astype(tokens, _dtype(xp, dtype), copy=False),)
            if 0 in tokens.shape:  # not every library takes the maximum along an axis of an empty array
                return self._empty(xp, tokens, dtype)
            return FORMS[self.kind].encode(xp, tokens, self._blocks(tokens.shape[-1]))

    def decode(self, planes: tuple[Array, ...], size: int, dtype: str) -> Array:
        """Turn planes ``[..., F]`` back into tokens ``[..., size]`` of type ``dtype``; native storage is not copied."""
        if self.kind == "native":
            return planes[0]
        codes, scales = planes
        xp = namespace(codes)
        with np.errstate(all="ignore"):
            values = FORMS[self.kind].decode(xp, codes, scales, self._blocks(size), size)
            return xp.astype(values, _dtype(xp, dtype), copy=False)

    def bound(self, tokens: np.ndarray[Any, Any], dtype: str) -> FloatArray:
        """Bound the error element by element: ``|token - decode(encode(token))| <= bound``, float64 ``[..., size]``.

        Let ``u = 2**-24`` and ``eta = 2**-149`` be the roundoff and the smallest number of float32, ``x`` the token in
        float32, ``top`` the largest ``|x|`` of its block, ``r = (hi - lo) / 2 <= top`` and ``L`` the largest level. The
        nearest level is half a step away: ``r / L / 2``, or in fp8, whose mantissa has three bits, ``|x| / 17``, but
        ``2**-10 top / L`` where it is subnormal. What float32 rounds comes on top, in units of ``u top``:

        * conversion to float32 1, ``x - mid`` 1, quotient 1, its sum with 7.5 ``16 / 7.5``, ``level * scale`` 1, its
          sum with ``mid`` 1, a step that is too long 0.2: 7.4. That ``mid`` is rounded does not count, as it is the
          same in decoding.
        * Where the scale came out low and an extreme saturates, the error is not half a step but what is beyond the
          largest level: conversion 1, ``half`` 1, scale 1, ``mid`` 2, decoding 2: 7. To this a scale that shrinks adds
          ``2**-20 r``, less than half a step.

        So 9 is enough for either, with room for the higher orders. Subnormal numbers round absolutely: the scale by
        ``eta / 2``, which the largest level multiplies; half, mid, product and token by ``4 eta`` together::

            error = half a step + 9 u top + (L/2 + 4) eta

        Then the decoded number, whose magnitude is at most ``|x| + error`` and ``(1 + 16 u) top``, is rounded to
        ``dtype``; the bound is infinite where that may overflow. Native storage does that alone, and nothing where
        ``dtype`` holds the token. The bound of a block that decodes to NaN is infinite.
        """
        with np.errstate(all="ignore"):
            exact = np.asarray(tokens).astype(np.float64)
            if self.kind == "native":
                held = exact.astype(numpy_dtype(dtype)).astype(np.float64) == exact
                return np.where(held, 0.0, _rounding(np.abs(exact) * (1 + _U), dtype) + _U * np.abs(exact))
            return self._bound(exact, dtype)

    def _bound(self, exact: FloatArray, dtype: str) -> FloatArray:
        form, (*lead, size) = FORMS[self.kind], exact.shape
        blocks = self._blocks(size)
        x = exact.astype(np.float32).astype(np.float64).reshape(*lead, blocks, size // blocks)
        top, lost = np.abs(x).max(axis=-1, keepdims=True), (form.limit / 2 + 4) * _ETA
        error = form.half_step(x, form.limit) + 9 * _U * top + lost
        reach = np.minimum(np.abs(x) + error, (1 + 16 * _U) * top + 2 * lost)
        stored = 0.0 if dtype in ("float32", "float64") else _rounding(reach, dtype)
        return np.where(np.isfinite(top), error + stored, np.full_like(x, np.inf)).reshape(exact.shape)

    def _blocks(self, size: int) -> int:
        self.check("size", size)
        return 1 if self.block is None else size // self.block

    def _empty(self, xp: Any, tokens: Array, dtype: str) -> tuple[Array, ...]:
        lead, device = tuple(tokens.shape[:-1]), array_api_compat.device(tokens)
        return tuple(
            xp.zeros((*lead, features), dtype=_dtype(xp, name), device=device)
            for features, name in self.planes(tokens.shape[-1], dtype)
        )


def attention_bound(
    query: npt.ArrayLike,
    key_bound: npt.ArrayLike,
    value_bound: npt.ArrayLike,
    value: npt.ArrayLike,
    scale: float,
    *,
    weights: npt.ArrayLike | None = None,
) -> FloatArray:
    """Bound how far attention over decoded tokens may be from attention over the tokens themselves, ``[B, H, T, E]``.

    ``query`` is ``[B, H, T, D]``; ``key_bound`` ``[B, K, S, D]`` and ``value_bound`` ``[B, K, S, E]`` are what
    ``Codec.bound`` gives for keys and values; ``value`` ``[B, K, S, E]`` are the values themselves. ``weights``
    ``[B, H, T, S]`` are the softmax weights over the original tokens, for a tighter bound. It holds for every mask,
    bias, soft-cap and sink, in exact arithmetic: what a backend rounds comes on top. Arrays are taken in float64.

    The score of row ``i`` at key ``j`` moves by ``|d_j| <= e_j = |scale| sum_c |q_ic| key_bound_jc``; a soft-cap, whose
    slope is at most 1, only makes that less. With ``p`` the weights, ``o`` the output, and a prime for decoded tokens::

        o' - o = sum_j (p'_j - p_j) v_j  +  sum_j p'_j (v'_j - v_j)

    As ``p'_j = p_j exp(d_j) / sum_l p_l exp(d_l)``, weight can move from some keys to others, and moves most where
    those have ``d = -e`` and these ``d = e = max_j e_j``: a share of at most ``tanh(e / 2)``. Moving it changes the
    output by at most the spread of the values, zero among them for a sink, so that::

        |o' - o| <= tanh(e / 2) (max_j v_j - min_j v_j)  +  max_j value_bound_j

    With weights, the first sum is also ``sum_j p_j (exp(d_j) - 1) (v_j - o) / sum_l p_l exp(d_l)``, because
    ``sum_j p_j (v_j - o) = 0`` (a sink is a key of value 0 and ``d = 0``). So, with ``Z = sum_l p_l exp(-e_l)``::

        |o' - o| <= sum_j p_j (exp(e_j) - 1) |v_j - o| / Z  +  sum_j p_j exp(e_j) value_bound_j / Z

    and the smaller one of each sum is taken. Where a key decodes to NaN the bound is infinite.
    """
    query, value = np.asarray(query, np.float64), np.asarray(value, np.float64)
    group = query.shape[1] // value.shape[1]
    value, keys_off, values_off = (
        np.repeat(np.asarray(x, np.float64), group, axis=1) for x in (value, key_bound, value_bound)
    )
    with np.errstate(all="ignore"):
        moved = abs(scale) * (np.abs(query) @ np.swapaxes(keys_off, -1, -2))
        most = moved.max(axis=-1, initial=0, keepdims=True)
        spread = value.max(axis=2, initial=0, keepdims=True) - value.min(axis=2, initial=0, keepdims=True)
        by_weights, by_values = np.tanh(most / 2) * spread, values_off.max(axis=2, initial=0, keepdims=True)
        if weights is not None:
            tighter = _weighed(np.asarray(weights, np.float64), moved, value, values_off)
            by_weights, by_values = np.fmin(by_weights, tighter[0]), np.fmin(by_values, tighter[1])
        return np.where(np.isfinite(most), by_weights + by_values, np.inf)


def _weighed(
    weights: FloatArray, moved: FloatArray, value: FloatArray, values_off: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Give both sums of ``attention_bound`` by the weights; NaN or infinite where these say nothing."""
    sink = np.maximum(1 - weights.sum(axis=-1, keepdims=True) - 1e-9, 0)  # less what the sum may have rounded
    normaliser = (weights * np.exp(-moved)).sum(axis=-1, keepdims=True) + sink
    away = np.abs(value[:, :, None] - (weights @ value)[..., None, :])
    first = np.einsum("bhts,bhtse->bhte", weights * np.expm1(moved), away)
    return first / normaliser, (weights * np.exp(moved)) @ values_off / normaliser


def _rounding(size: FloatArray, dtype: str) -> FloatArray:
    """Bound what rounding a number of magnitude ``size`` to ``dtype`` changes; infinite where it may overflow."""
    info: Any = ml_dtypes.finfo(numpy_dtype(dtype))  # type: ignore[no-untyped-call]
    ulps, top = float(info.eps) / 2, float(info.max)
    error = ulps * size + float(info.smallest_subnormal)
    return np.where(size < top * (1 + ulps / 2), error, np.inf)


def _dtype(xp: Any, name: str) -> Any:
    """Give the element type of a namespace by its name; NumPy has bfloat16 from another package."""
    return getattr(xp, name, None) or numpy_dtype(name)
