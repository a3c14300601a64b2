"""Support matrix: what a backend declares, and beside it what was measured."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

import attnkit as ak
from attnkit_conformance.cases import DTYPES
from attnkit_conformance.items import Item, items
from attnkit_conformance.reports.kinds import kind_of, refused_codes
from attnkit_conformance.requirements import requirements
from attnkit_conformance.results import Real, Report, Result

State = Literal["holds", "refused", "fails", "not measured"]
"""``holds``: declared, and answered rightly. ``refused``: not declared, and refused as it must be."""
_SIZES = {field.name for field in fields(ak.Sizes)}
_PINNED = {"dtype": "dtypes", "head_dim": "head_dims"}


class Row(BaseModel):
    """One line of the matrix.

    Attributes
    ----------
    capability
        The field of ``Capabilities``.
    value
        The element type that the line is about, for ``dtypes`` and ``numerics``; else empty.
    declared
        What the backend says: ``"yes"``, ``"no"``, or what it names.
    state
        What that comes to.
    answered, refused, failed, not_run
        How many calls that need it came to what; a refusal counts where it names the field.
    worst
        The largest error of these calls in units of its bound; ``None`` where nothing was compared within a bound.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    capability: str
    value: str
    declared: str
    state: State
    answered: int
    refused: int
    failed: int
    not_run: int
    worst: Real | None


def rows(report: Report) -> list[Row]:
    """Give the support matrix of a report, in the order of the fields of ``Capabilities``."""
    needs = _needs(report)
    return [
        _row(name, value, declared, [result for result in report.results if _concerns(result, name, value, needs)])
        for name, value, declared in _places(report.header.capabilities)
    ]


def worst_ratio(results: Iterable[Result]) -> float | None:
    """Give the largest error in units of its bound; ``None`` where nothing was compared within one."""
    return max((result.worst.ratio for result in results if result.worst and not result.worst.exact), default=None)


def declared_text(value: Any) -> str:
    """Say what a field of the capabilities declares."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        named = ", ".join(f"{name} {part}" for name, part in value.items())
        return str(ak.Sizes(**value)) if set(value) == _SIZES else named
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value)) or "none"
    return "unlimited" if value is None else str(value)


def _places(capabilities: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Give field, element type and declaration of every line; fields that we do not know come last."""
    known = [field.name for field in fields(ak.Capabilities) if field.name in capabilities]
    for name in [*known, *(name for name in capabilities if name not in known)]:
        declared = capabilities[name]
        if name == "dtypes":
            yield from ((name, dtype, declared_text(dtype in declared)) for dtype in DTYPES)
        elif name == "numerics":
            yield from ((name, dtype, declared[dtype]) for dtype in DTYPES if dtype in capabilities["dtypes"])
        else:
            yield name, "", declared_text(declared)


def _row(name: str, value: str, declared: str, results: list[Result]) -> Row:
    kinds = [kind_of(result) for result in results]
    refused = sum(name in refused_codes(result) for result in results)
    answered, failed = kinds.count("answered"), kinds.count("failed")
    found: State = "refused" if refused and not answered else "holds" if answered else "not measured"
    return Row(
        capability=name,
        value=value,
        declared=declared,
        state="fails" if failed else found,
        answered=answered,
        refused=refused,
        failed=failed,
        not_run=kinds.count("not run"),
        worst=worst_ratio(results),
    )


def _concerns(result: Result, name: str, value: str, needs: Mapping[str, frozenset[str]]) -> bool:
    """Tell whether a line counts a result."""
    if name == "numerics":
        return result.dtype == value and result.worst is not None and not result.worst.exact
    return result.dtype == value if value else name in needs[result.id]


def _needs(report: Report) -> dict[str, frozenset[str]]:
    """Give the fields that each call is about: by its requirement, by its case, and by how it was refused."""
    known = {item.id: item for item in items(seed=report.header.seed)}
    named = {requirement.id: requirement.capabilities for requirement in requirements()}
    return {
        result.id: refused_codes(result).union(named.get(result.requirement, ()), _asked(known.get(result.id)))
        for result in report.results
    }


def _asked(item: Item | None) -> Iterator[str]:
    """Give the fields that the case of an item asks for; none for an item of another suite."""
    if item is not None:
        yield from item.case.features()
        yield from (_PINNED[name] for name in item.case.pinned)
