"""Shrinking: the smallest case that fails its test in the same way: structure first, then numbers.

Axes: ``B`` batch, ``H`` query heads, ``K`` key/value heads, ``T`` query length, ``S`` key length, ``D`` query/key head
size, ``E`` value head size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import replace
from itertools import product
from typing import Any, Final

import numpy as np

import attnkit as ak
from attnkit_conformance.cache_case import NATIVE, CacheCase
from attnkit_conformance.cache_layouts import CONTIGUOUS
from attnkit_conformance.cases import Case
from attnkit_conformance.checks.packed import PackedCase
from attnkit_conformance.checks.sequences import Pair
from attnkit_conformance.repro.attempt import Bench, Budget, Failure
from attnkit_conformance.repro.cropping import cropped_arrays, cropped_options
from attnkit_conformance.repro.simplifying import fewer_rows, simple_numbers, simple_options

Step = Callable[[Case], Iterator[Case]]


def shrink(failure: Failure, capabilities: ak.Capabilities, bench: Bench, budget: Budget) -> Failure:
    """Give the failure of the smallest case that could be found."""

    def again(case: Case) -> Failure | None:
        moved = case.on(capabilities)
        if (moved.dtype, moved.head_dim) != (case.dtype, case.head_dim) or not budget.spend():
            return None
        found = bench.attempt(pinned(case))
        same = found is not None and found.kind == failure.kind
        return found if same and bench.is_fair(case) else None

    before = None
    while before is not failure:
        before = failure
        for step in STEPS:
            failure = _as_far_as(step, failure, again)
    return failure


def pinned(case: Case) -> Case:
    """Keep a case as it is on every backend; moving it would draw its numbers anew."""
    same = copy(case)
    same.__dict__["on"] = lambda _: same
    return same


def _as_far_as(step: Step, failure: Failure, again: Callable[[Case], Failure | None]) -> Failure:
    """Take a step for as long as one of its cases fails."""
    while (smaller := next(filter(None, map(again, step(failure.case))), None)) is not None:
        failure = smaller
    return failure


def _resized(case: Case, **sizes: Any) -> Iterator[Case]:
    """Give the case with smaller sizes, and with the same numbers and options, cut to size."""
    try:
        smaller = replace(case, **sizes)
        smaller = replace(smaller, options=cropped_options(smaller.options, smaller))
        if isinstance(smaller, Pair):
            smaller = replace(smaller, other=cropped_options(smaller.other, smaller))
        yield smaller.holding(cropped_arrays(case.arrays, smaller))
    except ak.AttnkitError:  # an option that no longer makes sense
        return


def _sizes(*names: str) -> Step:
    """Make sizes smaller, all of them alike: to 1, to 2, by a half, by a quarter, down to by one."""

    def step(case: Case) -> Iterator[Case]:
        now = getattr(case, names[0])
        if any(getattr(case, name) != now for name in names):
            return
        fewer = (now - (now >> k) for k in range(1, now.bit_length()))
        for size in sorted({n for n in (1, 2, *fewer) if 0 < n < now}):
            yield from _resized(case, **dict.fromkeys(names, size))

    return step


def _heads(case: Case) -> Iterator[Case]:
    pairs = product(range(1, case.heads + 1), range(1, case.kv_heads + 1))
    fit = [(h, k) for h, k in pairs if h % k == 0 and (h, k) != (case.heads, case.kv_heads)]
    for heads, kv_heads in sorted(fit, key=lambda pair: (pair[0] + pair[1], pair)):
        yield from _resized(case, heads=heads, kv_heads=kv_heads)


def _keys(case: Case) -> Iterator[Case]:
    if not isinstance(case, CacheCase):  # whose queries are as many
        yield from _sizes("keys")(case)


def _queries(case: Case) -> Iterator[Case]:
    if not isinstance(case, CacheCase):
        yield from _sizes("queries")(case)


def _head_sizes(case: Case) -> Iterator[Case]:
    if case.value_dim:
        yield from _resized(case, value_dim=0)
        yield from _sizes("value_dim")(case)
    yield from _sizes("head_dim")(case)


def _cache(case: Case) -> Iterator[Case]:
    """Fewer layers, one token at a time, no limit, no lengths, no layout, codec and element type of its own."""
    if not isinstance(case, CacheCase):
        return
    simple: dict[str, Any] = {"layers": 1, "max_length": 0, "chunk": 1, "ragged": False, "stored": ""}
    simple |= {"layout": CONTIGUOUS, "codecs": NATIVE}
    if case.layers > 2:
        yield replace(case, layers=2)
    yield from (replace(case, **{name: value}) for name, value in simple.items() if getattr(case, name) != value)


def _fewer_options(case: Case) -> Iterator[Case]:
    for name in case.options:
        yield from _resized(case, options={n: option for n, option in case.options.items() if n != name})
    if case.lse:
        yield from _resized(case, lse=False)


def _smaller_masks(case: Case) -> Iterator[Case]:
    """Drop terms of a joined mask, then make the numbers in one smaller."""
    mask = case.options.get("mask")
    terms = () if mask is None else mask.terms
    for n, term in enumerate(terms):
        others = terms[:n] + terms[n + 1 :]
        changed = [others] if others else []
        changed += [(*others, smaller) for smaller in _smaller_terms(term)]
        for fewer in changed:
            yield from _resized(case, options={**case.options, "mask": ak.Mask(fewer)})


def _smaller_terms(term: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    for place, number in enumerate(term):
        least = 0 if (term[0], place) in (("window", 2), ("prefix", 1)) else 1
        if isinstance(number, int) and number > least:
            for smaller in sorted({least, number // 2, number - 1}):
                if least <= smaller < number:
                    yield (*term[:place], smaller, *term[place + 1 :])


def _smaller_numbers(case: Case) -> Iterator[Case]:
    """Make lengths and offsets smaller: half of what they are, then one less."""
    for name, option in case.options.items():
        if name.endswith(("_lengths", "_offset")):
            now = np.asarray(option)
            for smaller in (np.fix(now / 2), now - np.sign(now)):
                if not np.array_equal(smaller, now):
                    yield from _resized(case, options={**case.options, name: smaller.astype(now.dtype)[()]})


def _sequences(case: Case) -> Iterator[Case]:
    """Fewer packed sequences, and shorter ones."""
    if not isinstance(case, PackedCase):
        return
    pairs = list(zip(case.query_counts, case.key_counts, strict=True))
    for n, (queries, keys) in enumerate(pairs):
        yield from _packed(case, pairs[:n] + pairs[n + 1 :])
        for shorter in ((queries // 2, keys), (queries, keys // 2)):
            if shorter != (queries, keys):
                yield from _packed(case, [*pairs[:n], shorter, *pairs[n + 1 :]])


def _packed(case: PackedCase, pairs: Sequence[tuple[int, int]]) -> Iterator[Case]:
    queries, keys = tuple(query for query, _ in pairs), tuple(key for _, key in pairs)
    yield from _resized(case, query_counts=queries, key_counts=keys, queries=sum(queries), keys=sum(keys))


def _usual(case: Case) -> Iterator[Case]:
    """The usual element type and distribution."""
    if "dtype" not in case.pinned and case.dtype != "float32":
        yield from _resized(case, dtype="float32")
    if case.draw != "normal":
        yield replace(case, draw="normal")


STEPS: Final[tuple[Step, ...]] = (
    _cache,
    _sizes("batch"),
    _fewer_options,
    _heads,
    _sequences,
    _sizes("queries", "keys"),
    _queries,
    _keys,
    _head_sizes,
    _smaller_masks,
    _smaller_numbers,
    _usual,
    simple_options,
    simple_numbers,
    fewer_rows,
)
"""Structure first, then numbers."""
