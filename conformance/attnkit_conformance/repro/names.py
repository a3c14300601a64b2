"""Names: what the variables of a program are called, after what they are used for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from attnkit_conformance.repro.tape import Call, Ref, leaves

_ARRAYS = ("query", "key", "value")
_SINGLE = {
    "numpy": "seen",
    "reasons": "codes",
    "packed": "output",
    "make_pool": "pool",
    **dict.fromkeys(("make_cache", "pooled_cache", "load_cache"), "cache"),
    **dict.fromkeys(("save_cache", "damaged"), "path"),
    "offload_to_file": "away",
}


class Names:
    """The names of everything that the calls of a tape give and that is used later on.

    Parameters
    ----------
    calls
        The tape.
    favourites
        Names for the results of some calls, by number.
    """

    def __init__(self, calls: Sequence[Call], favourites: Mapping[int, str]) -> None:
        self._used = {item for call in calls for item in leaves(call.given) if isinstance(item, Ref)}
        self._words = {**roles(calls), **favourites}
        self._counts: Counter[str] = Counter()
        self._of: dict[Ref, str] = {}
        self._calls: dict[int, str] = {}
        for call in calls:
            self._calls[call.number] = self._name(call)

    def of(self, ref: Ref) -> str:
        """Give the name of a thing."""
        return self._of[ref]

    def seen(self, call: Call) -> str:
        """Give what the result of a call shows, in a word."""
        if call.method == "numpy" and isinstance(call.given["thing"], Ref):
            return self._of.get(call.given["thing"], "the result")
        return str(call.given.get("name", "the result"))

    def of_call(self, number: int) -> str:
        """Give the names that the result of a call is assigned to; empty where there are none."""
        return self._calls[number]

    def _name(self, call: Call) -> str:
        if call.method in ("write", "mask", "needs_grad", "litter", "cache_checked"):
            return ""
        if call.method == "vjp":
            results = ["output", "lse"][: len(call.given["cotangents"])]
            gradients = [f"grad_{name}" for name in call.given["names"]]
            first, second = self._several(call, results, (0,)), self._several(call, gradients, (1,))
            return f"{first}, {second}"
        several = _parts(call)
        if several:
            return self._several(call, several, ()).strip("()")
        word = self._words.get(call.number) or _word(call)
        return self._new(Ref(call.number), word) if word else ""

    def _several(self, call: Call, words: Sequence[str], path: tuple[int, ...]) -> str:
        names = [self._new(Ref(call.number, (*path, n)), word) for n, word in enumerate(words)]
        if set(names) == {"_"} and not path:
            return ""
        if call.method == "attention" and len(names) == 1:
            return names[0]
        return f"({', '.join(names)}{',' if len(names) == 1 else ''})"

    def _new(self, ref: Ref, word: str) -> str:
        if ref not in self._used and ref.path:
            return "_"
        self._counts[word] += 1
        name = word if self._counts[word] == 1 else f"{word}{self._counts[word]}"
        self._of[ref] = name
        return name


def roles(calls: Sequence[Call]) -> dict[int, str]:
    """Give arrays, by the numbers of the calls that make them, the name of what they are used for first."""
    found: dict[int, str] = {}
    for call in calls:
        for ref, word in _uses(call):
            if isinstance(ref, Ref):
                found.setdefault(ref.call, word)
    return found


def _uses(call: Call) -> Iterator[tuple[Any, str]]:
    given = call.given
    if call.method in ("attention", "packed"):
        yield from zip(given["arrays"], (*_ARRAYS, "cu_q", "cu_k"), strict=False)
        yield from ((option, name) for name, option in given["options"].items())
    elif call.method == "vjp":
        yield from ((item, name) for name, item in given["arguments"].items())
        yield from ((item, "cotangent") for item in given["cotangents"])
    elif call.method == "cache_call":
        words = {"append": ("key", "value"), "attend": ("query",), "attend_with_lse": ("query",)}
        yield from zip(given["arguments"], words.get(given["method"], ()), strict=False)
        yield from ((option, name) for name, option in given["options"].items())


def _parts(call: Call) -> tuple[str, ...]:
    """Give words for the parts of a result that has several."""
    if call.method == "attention":
        return ("output", "lse") if call.given["lse"] else ("output",)
    if call.method == "merge":
        return "output", "lse"
    if call.method == "cache_call":
        return {"attend_with_lse": ("output", "lse"), "read": ("key", "value")}.get(call.given["method"], ())
    return ()


def _word(call: Call) -> str:
    if call.method in ("cache_count", "cache_counter"):
        return str(call.given["name"])
    if call.method == "cache_call":
        return "output" if call.given["method"] == "attend" else ""
    if call.method == "cache_kept":
        return "snapshot" if call.given["method"] == "snapshot" else "away"
    return _SINGLE.get(call.method, "given")
