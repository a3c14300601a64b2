"""Which calls golden vectors are of: ``core``, ``hardware`` and ``full``: lists of cases, without their numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

import attnkit as ak
from attnkit_conformance.cases import Case
from attnkit_conformance.structures import STRUCTURES
from attnkit_conformance.vectors.generating import arrays, bell, choice

causal, window = ak.Mask.causal, ak.Mask.window
_SMALL: Final = {"batch": 2, "heads": 2, "kv_heads": 2, "queries": 5, "keys": 7, "head_dim": 16}


def _small(
    label: str, *, draw: str = "plain", lse: bool = False, sizes: dict[str, int] | None = None, **options: Any
) -> Case:
    return Case(label=label, draw=draw, lse=lse, options=options, **_SMALL | (sizes or {}))  # type: ignore[arg-type]


def _keep(label: str, *shape: int) -> ak.Mask:
    return ak.Mask.dense(choice(f"{label}/mask.0.array", shape, 2) == 1)


def _ids(label: str, queries: tuple[int, ...], keys: tuple[int, ...]) -> ak.Mask:
    names = f"{label}/mask.0.queries", f"{label}/mask.0.keys"
    return ak.Mask.documents(choice(names[0], queries, 3), choice(names[1], keys, 3))


def _bias(label: str, *shape: int) -> np.ndarray[Any, Any]:
    return bell(f"{label}/bias", shape).astype(np.float32)


def _hiding(label: str, *shape: int) -> np.ndarray[Any, Any]:
    return np.where(choice(f"{label}/bias", shape, 2) == 1, np.float32(-np.inf), np.float32(0))


_GROUPED: Final = {"heads": 4, "kv_heads": 2}
_SLOPES: Final = np.array([0.5, 0.125], np.float32)
_SINKS: Final = np.array([0.5, -2.0], np.float32)

CORE: Final = [
    _small("plain"),
    _small("plain-lse", lse=True),
    _small("one", sizes={"queries": 1, "keys": 1}),
    _small("peaked", draw="peaked"),
    _small("huge", draw="huge", lse=True),
    _small("cancelling", draw="cancelling"),
    _small("ascending", draw="ascending", sizes={"keys": 40, "queries": 3}),
    _small("causal", mask=causal()),
    _small("causal-wide", mask=causal(), sizes={"queries": 3, "keys": 17}, lse=True),
    _small("causal-tall", mask=causal(), sizes={"queries": 9, "keys": 4}, lse=True),
    _small("tiles", mask=causal(), sizes={"batch": 1, "queries": 3, "keys": 67}),
    _small("decode", mask=causal(), sizes={"queries": 1, "keys": 33}),
    _small("window", mask=window(3)),
    _small("window-both", mask=window(2, 1)),
    _small("window-left-open", mask=window(None, 1)),
    _small("window-right-open", mask=window(2, None)),
    _small("prefix", mask=ak.Mask.prefix(4)),
    _small("chunked", mask=ak.Mask.chunked(3)),
    _small("documents", mask=_ids("documents", (2, 5), (2, 7)), lse=True),
    _small("dense", mask=_keep("dense", 5, 7)),
    _small("dense-heads", mask=_keep("dense-heads", 2, 2, 5, 7), lse=True),
    _small("causal-and-dense", mask=causal() & _keep("causal-and-dense", 5, 7)),
    _small("window-and-chunked", mask=window(3, 1) & ak.Mask.chunked(4)),
    _small("grouped", sizes=_GROUPED, mask=causal()),
    _small("one-kv-head", sizes={"heads": 4, "kv_heads": 1}),
    _small("value-dim", sizes={"value_dim": 8}),
    _small("value-dim-wide", sizes={"value_dim": 24}),
    _small("kv-lengths", kv_lengths=np.array([7, 4])),
    _small("kv-lengths-causal", kv_lengths=np.array([3, 6]), mask=causal(), lse=True),
    _small("kv-lengths-zero", kv_lengths=np.array([0, 5]), lse=True),
    _small("query-lengths", query_lengths=np.array([3, 5]), mask=causal()),
    _small("poison", kv_lengths=np.array([4, 6]), mask=causal()),
    _small("query-offset", query_offset=1, mask=causal()),
    _small("offsets-each", query_offset=np.array([6, 9]), key_offset=np.array([4, 2]), mask=causal(), lse=True),
    _small("key-offset", key_offset=3, mask=ak.Mask.chunked(4)),
    _small("empty-rows", query_offset=-2, mask=causal(), lse=True),
    _small("bias", bias=_bias("bias", 2, 2, 5, 7)),
    _small("bias-broadcast", bias=_bias("bias-broadcast", 5, 7), lse=True),
    _small("bias-hides", bias=_hiding("bias-hides", 5, 7), lse=True),
    _small("alibi", alibi=_SLOPES, mask=causal()),
    _small("softcap", softcap=2.0, lse=True),
    _small("sinks", sinks=_SINKS, mask=causal(), lse=True),
    _small("sink-alone", sinks=_SINKS, query_offset=-2, mask=causal(), lse=True),
    _small("scale", scale=0.75),
    _small("scale-negative", scale=-0.5, mask=causal()),
    _small("scale-zero", scale=0.0, mask=causal()),
    _small("alibi-each", alibi=np.array([[0.5, 0.125], [0.25, 1.0]], np.float32), query_offset=1),
    _small("sinks-large", sinks=np.array([300.0, -2.0], np.float32), lse=True),
    _small("bias-large", bias=(256 * _bias("bias-large", 5, 7)).astype(np.float32)),
    _small("no-keys", sizes={"keys": 0}),
    _small("head-dim-odd", sizes={"head_dim": 20}),
    _small("tiles-ascending", draw="ascending", sizes={"batch": 1, "queries": 2, "keys": 130}),
    _small("all", sizes=_GROUPED, mask=causal() & window(4), softcap=4.0, bias=_bias("all", 5, 7), lse=True),
]

_TILE: Final = {"batch": 1, "heads": 2, "kv_heads": 1, "queries": 8, "keys": 64, "head_dim": 64}
HARDWARE: Final = [
    _small("tile-64", sizes=_TILE, mask=causal()),
    _small("tile-128", sizes=_TILE | {"head_dim": 128, "queries": 4}, mask=causal()),
    _small("tile-64-peaked", draw="peaked", sizes=_TILE, mask=causal()),
    _small("tile-64-ascending", draw="ascending", sizes=_TILE),
    _small("decode-64", sizes=_TILE | {"queries": 1, "keys": 256}, mask=causal()),
    _small("decode-128", sizes=_TILE | {"queries": 1, "keys": 128, "head_dim": 128}, mask=causal()),
    _small("decode-64-lengths", sizes=_TILE | {"batch": 2, "queries": 1}, kv_lengths=np.array([17, 64])),
    _small("prefill-square", sizes=_TILE | {"queries": 32, "keys": 32, "kv_heads": 2}, mask=causal()),
]


def catalogue(name: str) -> list[Case]:
    """Give the cases of ``"core"``, ``"hardware"`` or ``"full"``, which holds the other two.

    Raises
    ------
    ValueError
        If there is no such list.
    """
    lists: dict[str, Sequence[Case]] = {"core": CORE, "hardware": HARDWARE, "full": [*CORE, *HARDWARE, *_structures()]}
    if name not in lists:
        raise ValueError(f"cases must be one of {', '.join(lists)}, got {name!r}")
    return list(lists[name])


def filled(case: Case, dtype: str) -> Case:
    """Give a case of the catalogue its numbers, which every element type holds exactly.

    Keys and values beyond the lengths of ``poison`` are NaN and infinity.
    """
    query = case.batch, case.heads, case.queries, case.head_dim
    key = case.batch, case.kv_heads, case.keys, case.head_dim
    numbers = arrays(case.label, case.draw, query, key, (*key[:3], case.width))
    if case.label == "poison":
        for b, length in enumerate(case.options["kv_lengths"]):
            numbers[1][b, :, length:], numbers[2][b, :, length:] = np.nan, np.inf
    return replace(case, dtype=dtype, pinned=("dtype", "head_dim"), draw="normal").holding(numbers)


def _structures() -> list[Case]:
    """Give the structures of the suite; what they draw at random, our own generator draws."""
    return [_ours(replace(case, label=f"suite-{n:03}")) for n, case in enumerate(STRUCTURES)]


def _ours(case: Case) -> Case:
    mask, options = case.options.get("mask"), dict(case.options)
    label = case.label
    if mask is not None:
        options["mask"] = ak.Mask(tuple(_our_term(label, place, term) for place, term in enumerate(mask.terms)))
    if "bias" in options:
        options["bias"] = _hiding(label, *options["bias"].shape)
    return replace(case, draw="plain", options=options)


def _our_term(label: str, place: int, term: tuple[Any, ...]) -> tuple[Any, ...]:
    match term:
        case ("dense", array):
            return "dense", choice(f"{label}/mask.{place}.array", array.shape, 2) == 1
        case ("documents", queries, keys) if _drawn(queries, keys):
            ids = (
                choice(f"{label}/mask.{place}.{side}", a.shape, 3) for side, a in (("queries", queries), ("keys", keys))
            )
            return ("documents", *ids)
    return term


def _drawn(*ids: np.ndarray[Any, Any]) -> bool:
    """Tell whether ids are from 0 to 2, as the suite draws them; any others are what their case is about."""
    return all(((array >= 0) & (array < 3)).all() for array in ids)
