"""Requests: what two sides are asked: groups of the suite's cases, sizes in a word, or a drift over lengths.

Axes: ``B`` batch, ``H`` query heads, ``K`` key/value heads, ``T`` query length, ``S`` key length, ``D`` query/key head
size, ``E`` value head size.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, Final

import numpy as np

import attnkit as ak
from attnkit.call import Options
from attnkit_conformance import structures
from attnkit_conformance.cases import Case
from attnkit_conformance.checks.broadcasting import ONE_HEAD
from attnkit_conformance.checks.laws import FEATURES, ROWS, VALUES
from attnkit_conformance.checks.quality import HALVES, SPREAD
from attnkit_conformance.crosscheck.calls import BitwiseLaw, RepeatedHead, Rounding, asked_as
from attnkit_conformance.draws import DRAWS
from attnkit_conformance.items import items

_ONE_HEAD: Final = [
    replace(case, label=f"one-head-{case.label}", heads=1, kv_heads=1)
    for case in (*structures.PLAIN, *structures.CAUSAL, *structures.WINDOWS[-3:])
]
_LAWS: Final = {law.label: asked_as(BitwiseLaw, law) for law in (*ROWS, *FEATURES, *VALUES) if law.bits}
GROUPS: Final[dict[str, Sequence[Case]]] = {
    "plain": structures.PLAIN,
    "causal": structures.CAUSAL,
    "windows": structures.WINDOWS,
    "prefixes": structures.PREFIXES,
    "chunks": structures.CHUNKS,
    "documents": structures.DOCUMENTS,
    "dense": structures.DENSE,
    "lengths": structures.LENGTHS,
    "offsets": structures.OFFSETS,
    "joined": structures.JOINED,
    "softcap": structures.SOFTCAPPED,
    "grouped": structures.GROUPED,
    "one-head": _ONE_HEAD,
    "structures": [*structures.STRUCTURES, *structures.SOFTCAPPED, *_ONE_HEAD],
    "long": structures.LONG,
    "repeated-head": [asked_as(RepeatedHead, case) for case in ONE_HEAD],
    "laws": list(_LAWS.values()),
    "rounding": [asked_as(Rounding, case) for case in SPREAD if case.dtype == HALVES[0]],
}
"""Cases of the suite by a name."""

USUAL: Final = "structures;laws;repeated-head"
"""What is asked where nothing else is."""

SUITE: Final = "suite"
"""Every call that the conformance suite makes by itself, at level 2."""

_SIZES: Final = {
    "b": "batch",
    "h": "heads",
    "k": "kv_heads",
    "t": "queries",
    "s": "keys",
    "d": "head_dim",
    "e": "value_dim",
}
_ARGUMENTS: Final = frozenset(Options._fields)
_APART: Final = ("TestCore::test_no_score_is_too_low_to_count", "TestExtremes::test_low_biases_are_arithmetic")
"""Their scores are near the largest float, where only the output can be told, and not by its bound."""
_SIZE: Final = re.compile(r"([bhktsde])(\d+)")
_SPELLED: Final = re.compile(r"([bhktsde]\d+)+")
FORM: Final = "b2h4k2t16s64d32e16:causal,window=8/0,softcap=2,alibi,sinks,bias,lengths,draw=peaked"
"""Sizes and options in a word; what is left out is that of a small case."""


class SpecError(ValueError):
    """A specification of requests that says nothing; the message says what there is."""


def requests(spec: str, dtypes: Sequence[str], seed: int) -> list[Case]:
    """Give the cases that a specification names, in each element type.

    Parameters
    ----------
    spec
        Names of groups and sizes in a word (``FORM``), separated by ``;`` or, between groups, by ``,``.
    dtypes
        Element types.
    seed
        Of the numbers.

    Raises
    ------
    SpecError
        If a part of it is neither.
    """
    cases = [case for part in _parts(spec) for case in (suite() if part == SUITE else _of(part))]
    return [replace(case, dtype=dtype, pinned=(*case.pinned, "dtype"), seed=seed) for case in cases for dtype in dtypes]


@cache
def suite() -> tuple[Case, ...]:
    """Give every case of the suite that is one plain call."""
    found = {str(item.case): item.case for item in items(2) if type(item.case) is Case and item.test not in _APART}
    return tuple(case for case in found.values() if not case.options.keys() - _ARGUMENTS)


def drift(dtypes: Sequence[str], seed: int, lengths: Iterable[int] = (16, 64, 256, 1024, 4096)) -> list[Case]:
    """Give one causal case for each length and element type: how errors grow with what is summed."""
    sizes = {"batch": 1, "heads": 2, "kv_heads": 1, "head_dim": 64}
    return [
        Case(
            label=f"drift{length}",
            queries=min(length, 16),
            keys=length,
            dtype=dtype,
            pinned=("dtype",),
            seed=seed,
            options={"mask": ak.Mask.causal()},
            **sizes,  # type: ignore[arg-type]  # sizes are integers
        )
        for dtype in dtypes
        for length in lengths
    ]


def _parts(spec: str) -> Iterator[str]:
    for part in filter(None, (piece.strip() for piece in spec.split(";"))):
        if _SPELLED.match(part):
            yield part
        else:
            yield from filter(None, (name.strip() for name in part.split(",")))


def _of(part: str) -> Sequence[Case]:
    if part in GROUPS:
        return GROUPS[part]
    sizes, _, options = part.partition(":")
    if not _SPELLED.fullmatch(sizes):
        raise SpecError(
            f"no cases {part!r}; there are {', '.join((*GROUPS, SUITE))}, or sizes and options such as {FORM}"
        )
    return [_spelled(part, dict(_SIZE.findall(sizes)), [word for word in options.split(",") if word])]


def _spelled(label: str, letters: dict[str, str], words: list[str]) -> Case:
    """Make a case of sizes and options in a word."""
    sizes: dict[str, Any] = {_SIZES[letter]: int(number) for letter, number in letters.items()}
    sizes.setdefault("kv_heads", sizes.get("heads", 2))
    sizes.setdefault("heads", sizes["kv_heads"])
    sizes.setdefault("keys", sizes.get("queries", 6))
    if sizes["heads"] % max(sizes["kv_heads"], 1) or not all(sizes.get(name, 1) for name in ("heads", "head_dim")):
        raise SpecError(f"{label}: heads must be a multiple of kv_heads, and sizes of heads >= 1")
    case, draws = Case(label=label, **sizes), [word[5:] for word in words if word.startswith("draw=")]
    if unknown := sorted(set(draws) - set(DRAWS)):
        raise SpecError(f"{label}: no draw {unknown[0]!r}; there are {', '.join(DRAWS)}")
    case = replace(case, draw=draws[-1] if draws else "normal")
    return replace(case, options=_options(case, [word for word in words if not word.startswith("draw=")]))


def _options(case: Case, words: list[str]) -> dict[str, Any]:
    options: dict[str, Any] = {}
    for word in words:
        name, _, argument = word.partition("=")
        if name not in _WORDS:
            raise SpecError(f"{case.label}: no option {name!r}; there are {', '.join(_WORDS)}")
        try:
            made = _WORDS[name](case, argument)
        except (ValueError, ak.AttnkitError) as error:
            raise SpecError(f"{case.label}: {word}: {error}") from error
        mask = made.pop("mask", None)
        options |= made
        if mask is not None:
            options["mask"] = mask if "mask" not in options else options["mask"] & mask
    return options


def _window(argument: str) -> ak.Mask:
    left, _, right = argument.partition("/")
    return ak.Mask.window(int(left) if left != "-" else None, int(right) if right and right != "-" else 0)


def _floats(case: Case, *shape: int) -> np.ndarray[Any, Any]:
    return case.rng("options").uniform(-1.5, 1.5, shape).astype(np.float32)


def _documents(case: Case, _: str) -> dict[str, Any]:
    rng = case.rng("documents")
    ids = [rng.integers(0, 3, (case.batch, length)) for length in (case.queries, case.keys)]
    return {"mask": ak.Mask.documents(*ids)}


def _dense(case: Case, _: str) -> dict[str, Any]:
    shape = case.batch, 1, case.queries, case.keys
    return {"mask": ak.Mask.dense(case.rng("dense").random(shape) < 0.6)}


_WORDS: Final[dict[str, Callable[[Case, str], dict[str, Any]]]] = {
    "causal": lambda _, __: {"mask": ak.Mask.causal()},
    "window": lambda _, argument: {"mask": _window(argument)},
    "prefix": lambda _, argument: {"mask": ak.Mask.prefix(int(argument))},
    "chunked": lambda _, argument: {"mask": ak.Mask.chunked(int(argument))},
    "documents": _documents,
    "dense": _dense,
    "bias": lambda case, _: {"bias": _floats(case, case.batch, case.heads, case.queries, case.keys)},
    "alibi": lambda case, _: {"alibi": ak.alibi_slopes(case.heads)},
    "softcap": lambda _, argument: {"softcap": float(argument)},
    "scale": lambda _, argument: {"scale": float(argument)},
    "sinks": lambda case, _: {"sinks": _floats(case, case.heads)},
    "lengths": lambda case, _: {"kv_lengths": case.rng("lengths").integers(0, case.keys + 1, case.batch)},
    "offset": lambda _, argument: {"query_offset": int(argument)},
}
