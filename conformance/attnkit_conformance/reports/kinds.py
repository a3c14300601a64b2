"""Kind: what came of an item in one word, as tables count it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final, Literal

from attnkit_conformance.results import Result

Kind = Literal["answered", "refused", "outside", "failed", "waived", "not run"]
"""``answered``: answered and right. ``refused``: not declared, and refused as it must be. ``outside``: declared, but
not for the path that was asked for, or not bounded by numerics of its own. ``failed``: anything wrong, crashes and
waivers that pass included.
"""
KINDS: Final[tuple[Kind, ...]] = ("answered", "refused", "outside", "failed", "waived", "not run")
_OUTCOMES: Final[dict[str, Kind]] = {"refused": "refused", "outside": "outside"}
_STATUSES: Final[dict[str, Kind]] = {"NOT_RUN": "not run", "WAIVED": "waived"}


def kind_of(result: Result) -> Kind:
    """Tell of which kind a result is."""
    if result.status == "PASS":
        return _OUTCOMES.get(result.outcome.partition(" ")[0], "answered")
    return _STATUSES.get(result.status, "failed")


def count(results: Iterable[Result]) -> Counter[Kind]:
    """Count results of each kind."""
    return Counter(map(kind_of, results))


def refused_codes(result: Result) -> frozenset[str]:
    """Give the codes that a call was refused with; none where it was answered."""
    head, _, rest = result.outcome.partition(" ")
    return frozenset(code.strip() for code in rest.split(",")) if head == "refused" else frozenset()
