"""Isolating: one call of a tape as a case of its own, so that it can be tested, and shrunk, without the rest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

import numpy as np

import attnkit as ak
from attnkit_conformance.cases import Case
from attnkit_conformance.items import Item
from attnkit_conformance.repro.tape import Call, Calls, Ref

_TEST: Final = "TestApplied::test_applied_or_refused"
_MOST: Final = 12


def isolated(item: Item, calls: Calls) -> Iterator[Item]:
    """Give each of the last calls of attention as an item that holds its answer against the oracle."""
    made = {call.number: call for call in calls}
    asked = [call for call in reversed(calls) if call.method == "attention"]
    for call in asked[:_MOST]:
        case = _case(call, made, item.case.seed)
        if case is not None:
            yield replace(item, test=_TEST, case=case)


def _case(call: Call, made: Mapping[int, Call], seed: int) -> Case | None:
    """Give a call as a case; ``None`` where it was given what other calls made, or no four axes."""
    arrays = [_data(ref, made) for ref in call.given["arrays"]]
    options = {name: _data(option, made) for name, option in call.given["options"].items() if option is not None}
    if any(array is None or array.ndim != 4 for array in arrays) or any(item is None for item in options.values()):
        return None
    query, key, value = arrays
    case = Case(
        label="call",
        batch=query.shape[0],
        heads=query.shape[1],
        queries=query.shape[2],
        head_dim=query.shape[3],
        kv_heads=key.shape[1],
        keys=key.shape[2],
        value_dim=0 if value.shape[3] == query.shape[3] else value.shape[3],
        dtype=query.dtype.name,
        pinned=("dtype", "head_dim"),
        options=options,
        lse=call.given["lse"],
        seed=seed,
    )
    return case.holding(arrays)


def _data(item: Any, made: Mapping[int, Call]) -> Any:
    """Give what lies behind an argument, if it was put there as data."""
    if not isinstance(item, Ref):
        return item
    source = made.get(item.call)
    if source is None:
        return None
    if source.method == "mask":
        return ak.Mask(tuple(tuple(term) for term in source.given["terms"]))
    if source.method == "broadcast":
        return np.broadcast_to(source.given["array"], source.given["shape"])
    return source.given["array"] if source.method in ("array", "view", "requiring_grad") else None
