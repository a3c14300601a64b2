"""The raw path: our own kernels, on whatever runs them.

Axes: ``B`` sequences, ``H`` query heads, ``K`` key/value heads, ``G = H / K``, ``T`` queries, ``S`` keys, ``D`` and
``E`` head sizes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

from attnkit import AttentionOutput, AttentionRequest, Operands, Reason
from attnkit_cupy import decode, mma, simt
from attnkit_cupy.call import prepare
from attnkit_cupy.layout import readable
from attnkit_cupy.params import Params
from attnkit_cupy.runtime import Device, Launch, Runtime
from attnkit_cupy.stored import Stored, StoredKind

Array = Any

MOST_FEATURES = 256
MOST_CHUNKS = 4
_MOST_BLOCKS = 65535  # of the second and third axis of a grid
_MOST_ROWS = 2**31 - 2**10  # of a 32-bit count, a tile less
_DTYPES = ("float16", "bfloat16", "float32")
_MEND_ROWS = 4


class Choice(NamedTuple):
    """One of the kernels: what it refuses, and how it is launched."""

    refusals: Callable[[AttentionRequest, StoredKind, Device], list[Reason]]
    launch: Callable[[Runtime, Params, bool], None]


KERNELS = {
    "decode": Choice(decode.refusals, decode.launch),
    "mma": Choice(mma.refusals, mma.launch),
    "simt": Choice(simt.refusals, simt.launch),
}
"""The kernels, the fastest first; the last one takes every call."""


def refusals(request: AttentionRequest) -> list[Reason]:
    """Give every reason why no kernel takes a request."""
    rows, limits = request.query_length * request.group, _MOST_BLOCKS
    checks = (
        ("dtype", request.dtype in _DTYPES, " or ".join(_DTYPES), request.dtype),
        ("kv_dtype", request.kv_dtype in _DTYPES, " or ".join(_DTYPES), request.kv_dtype),
        ("head_dim", request.head_dim <= MOST_FEATURES, f"<= {MOST_FEATURES}", request.head_dim),
        ("value_dim", request.value_dim <= MOST_FEATURES, f"<= {MOST_FEATURES}", request.value_dim),
        ("batch", request.batch <= limits, f"<= {limits}", request.batch),
        ("num_kv_heads", request.num_kv_heads <= limits, f"<= {limits}", request.num_kv_heads),
        ("query_length", rows <= _MOST_ROWS, f"<= {_MOST_ROWS} in all heads of a group", rows),
        ("key_length", request.key_length <= 2**30, f"<= {2**30}", request.key_length),
        ("mask.chunks", len(request.mask.chunks) <= MOST_CHUNKS, f"<= {MOST_CHUNKS} sizes", len(request.mask.chunks)),
    )
    return [Reason("path", name, required, str(actual)) for name, fine, required, actual in checks if not fine]


@lru_cache(maxsize=4096)
def kernel_for(request: AttentionRequest, kind: StoredKind, device: Device) -> str:
    """Give the name of the first kernel that takes a call."""
    return next(name for name, choice in KERNELS.items() if not choice.refusals(request, kind, device))


def attend(
    runtime: Runtime,
    request: AttentionRequest,
    query: Array,
    stored: Stored,
    operands: Operands,
    kernel: str | None = None,
) -> AttentionOutput:
    """Compute one call, of which nothing is refused.

    Parameters
    ----------
    runtime
        What the arrays belong to and the kernels run on.
    request, operands
        As in ``attnkit.Backend.attention``.
    query
        ``[B, H, T, D]``, any strides.
    stored
        Keys and values.
    kernel
        The kernel to take; ``None`` = the fastest that can.

    Returns
    -------
    AttentionOutput
        Output ``[B, H, T, E]`` in the query's element type and LSE ``[B, H, T]`` in float32 where it is wanted.
    """
    xp, shape = runtime.xp, tuple(query.shape[:3])
    output = xp.empty((*shape, request.value_dim), query.dtype)
    out = AttentionOutput(output, xp.empty(shape, "float32") if request.lse else None)
    if 0 in shape:
        return out
    call = prepare(runtime, request, readable(query, xp), stored, operands, out)
    name = kernel or kernel_for(request, stored.kind, runtime.device)
    KERNELS[name].launch(runtime, call.params, call.features)
    _mend(runtime, call.params)
    return out


def _mend(runtime: Runtime, params: Params) -> None:
    """Compute again the rows that are not finite."""
    rows = int(params.get("queries") * params.get("group"))
    grid = -(-rows // _MEND_ROWS), int(params.get("kv_heads")), int(params.get("batch"))
    Launch(grid, 32 * _MEND_ROWS).run(runtime, "mend.cu", "attn::mend", params.packed())
