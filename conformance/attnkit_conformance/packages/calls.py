"""Calls: what a backend was asked, put together again as a case.

Axes: ``B`` batch, ``H`` query heads, ``K`` key/value heads, ``T`` query length, ``S`` key length, ``D`` query/key head
size, ``E`` value head size.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import attnkit as ak
from attnkit_conformance.cases import Case

Array = np.ndarray[Any, Any]


def case_of_call(
    query: Array, key: Array, value: Array, operands: ak.Operands, request: ak.AttentionRequest, label: str = "call"
) -> Case:
    """Give a call as a case: ``[B, H, T, D]``, ``[B, K, S, D]`` and ``[B, K, S, E]``, all on the host."""
    names = ("bias", "sinks", "query_lengths", "kv_lengths", "query_offset", "key_offset")
    options = {name: getattr(operands, name) for name in names if getattr(operands, name) is not None}
    if operands.alibi is not None:
        options["alibi"] = operands.alibi[0] if len(operands.alibi) == 1 else operands.alibi
    if request.softcap is not None:
        options["softcap"] = request.softcap
    terms = _terms(operands, request.mask)
    if terms:
        options["mask"] = ak.Mask(terms)
    return Case(
        label=label,
        batch=request.batch,
        heads=request.num_heads,
        kv_heads=request.num_kv_heads,
        queries=request.query_length,
        keys=int(key.shape[2]),
        head_dim=request.head_dim,
        value_dim=request.value_dim,
        dtype=request.dtype,
        options={**options, "scale": request.scale},
    ).holding((query, key, value))


def _terms(operands: ak.Operands, mask: ak.MaskStructure) -> tuple[tuple[Any, ...], ...]:
    """Put the terms of a mask together again."""
    terms: list[tuple[Any, ...]] = [("causal",)] if mask.causal else []
    if mask.left is not None or mask.right is not None:
        terms.append(("window", mask.left, mask.right))
    if mask.prefix is not None:
        terms.append(("prefix", mask.prefix))
    terms += [("chunked", size) for size in mask.chunks]
    terms += [("documents", *pair) for pair in operands.documents]
    return (*terms, *(("dense", array) for array in operands.dense))
