"""Cutting: the shortest tape, with the simplest numbers, that still breaks a claim.

A shorter tape counts where the backend under test breaks the claim and a correct one does not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from attnkit_conformance.repro.claims import Changed, Claim, Held, numbers_of
from attnkit_conformance.repro.names import roles
from attnkit_conformance.repro.tape import Call, Calls, Ref, leaves

Array = np.ndarray[Any, Any]
Holds = Callable[[Calls], bool]


def cut(calls: Calls, claim: Claim, holds: Holds) -> Calls:
    """Leave out what does not matter to a claim, then make the numbers simple.

    Parameters
    ----------
    calls, claim
        A tape that breaks the claim.
    holds
        Tells whether another tape still does; it may say no when it is late.
    """
    numbers = numbers_of(claim)
    calls = _without(calls, numbers, holds)
    calls = _simpler(calls, _shared_arrays, holds)
    calls = _simpler(calls, _plainly_asked, holds)
    if isinstance(claim, Held | Changed):  # which remember what was expected of these numbers
        return calls
    calls = _simpler(calls, _fewer_tokens, holds)
    return _simpler(calls, _plain_numbers, holds)


def _without(calls: Calls, numbers: Iterable[int], holds: Holds) -> Calls:
    """Leave out as many calls as may be missing, in halves, then in quarters, down to one by one."""
    size = len(calls) // 2
    while size:
        for start in range(len(calls) - size, -size, -size):
            shorter = _closed((*calls[: max(start, 0)], *calls[start + size :]), numbers)
            there = {call.number for call in shorter}
            if len(shorter) < len(calls) and there.issuperset(numbers) and holds(shorter):
                calls = shorter
        size //= 2
    return calls


def _closed(calls: Calls, numbers: Iterable[int]) -> Calls:
    """Leave out the calls that need one that is missing, and what then nobody needs."""
    there: set[int] = set()
    whole = []
    for call in calls:
        if all(ref.call in there for ref in call.refs):
            there.add(call.number)
            whole.append(call)
    wanted = {ref.call for call in whole for ref in call.refs} | set(numbers)
    givers = ("array", "view", "broadcast", "foreign", "requiring_grad", "mask", "numpy", "cache_count", "needs_grad")
    return tuple(call for call in whole if call.number in wanted or call.method not in givers)


def _simpler(calls: Calls, steps: Callable[[Calls, Call], Iterator[Calls]], holds: Holds) -> Calls:
    """Go over the calls once, and take for each the first step that keeps the fault."""
    for number in [call.number for call in calls]:
        here = next(call for call in calls if call.number == number)
        calls = next(filter(holds, steps(calls, here)), calls)
    return calls


def _shared_arrays(calls: Calls, here: Call) -> Iterator[Calls]:
    """Give an array again where one that holds the same would be made for the same use."""
    if here.method != "array":
        return
    (own,), words = here.arrays, roles(calls)
    for call in calls[: calls.index(here)]:
        if call.method == "array" and words.get(call.number) == words.get(here.number):
            (other,) = call.arrays
            if own.dtype == other.dtype and own.shape == other.shape and own.tobytes() == other.tobytes():
                rest = (later for later in calls if later is not here)
                yield tuple(_renamed(later, {Ref(here.number): Ref(call.number)}) for later in rest)
                return


def _plainly_asked(calls: Calls, here: Call) -> Iterator[Calls]:
    """Leave out a log-sum-exp that nobody looks at."""
    if any(Ref(here.number, (1,)) in call.refs for call in calls):
        return
    new: dict[Ref, Ref] = {}
    if here.method == "attention" and here.given["lse"]:
        plain = replace(here, given={**here.given, "lse": False})
    elif here.method == "cache_call" and here.given["method"] == "attend_with_lse":
        plain = replace(here, given={**here.given, "method": "attend"})
        new = {Ref(here.number, (0,)): Ref(here.number)}
    else:
        return
    yield tuple(plain if call is here else _renamed(call, new) for call in calls)


def _fewer_tokens(calls: Calls, here: Call) -> Iterator[Calls]:
    """Let an append bring fewer tokens, and what is truncated later on keep as many fewer; or ask fewer queries."""
    method = here.given.get("method")
    if here.method != "cache_call" or method not in ("append", "attend", "attend_with_lse"):
        return
    numbers = {ref.call for ref in leaves(here.given["arguments"]) if isinstance(ref, Ref)}
    arrays = [array for call in calls if call.number in numbers for array in call.arrays]
    if not arrays or any(array.ndim != 4 for array in arrays):
        return
    tokens = arrays[0].shape[2]
    for count in sorted({n for n in (1, 2, tokens // 2) if 0 < n < tokens}):
        shorter = tuple(_cropped(call, count) if call.number in numbers else call for call in calls)
        if method == "append":
            yield tuple(_moved(call, tokens - count, after=here.number) for call in shorter)
        yield shorter


def _plain_numbers(calls: Calls, here: Call) -> Iterator[Calls]:
    """Put zeros, then small whole numbers, in the place of floats."""
    for change in (np.zeros_like, np.sign, np.round):
        simple = here.holding(partial(_changed, change))
        pairs = zip(here.arrays, simple.arrays, strict=True)
        if not all(np.array_equal(_wide(old), _wide(new), equal_nan=True) for old, new in pairs):
            yield tuple(simple if call.number == here.number else call for call in calls)


def _renamed(call: Call, new: Mapping[Ref, Ref]) -> Call:
    return call.holding(lambda item: new.get(item, item) if isinstance(item, Ref) else item)


def _cropped(call: Call, count: int) -> Call:
    return call.holding(lambda item: item[:, :, :count] if isinstance(item, np.ndarray) else item)


def _moved(call: Call, fewer: int, after: int) -> Call:
    """Let a truncation after some call keep fewer tokens."""
    if call.number < after or call.method != "cache_call" or call.given["method"] != "truncate":
        return call
    (kept,) = call.given["arguments"]
    return replace(call, given={**call.given, "arguments": (np.maximum(np.asarray(kept) - fewer, 0)[()],)})


def _changed(change: Callable[[Array], Array], item: Any) -> Any:
    """Change the floats of an array where they are numbers."""
    if not isinstance(item, np.ndarray) or item.dtype.kind in "iub":
        return item
    finite = np.isfinite(_wide(item))
    with np.errstate(all="ignore"):
        return np.where(finite, change(_wide(item)), _wide(item)).astype(item.dtype)


def _wide(array: Array) -> Array:
    return np.asarray(array, np.float64)
