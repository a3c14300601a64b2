"""Probes: calls whose answers say which key was seen, so that a wrong one tells what went wrong.

In a *selection* probe each query is 1024 at one place and each key 1 at one place, so that one weight is 1 and the
others are 0 in any arithmetic: the output is the value of the selected key. The values of key ``j`` are ``j`` and then
multiples of 1/8, so that an output decodes to the exact number by rounding. In an *attendance* probe every score is 0,
and key ``j`` has the value 1 at place ``j`` alone: the output of a row is ``1 / n`` at the keys that it sees, of which
there are ``n``, and 0 elsewhere.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

import attnkit as ak
from attnkit_conformance.cases import Case
from attnkit_conformance.vectors.generating import bell, choice

Array = np.ndarray[Any, Any]
_SIZE: Final = 16
SELECTING: Final = "select-"
ATTENDING: Final = "attend-"
_MASKS: Final[dict[str, dict[str, Any]]] = {
    "all": {},
    "causal": {"mask": ak.Mask.causal()},
    "window": {"mask": ak.Mask.causal() & ak.Mask.window(4)},
    "prefix": {"mask": ak.Mask.prefix(5)},
    "chunked": {"mask": ak.Mask.chunked(4)},
    "lengths": {"mask": ak.Mask.causal(), "kv_lengths": np.array([9, 16])},
    "offset": {"mask": ak.Mask.causal(), "query_offset": np.array([3, -2])},
}


def attendance(dtype: str) -> list[Case]:
    """Give the probes that show who is seen, of every kind of mask."""
    shape = 2, 2, _SIZE, _SIZE
    values = np.broadcast_to(np.eye(_SIZE), shape)
    keys = bell(f"{ATTENDING}key", shape)
    return [
        _probe(f"{ATTENDING}{name}", dtype, options).holding((np.zeros(shape), keys, values))
        for name, options in _MASKS.items()
    ]


def selections(dtype: str) -> list[Case]:
    """Give the probes that show whose value comes out."""
    found = []
    for name, heads, kv_heads in (("each", 2, 2), ("grouped", 4, 2), ("one-kv-head", 4, 1)):
        label = f"{SELECTING}{name}"
        selected = choice(f"{label}/selected", (2, heads, _SIZE), _SIZE)
        values = bell(f"{label}/value", (2, kv_heads, _SIZE, _SIZE))
        values[..., 0] = np.arange(_SIZE)
        keys = np.broadcast_to(np.eye(_SIZE), values.shape)
        case = _probe(label, dtype, {"scale": 1.0}, heads, kv_heads)
        found.append(case.holding((1024 * np.eye(_SIZE)[selected], keys, values)))
    return found


def selected(case: Case, output: Array) -> list[str]:
    """Say, of the answer to a selection probe, whose value came out in the first row where it is the wrong one."""
    wanted, came = case.truth.output[..., 0], np.rint(np.asarray(output, np.float64)[..., 0])
    wrong = np.argwhere(wanted != came)
    if not len(wrong):
        return []
    b, h, i = (int(n) for n in wrong[0])
    return [f"b={b} h={h} row {i}: the value is that of key {came[b, h, i]:g}, not of key {wanted[b, h, i]:g}"]


def seen(case: Case, output: Array) -> list[str]:
    """Say, of the answer to an attendance probe, which keys were seen wrongly, in the first row where any was."""
    wrong = (np.asarray(output, np.float64) > 0) != case.shown
    if not wrong.any():
        return []
    b, h, i = (int(n) for n in np.argwhere(wrong.any(axis=-1))[0])
    row = wrong[b, h, i]
    return [
        f"b={b} h={h} row {i}: key {j} {'was hidden' if case.shown[b, h, i, j] else 'was seen'}"
        for j in np.flatnonzero(row)
    ]


def _probe(label: str, dtype: str, options: dict[str, Any], heads: int = 2, kv_heads: int = 2) -> Case:
    sizes = {"heads": heads, "kv_heads": kv_heads, "queries": _SIZE, "keys": _SIZE, "head_dim": _SIZE}
    return Case(label=label, dtype=dtype, pinned=("dtype", "head_dim"), options=options, **sizes)  # type: ignore[arg-type]
