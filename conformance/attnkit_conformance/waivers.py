"""Waivers: failures that are known, each with a reason, a link and an end. They are named in every report and verdict.

A file of waivers is TOML::

    [[waiver]]
    id = "ATTN-SINK-001"            # a requirement, or one exact item
    backend = "mine"
    reason = "the compiler drops the sink when T = 1"
    link = "https://example.org/issues/7"
    expires = "2027-01-01"
"""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import UTC, date, datetime
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from attnkit_conformance.items import Item, items
from attnkit_conformance.results import Result

_FAILED = frozenset({"FAIL", "CRASH", "TIMEOUT"})


class WaiverError(ValueError):
    """A waiver is not what one must be: the message names each that is not."""


class Waiver(BaseModel):
    """A failure that is known.

    Attributes
    ----------
    id
        The exact id of a requirement or of an item.
    backend
        The target that it is about.
    reason, link
        Why it fails, and where that is followed up.
    expires
        The last day on which it holds.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str = Field(min_length=1)
    backend: str = Field(min_length=1)
    reason: str = Field(min_length=1)
    link: str = Field(pattern="^https?://")
    expires: date


class _File(BaseModel):
    """A file of waivers; a key of another name would be a waiver that is not seen."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    waiver: tuple[Waiver, ...] = ()


def load_waivers(path: Path) -> tuple[Waiver, ...]:
    """Read a file of waivers.

    Raises
    ------
    WaiverError
        If it is no such file, or if anything is missing in one of them.
    """
    try:
        return _File.model_validate(tomllib.loads(path.read_text("utf-8"))).waiver
    except ValidationError as error:
        wrong = "; ".join(f"{_place(*one['loc'])}: {one['msg']}" for one in error.errors())
        raise WaiverError(f"{path}: {wrong}") from error
    except (OSError, ValueError) as error:
        raise WaiverError(f"{path}: {error}") from error


class Ledger:
    """What the waivers for one backend make of its results.

    Parameters
    ----------
    waivers
        All waivers; those for other backends are let be.
    backend
        The target.
    chosen
        The items of the run.
    whole
        They are all items of their requirements. A waiver for a requirement of which no item fails can only then be
        told to be idle.

    Raises
    ------
    WaiverError
        If a waiver has expired, names what there is not, or names something twice; or if none is for this backend.
    """

    def __init__(self, waivers: Iterable[Waiver], backend: str, chosen: Sequence[Item], *, whole: bool) -> None:
        given = tuple(waivers)
        own = [waiver for waiver in given if waiver.backend == backend]
        if given and not own:
            others = ", ".join(sorted({waiver.backend for waiver in given}))
            raise WaiverError(f"waivers: none is for {backend}, they are for {others}")
        _check(own)
        self.waivers = {waiver.id: waiver for waiver in own}
        self._waived: Counter[str] = Counter()
        self._ahead = Counter(item.requirement.id for item in chosen)
        self._whole = whole

    def settle(self, result: Result) -> Result:
        """Give a result as the waivers make it: ``WAIVED``, or ``XPASS`` for what does not fail after all."""
        self._ahead[result.requirement] -= 1
        waiver = self.waivers.get(result.id) or self.waivers.get(result.requirement)
        if waiver is None:
            return result
        if result.status in _FAILED:
            self._waived[waiver.id] += 1
            return result.model_copy(update={"status": "WAIVED", "outcome": f"{waiver.reason} ({waiver.link})"})
        if result.status == "PASS" and self._is_idle(waiver, result):
            return result.model_copy(update={"status": "XPASS", "message": f"nothing fails that {waiver.id} waives"})
        return result

    def _is_idle(self, waiver: Waiver, result: Result) -> bool:
        """Tell whether it is certain with this result that a waiver is for nothing."""
        if waiver.id == result.id:
            return True
        return self._whole and not self._ahead[result.requirement] and not self._waived[waiver.id]


def _check(waivers: Sequence[Waiver]) -> None:
    problems = [*_unknown(waivers), *_expired(waivers), *_repeated(waivers)]
    if problems:
        raise WaiverError("\n".join(problems))


def _unknown(waivers: Sequence[Waiver]) -> list[str]:
    known = {name for item in items() for name in (item.id, item.requirement.id)} if waivers else set()
    return [f"waiver {waiver.id}: there is no such item or requirement" for waiver in waivers if waiver.id not in known]


def _expired(waivers: Sequence[Waiver]) -> list[str]:
    today = datetime.now(UTC).date()
    return [f"waiver {waiver.id}: expired on {waiver.expires}" for waiver in waivers if waiver.expires < today]


def _repeated(waivers: Sequence[Waiver]) -> list[str]:
    counts = Counter(waiver.id for waiver in waivers)
    return [f"waiver {name}: given {count} times" for name, count in counts.items() if count > 1]


def _place(name: str | int, number: str | int = "", *fields: str | int) -> str:
    """Say where in a file something is wrong, waivers counted from 1."""
    place = f"{name} {number + 1}" if isinstance(number, int) else str(name)
    return ": ".join([place, *map(str, fields)])
