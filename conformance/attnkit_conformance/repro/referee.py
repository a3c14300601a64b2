"""Referee: what the calls of a tape must give, from a correct backend and the oracle.

Axes: ``B`` batch, ``H`` query heads, ``K`` key/value heads, ``T`` query length, ``S`` key length, ``D`` query/key head
size, ``E`` value head size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

import numpy as np

from attnkit import reference
from attnkit.numerics import Numerics
from attnkit.reference_gradients import Cotangents, gradient_tolerance, gradients
from attnkit.tolerance import Arithmetic
from attnkit_conformance.cache_truth import Places, stored_tolerance, stored_truth
from attnkit_conformance.harness.local import Harness
from attnkit_conformance.repro.tape import NUMBERS, Call, Ref, Run, replay
from attnkit_conformance.selftest.differentiable import Differentiable
from attnkit_conformance.subject import lse_dtype

Array = np.ndarray[Any, Any]
_ARRAYS: Final = ("query", "key", "value")
_HOST: Final = ("query_lengths", "kv_lengths", "query_offset", "key_offset", "scale", "softcap", "mask")


class Expected(NamedTuple):
    """What must come out.

    Attributes
    ----------
    values
        The numbers.
    tau
        How far from them it may be, or ``None`` where every bit must be the same.
    dtype
        The element type that it must have.
    """

    values: Array
    tau: Array | None
    dtype: str


Expectations = Mapping[int, Expected]


class Referee:
    """Says what every observation of a tape must show.

    Parameters
    ----------
    numerics
        Gives the declared numerics of the backend under test for an element type.
    """

    def __init__(self, numerics: Callable[[str], Arithmetic]) -> None:
        self._numerics = numerics

    def __call__(self, calls: Iterable[Call]) -> tuple[Run, dict[int, Expected]]:
        """Give what a correct backend does, and what each call that reads something must give, by its number."""
        calls = list(calls)
        backend = Differentiable()
        watch = _Watch(Harness(backend.name, backend, backend), self._numerics)
        run = replay(calls, watch.harness, watch)
        made = {call.number: call for call in calls}
        expected = {}
        for call in calls:
            if call.number in run.values and (found := _expected(call, run, made, watch.known)) is not None:
                expected[call.number] = found
        return run, expected


class _Watch:
    """Looks at every call before it is made, and works out what it must give."""

    def __init__(self, harness: Harness, numerics: Callable[[str], Arithmetic]) -> None:
        self.harness, self._numerics = harness, numerics
        self.known: dict[Ref, Expected] = {}

    def __call__(self, call: Call, run: Run) -> None:
        # A call that must fail has arguments that the oracle cannot work with, and neither can it say what is right.
        with suppress(Exception):
            if call.method == "attention":
                arrays = [self._held(ref, run) for ref in call.given["arrays"]]
                self._attention(call.number, arrays, self._options(call.given["options"], run))
            elif call.method == "packed":
                self._packed(call.number, call.given, run)
            elif call.method == "vjp":
                self._vjp(call.number, call.given, run)
            elif call.method == "cache_call" and call.given["method"] in ("attend", "attend_with_lse"):
                self._attend(call.number, call.given, run)

    def _attention(self, number: int, arrays: Sequence[Array], options: Mapping[str, Any], *path: int) -> Any:
        query, key, value = (array[(None,) * (4 - array.ndim)] for array in arrays)
        truth = reference.attention(query, key, value, **options)
        dtype = query.dtype.name
        bound, rank = truth.tolerance(self._numerics(dtype)), arrays[0].ndim
        first = (0,) * (4 - rank)
        self.known[Ref(number, (*path, 0))] = Expected(truth.output[first], bound.output[first], dtype)
        self.known[Ref(number, (*path, 1))] = Expected(truth.lse[first], bound.lse[first], lse_dtype(dtype))
        return truth

    def _packed(self, number: int, given: Mapping[str, Any], run: Run) -> None:
        """Take the sequences one by one, and lay the answers end to end."""
        *arrays, cu_q, cu_k = (self._held(item, run) if isinstance(item, Ref) else item for item in given["arrays"])
        options = self._options({n: o for n, o in given["options"].items() if n not in ("max_q", "max_k")}, run)
        query, key, value = (array.swapaxes(0, 1) for array in arrays)
        parts = []
        for n in range(len(cu_q) - 1):
            rows, keys = slice(cu_q[n], cu_q[n + 1]), slice(cu_k[n], cu_k[n + 1])
            self._attention(number, [query[:, rows], key[:, keys], value[:, keys]], options)
            parts.append(self.known.pop(Ref(number, (0,))))
        joined = [np.concatenate([part[n] for part in parts], axis=1).swapaxes(0, 1) for n in range(2)]
        self.known[Ref(number)] = Expected(joined[0], joined[1], query.dtype.name)

    def _vjp(self, number: int, given: Mapping[str, Any], run: Run) -> None:
        held = {name: self._held(ref, run) for name, ref in given["arguments"].items() if name not in _HOST}
        options = self._options(
            {n: o for n, o in given["arguments"].items() if n not in ("query", "key", "value")}, run
        )
        arrays = [held[name] for name in ("query", "key", "value")]
        truth = self._attention(number, arrays, options, 0)
        cotangents = Cotangents(*(self._held(ref, run) for ref in given["cotangents"]))
        terms = {held[name].dtype.name for name in ("bias", "sinks") if name in held}
        numerics = self._numerics(arrays[0].dtype.name)
        if not isinstance(numerics, Numerics):  # gradients are bounded under profiles alone
            return
        bounds = gradient_tolerance(truth, cotangents, numerics, terms=next(iter(terms), "float32"))
        true = gradients(truth, cotangents)
        for n, name in enumerate(given["names"]):
            at = Ref(number, (1, n))
            self.known[at] = Expected(getattr(true, name), getattr(bounds, name), held[name].dtype.name)

    def _attend(self, number: int, given: Mapping[str, Any], run: Run) -> None:
        cache, layer = run.find(given["cache"]), given["layer"]
        query = self._held(given["arguments"][0], run)
        options = self._options(given["options"], run)
        ragged = cache.counters.ragged[layer]
        if ragged is not None and ragged.tokens == query.shape[2]:
            options.setdefault("query_lengths", ragged.taken)
        places = _places(cache, layer)
        key, value = map(self.harness.numpy, cache[layer].read())
        truth = stored_truth(query, key, value, options, places)
        bound, dtype = stored_tolerance(truth, self._numerics(query.dtype.name), places), query.dtype.name
        self.known[Ref(number, (0,))] = Expected(truth.output, bound.output, dtype)
        self.known[Ref(number, (1,))] = Expected(truth.lse, bound.lse, lse_dtype(dtype))
        if given["method"] == "attend":
            self.known[Ref(number)] = self.known[Ref(number, (0,))]

    def _held(self, ref: Ref, run: Run) -> Array:
        """Give the contents of an array of the backend."""
        return self.harness.numpy(run.find(ref))

    def _options(self, options: Mapping[str, Any], run: Run) -> dict[str, Any]:
        """Give keyword arguments as the oracle takes them."""
        found = {name: run.find(option) if isinstance(option, Ref) else option for name, option in options.items()}
        return {name: option if name in _HOST else self.harness.numpy(option) for name, option in found.items()}


def _places(cache: Any, layer: int) -> Places:
    """Tell where the tokens stand that a layer of one of attnkit's own caches holds."""
    first, counters = cache.config.pinned or 0, cache.counters
    counts, gone = counters.next[layer], counters.gone[layer]
    pairs = zip(counts.tolist(), gone.tolist(), strict=True)
    held = [np.r_[: min(first, n), first + lost : n] if lost else np.arange(n) for n, lost in pairs]
    return Places(held, counts, first)


def _expected(call: Call, run: Run, made: Mapping[int, Call], known: Mapping[Ref, Expected]) -> Expected | None:
    """Give what a call that reads something must give, if that is known."""
    value = run.values[call.number]
    if call.method == "cache_call" and call.given["method"] in NUMBERS:
        number = np.array(value)
        return Expected(number, None, number.dtype.name)
    if call.method == "cache_count":
        return None if call.given["name"] in ("capacity", "nbytes") else Expected(value, None, value.dtype.name)
    if call.method != "numpy" or not isinstance(call.given["thing"], Ref):
        return None
    source: Ref = call.given["thing"]
    if source in known:
        return known[source]
    return Expected(value, None, value.dtype.name) if _is_copied(made[source.call]) else None


def _is_copied(call: Call) -> bool:
    """Tell whether what a call gives is what was put in, bit for bit."""
    read = call.method == "cache_call" and call.given["method"] == "read"
    return read or call.method in ("array", "view", "broadcast", "requiring_grad")
