"""CaseFile: what failed, as data: ``case.json``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Final

import numpy as np
from pydantic import BaseModel, ConfigDict

import attnkit as ak
from attnkit_conformance.cache_case import CacheCase
from attnkit_conformance.cases import Case
from attnkit_conformance.items import Item
from attnkit_conformance.repro.searching import Found

_OTHERS: Final = ("label", "pinned", "options", "draw", "dtype", "seed")


class CaseFile(BaseModel):
    """What failed.

    Attributes
    ----------
    item, fingerprint
        The item's id, and the digits that stand for it.
    requirement, statement
        What it is about.
    backend
        The target, as on a command line.
    message, found
        What the check said at first, and what it says of the case that is written here.
    alone
        The case is one of the calls that the check makes, which is wrong by itself.
    share
        In what share of a few tries the program showed the fault.
    sizes, options, draw, dtype, seed
        The case, after shrinking; arrays among the options as lists.
    shrunk
        What shrinking changed: from what to what.
    calls
        How many calls the check made, and how many the program makes.
    arrays
        Element types of the arrays in ``arrays.npz``; bfloat16 is stored as uint16.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")

    item: str
    fingerprint: str
    requirement: str
    statement: str
    backend: str
    message: str
    found: str
    alone: bool
    share: float
    sizes: Mapping[str, int]
    options: Mapping[str, Any]
    draw: str
    dtype: str
    seed: int
    shrunk: Mapping[str, tuple[str, str]]
    calls: tuple[int, int]
    arrays: Mapping[str, str]


def case_file(
    item: Item, backend: str, found: Found, share: float, arrays: Mapping[str, np.ndarray[Any, Any]]
) -> CaseFile:
    """Say what failed."""
    case, was, now = found.small.case, _facts(found.start), _facts(found.small.case)
    return CaseFile(
        item=item.id,
        fingerprint=item.fingerprint,
        requirement=item.requirement.id,
        statement=item.requirement.statement,
        backend=backend,
        message=_message(found.whole.error),
        found=_message(found.small.error),
        alone=found.alone,
        share=share,
        sizes={name: value for name, value in now.items() if type(value) is int},
        options={name: _plain(option) for name, option in case.options.items()},
        draw=case.draw,
        dtype=case.dtype,
        seed=case.seed,
        shrunk={name: (str(was[name]), str(now[name])) for name in was if name in now and was[name] != now[name]},
        calls=(len(found.whole.calls), len(found.calls)),
        arrays={name: array.dtype.name for name, array in arrays.items()},
    )


def _message(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _facts(case: Case) -> dict[str, Any]:
    """Give what about a case is a number or a word, and the names of its options."""
    found = {item.name: getattr(case, item.name) for item in fields(case) if item.name not in _OTHERS}
    plain = {name: value for name, value in found.items() if isinstance(value, int | str)}
    words = {"options": ", ".join(case.options) or "none", "mask": repr(case.options.get("mask"))}
    if isinstance(case, CacheCase):
        words |= {"layout": str(case.layout), "codecs": ", ".join(case.codecs)}
    return plain | words | {"dtype": case.dtype, "draw": case.draw}


def _plain(option: Any) -> Any:
    """Give an option as data that JSON has."""
    if isinstance(option, ak.Mask):
        return [[_plain(item) for item in term] for term in option.terms]
    return option.tolist() if isinstance(option, np.ndarray | np.generic) else option
