"""Call: what kernels are launched with.

Axes: ``B`` sequences, ``H`` query heads, ``K`` key/value heads, ``G = H / K``, ``T`` queries, ``S`` keys, ``D`` and
``E`` head sizes.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, NamedTuple

from attnkit import AttentionOutput, AttentionRequest, Operands
from attnkit_cupy.layout import element_strides
from attnkit_cupy.operands import fill_operands
from attnkit_cupy.params import ELEMENT_TYPES, Params
from attnkit_cupy.runtime import Runtime, ptr
from attnkit_cupy.stored import Stored, TokenSource

Array = Any

_NO_LIMIT = -1
_LARGEST_EXPONENT = 127  # of a power of two that a float holds
_SMALLEST_EXPONENT = -126


class Call(NamedTuple):
    """One call, ready for a kernel.

    Attributes
    ----------
    params
        The argument of the kernels, but for what one of them adds.
    features
        Whether scores take more than a scale and positional masks.
    arrays
        What the addresses in the params lead to.
    """

    params: Params
    features: bool
    arrays: tuple[Array, ...]


def needs_features(request: AttentionRequest) -> bool:
    """Tell whether scores take more than a scale and positional masks."""
    mask = request.mask
    plain = request.bias is None and request.softcap is None and split(request.scale)[1] == 1.0
    return not plain or request.alibi or mask.documents > 0 or mask.dense > 0


def prepare(
    runtime: Runtime, request: AttentionRequest, query: Array, stored: Stored, operands: Operands, out: AttentionOutput
) -> Call:
    """Fill the params: ``query`` is ``[B, H, T, D]`` and readable, ``out`` is where the result goes."""
    params = _constants(request).copy()
    arrays = fill_operands(params, operands, runtime)
    params.set(query=ptr(query), output=ptr(out.output), lse=ptr(out.lse), keys=operands.key_length)
    params.fill("query_strides", element_strides(query)[:3])
    params.fill("output_strides", element_strides(out.output)[:3])
    _fill_tokens(params, "key", stored.key)
    _fill_tokens(params, "value", stored.value)
    params.set(stored_type=ELEMENT_TYPES[stored.dtype])
    if stored.pages is not None:
        table = stored.pages
        params.set(page_table=ptr(table.first_slots), page_start=ptr(table.start), page_size=table.page_size)
        params.set(page_table_stride=int(table.first_slots.shape[1]))
    return Call(params, needs_features(request), (query, *out, *arrays, *stored))


def _fill_tokens(params: Params, name: str, source: TokenSource) -> None:
    params.set(**{name: source.address, f"{name}_type": ELEMENT_TYPES[source.kind]})
    params.fill(f"{name}_strides", source.strides)
    if source.scales is not None:
        params.set(**{f"{name}_scales": ptr(source.scales), f"{name}_block": source.block})
        params.fill(f"{name}_scales_strides", source.scales_strides)


@lru_cache(maxsize=4096)
def _constants(request: AttentionRequest) -> Params:
    """Set what the request alone decides."""
    params, mask = Params(), request.mask
    scale, scale_power = split(request.scale)
    softcap, softcap_power = split(request.softcap or 0.0)
    params.set(
        left=_NO_LIMIT if mask.left is None else mask.left,
        right=_NO_LIMIT if mask.right is None else mask.right,
        prefix=_NO_LIMIT if mask.prefix is None else mask.prefix,
        causal=int(mask.causal),
        scale=scale,
        scale_power=scale_power,
        softcap=softcap,
        softcap_power=softcap_power,
        batch=request.batch,
        heads=request.num_heads,
        kv_heads=request.num_kv_heads,
        group=request.group,
        queries=request.query_length,
        head_dim=request.head_dim,
        value_dim=request.value_dim,
        page_size=1,
        splits=1,
        query_type=ELEMENT_TYPES[request.dtype],
    )
    params.fill("chunks", mask.chunks)
    return params


def split(number: float) -> tuple[float, float]:
    """Give a float and a power of two whose product is ``number``; the power is 1 where one normal float holds it.

    Beyond their reach together, where every score is 0 or overflows, they stop.
    """
    mantissa, exponent = math.frexp(number)
    if number == 0 or _SMALLEST_EXPONENT < exponent <= _LARGEST_EXPONENT:
        return number, 1.0
    power = min(max(exponent, _SMALLEST_EXPONENT), _LARGEST_EXPONENT)
    rest = min(max(exponent - power, _SMALLEST_EXPONENT), _LARGEST_EXPONENT)
    return math.ldexp(mantissa, rest), math.ldexp(1.0, power)
