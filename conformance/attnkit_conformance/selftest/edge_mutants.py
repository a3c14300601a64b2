"""Faults at the edges: sizes and numbers far out, what one call keeps of another, and input that does not fit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np

import attnkit as ak
from attnkit_conformance.harness.local import Harness, Thing
from attnkit_conformance.selftest.faults import fault
from attnkit_conformance.selftest.faulty_caches import cache_fault
from attnkit_conformance.selftest.front_mutants import front
from attnkit_conformance.selftest.plain import Array, Plain


class ScaleKept(Plain):
    """Compiled once for each pair of shapes, with the scale of the first call in it."""

    def scale(self, request: ak.AttentionRequest) -> float:
        known: dict[Any, float] = self.__dict__.setdefault("known", {})
        return known.setdefault((request.num_heads, request.query_length, request.key_length), request.scale)


class MaskKept(Plain):
    """Plans its mask once for each pair of shapes."""

    def visible(self, operands: ak.Operands, request: ak.AttentionRequest) -> Array:
        known: dict[Any, Array] = self.__dict__.setdefault("known", {})
        shape = (request.batch, request.num_heads, operands.query_length, operands.key_length)
        return known.setdefault(shape, super().visible(operands, request))


class BiasKept(Plain):
    """Keeps the first bias of each shape."""

    def bias(self, operands: ak.Operands, request: ak.AttentionRequest) -> Any:
        known: dict[Any, Array] = self.__dict__.setdefault("known", {})
        if operands.bias is None:
            return 0
        return known.setdefault(operands.bias.shape, super().bias(operands, request))


def positions_as(dtype: Any) -> Any:
    """Count positions in a type that does not go far."""

    def positions(self: Plain, operands: ak.Operands) -> tuple[Array, Array]:
        p, j = operands.positions()
        return p.astype(dtype).astype(np.int64), j.astype(dtype).astype(np.int64)

    return positions


class DistancesIn16Bits(Plain):
    """Takes distances in the element type of the query."""

    def alibi(self, operands: ak.Operands, request: ak.AttentionRequest) -> Any:
        if operands.alibi is None:
            return 0
        p, j = (array.astype(np.dtype(request.dtype)) for array in operands.positions())
        slopes = operands.alibi[:, :, None, None].astype(request.accumulate)
        return -slopes * np.abs(p - j).astype(request.accumulate)


class PositionsIn16Bits(Plain):
    """Counts positions in the element type of the query."""

    def attention(self, query: Array, key: Array, value: Array, operands: Any, request: Any) -> ak.AttentionOutput:
        self.counted = np.dtype(request.dtype)
        return super().attention(query, key, value, operands, request)

    def positions(self, operands: ak.Operands) -> tuple[Array, Array]:
        p, j = operands.positions()
        return p.astype(self.counted).astype(np.int64), j.astype(self.counted).astype(np.int64)


def everything_if_wide(self: Plain, p: Array, j: Array, left: int | None, right: int | None) -> Array:
    """Switch the window off where it is wider than the keys, and what it hides of the future with it."""
    shown = Plain.window(self, p, j, left, right)
    return shown | np.True_ if left is not None and left >= j.shape[-1] else shown


def one_head_at_tails(self: Plain, query: Array, key: Array, value: Array) -> tuple[Array, Array, Array]:
    """Lose the last key of heads that are one, where it is alone in its tile."""
    if key.shape[1] > 1 and key.strides[1] == 0 and key.shape[2] % 32 == 1:
        value = value * (np.arange(key.shape[2]) < key.shape[2] - 1)[:, None].astype(value.dtype)
    return query, key, value


def half_products(self: Plain, query: Array, key: Array) -> Array:
    """Hold products in float16 where they come from it, as a plain matrix product does."""
    products = Plain.products(self, query, key)
    return np.where(np.abs(products) > float(np.finfo(np.float16).max), np.inf, products)


class LongHeadsCut(Plain):
    """Reads the first 256 features only, in the kernel that knows lengths."""

    def scaled_products(self, query: Array, key: Array, request: ak.AttentionRequest) -> Array:
        size = 256 if request.kv_lengths else query.shape[3]
        return super().scaled_products(query[..., :size], key[..., :size], request)


def no_nan(self: Plain, operands: ak.Operands, request: ak.AttentionRequest) -> Any:
    """Clean the bias up."""
    return 0 if operands.bias is None else np.nan_to_num(Plain.bias(self, operands, request), neginf=-np.inf)


def lowest_hides(self: Plain, operands: ak.Operands, request: ak.AttentionRequest) -> Array:
    """Take the lowest finite bias for a mask."""
    shown = Plain.visible(self, operands, request)
    return shown if operands.bias is None else shown & (operands.bias > -1e29)


def bias_of_the_first_head(self: Plain, operands: ak.Operands, request: ak.AttentionRequest) -> Any:
    """Take a bias that has sequences but no heads of its own for one of heads."""
    bias = operands.bias
    if bias is None or bias.shape[0] == 1 or bias.shape[1] > 1:
        return Plain.bias(self, operands, request)
    return bias.swapaxes(0, 1)[:, :1].astype(request.accumulate)


def bias_as_bits(self: Plain, operands: ak.Operands, request: ak.AttentionRequest) -> Any:
    """Read a bias of 16 bits as if it were of the query's 16 bits."""
    bias, dtype = operands.bias, np.dtype(request.dtype)
    if bias is None or bias.dtype == dtype or bias.dtype.itemsize != dtype.itemsize:
        return Plain.bias(self, operands, request)
    return bias.view(dtype).astype(request.accumulate)


class PaddingWraps(Plain):
    """Takes slot -1, which stands for padding, for the last one there is."""

    def write(self, plane: Array, slots: Array, tokens: Array) -> None:
        super().write(plane, np.where(slots < 0, plane.shape[1] - 1, slots), tokens)


def mended(self: Harness, arrays: Sequence[Thing], options: Mapping[str, Any], lse: bool = False) -> tuple[Thing, ...]:
    """Give something where the input does not fit."""
    try:
        return Harness.attention(self, arrays, options, lse)
    except (ak.ShapeError, ak.DTypeError):
        return tuple(np.zeros(1, np.float32) for _ in range(1 + lse))


def unnamed(self: Harness, arrays: Sequence[Thing], options: Mapping[str, Any], lse: bool = False) -> tuple[Thing, ...]:
    """Say no more than that something is wrong."""
    try:
        return Harness.attention(self, arrays, options, lse)
    except (ak.ShapeError, ak.DTypeError) as error:
        raise type(error)("invalid argument") from error


def lengths_clamped(
    self: Harness, arrays: Sequence[Thing], options: Mapping[str, Any], lse: bool = False
) -> tuple[Thing, ...]:
    """Bring lengths and offsets into shape."""
    sizes = {"query_lengths": arrays[0].shape[-2], "kv_lengths": arrays[1].shape[-2]}
    fitted = dict(options)
    for name in {"query_lengths", "kv_lengths", "query_offset", "key_offset"} & set(fitted):
        given = np.resize(np.asarray(fitted[name]).astype(int), arrays[0].shape[0])
        fitted[name] = given.clip(0, sizes[name]) if name in sizes else given
    return Harness.attention(self, arrays, fitted, lse)


def sentinels(self: Harness, terms: Sequence[Sequence[Any]]) -> Thing:
    """Take what no window can be for no limit."""
    read = [
        (kind, *(None if kind == "window" and isinstance(item, int) and item < 1 - place else item
                 for place, item in enumerate(arguments)))
        for kind, *arguments in terms
    ]  # fmt: skip
    return Harness.mask(self, read)


def promoting(
    self: Harness, arrays: Sequence[Thing], options: Mapping[str, Any], lse: bool = False
) -> tuple[Thing, ...]:
    """Let a float64 scale make everything float64."""
    output, *rest = Harness.attention(self, arrays, options, lse)
    wide = isinstance(options.get("scale"), np.float64) and output.dtype != np.float64
    return (output.astype(np.float64) if wide else output, *rest)


def always_four_axes(
    self: Harness, arrays: Sequence[Thing], options: Mapping[str, Any], lse: bool = False
) -> tuple[Thing, ...]:
    """Give four axes whatever came in."""
    output, *rest = Harness.attention(self, arrays, options, lse)
    return (output.reshape((1,) * (4 - output.ndim) + output.shape), *rest)


def tokens_before_heads(
    self: Harness, arrays: Sequence[Thing], options: Mapping[str, Any], lse: bool = False
) -> tuple[Thing, ...]:
    """Give the output in the order of another library, [B, T, H, E]."""
    output, *rest = Harness.attention(self, arrays, options, lse)
    return (output.swapaxes(1, 2) if output.ndim == 4 else output, *rest)


EDGE_MUTANTS = [
    fault("scale_kept", "TestSequences", ScaleKept),
    fault("mask_kept", "TestSequences", MaskKept),
    fault("bias_kept", "TestSequences", BiasKept),
    fault("positions_in_float32", "TestExtremes::test_positions_are_integers", positions=positions_as(np.float32)),
    fault("positions_in_bfloat16", "TestExtremes::test_positions_are_integers",
          positions=positions_as(ml_dtypes.bfloat16)),
    fault("positions_in_16_bits", "TestExtremes::test_positions_are_integers", PositionsIn16Bits),
    fault("distances_in_16_bits", "TestExtremes::test_positions_are_integers", DistancesIn16Bits),
    fault("wide_window_shows_everything", "TestExtremes::test_windows_wider_than_the_keys", window=everything_if_wide),
    fault("one_head_loses_the_tail", "TestBroadcasting::test_heads_that_are_one", read=one_head_at_tails),
    fault("products_in_float16", "TestExtremes::test_products_beyond_float16", products=half_products),
    fault("large_heads_cut", "TestExtremes::test_large_heads", LongHeadsCut),
    fault("nan_in_bias_dropped", "TestExtremes::test_nan_in_a_bias_is_seen", bias=no_nan),
    fault("lowest_bias_hides", "TestExtremes::test_low_biases_are_arithmetic", visible=lowest_hides),
    fault("bias_of_sequences_for_heads", "TestBroadcasting::test_every_form", bias=bias_of_the_first_head),
    fault("bias_bits_misread", "TestBroadcasting::test_types_of_a_bias", bias=bias_as_bits),
    cache_fault("padding_wraps", "TestCacheEdges", backend=PaddingWraps),
    fault("sentinel_1e30", "TestCore::test_no_score_is_too_low_to_count", hidden=-1e30),
    fault("single_key_through_exp", "TestCore::test_one_key_gives_its_value", base=lambda self, top: 0 * top),
    front("misfits_mended", "TestErrors", attention=mended),
    front("misfits_unnamed", "TestErrors", attention=unnamed),
    front("lengths_clamped", "TestErrors", attention=lengths_clamped),
    front("window_sentinels", "TestErrors", mask=sentinels),
    front("scalar_promotes", "TestCore::test_scalars_promote_nothing", attention=promoting),
    front("ranks_of_four", "TestArguments::test_ranks", attention=always_four_axes),
    front("tokens_before_heads", "TestHarness::test_one_plain_call", attention=tokens_before_heads),
]  # fmt: skip
