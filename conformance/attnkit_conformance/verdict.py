"""Verdict: what a report comes down to, in one line that can be quoted.

``CONFORMANT``: every item of the level was run in a process of its own, and is right. ``CUSTOM HASH``: the same, within
bounds that follow from numerics of the backend's own, of that hash; what is stated for profiles alone, or has a bound
that tells nothing, was not judged. ``NOT CONFORMANT``: something is
wrong. ``INCOMPLETE``: nothing is known to be wrong, but not everything was seen. ``NO VERDICT``: the run was not one
that could tell.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from attnkit.tolerance import Arithmetic
from attnkit_conformance.cases import DTYPES
from attnkit_conformance.custom import CustomNumerics, arithmetic_of, label_of
from attnkit_conformance.custom.declaration import VERDICT
from attnkit_conformance.items import manifest_digest
from attnkit_conformance.results import Report, Result

_BAD = frozenset({"FAIL", "CRASH", "TIMEOUT", "XPASS"})
_REASONS = 3


def verdict_of(report: Report) -> str:
    """Give the verdict of a report."""
    failed, open_ends = _failures(report), _open_ends(report)
    unfit = ", ".join(_unfit(report))
    if unfit:
        return f"NO VERDICT: {unfit}" + (f"; {failed}" if failed else "")
    if failed:
        return f"NOT CONFORMANT: {failed}"
    if open_ends:
        return f"INCOMPLETE: {open_ends}"
    return " / ".join(_conformant(report))


def is_conformant(verdict: str) -> bool:
    """Tell whether a verdict is that a backend conforms, with waivers or without, or by numerics of its own."""
    return verdict.startswith(("CONFORMANT ", f"{VERDICT} "))


def word_for(capabilities: Mapping[str, Any]) -> str:
    """Give the word for a backend that is right: ``"CONFORMANT"``, or the class of its own numerics."""
    own = (found.verdict for _, found in _arithmetics(capabilities) if isinstance(found, CustomNumerics))
    return " ".join(own) or "CONFORMANT"


def _unfit(report: Report) -> Iterator[str]:
    header = report.header
    if not header.isolated:
        yield "in process"
    if header.partial:
        yield "partial"
    if header.sample < 1:
        yield f"a sample of {header.sample:g}"


def _failures(report: Report) -> str:
    bad = [result for result in report.results if result.status in _BAD]
    if bad:
        requirements = {result.requirement for result in bad}
        told = f"{_count(len(bad), 'failure')} in {_count(len(requirements), 'requirement')}"
        return f"the adapter is wrong, {told}" if any(result.level == 0 for result in bad) else told
    core = [result for result in report.results if result.level == 1]
    if core and not report.header.partial and all(_is_evasive(result) for result in core):
        return "nothing was answered at level 1"
    return ""


def _is_evasive(result: Result) -> bool:
    """Tell whether an item passed without a number of the backend that was held against the oracle."""
    numbers = result.worst is not None and not result.worst.exact
    return result.status == "PASS" and not (result.outcome == "answered" and numbers)


def _open_ends(report: Report) -> str:
    """Say why not everything was seen."""
    broken = sum(result.status == "ERROR" for result in report.results)
    reasons = Counter(result.outcome for result in report.results if result.status == "NOT_RUN")
    told = [f"{_count(count, 'item')} not run: {why or 'no reason was given'}" for why, count in reasons.most_common()]
    if broken:
        told.insert(0, f"the suite itself broke in {_count(broken, 'item')}")
    if not report.results:
        told.append("there are no results")
    elif not _is_whole(report):
        told.append("the results are not those of all its items, each once")
    return "; ".join([*told[:_REASONS], *(["..."] if len(told) > _REASONS else [])])


def _conformant(report: Report) -> Iterator[str]:
    header, counts = report.header, report.counts()
    waived = counts["WAIVED"]
    word = word_for(header.capabilities)
    word = f"{word} WITH WAIVERS({waived})" if waived else word
    yield f"{word} attnkit-contract {header.contract}"
    yield f"suite {header.suite}"
    yield f"L{header.level}"
    yield f"{'path ' if header.path else ''}{header.backend}"
    outside = sum(result.outcome.startswith("outside") for result in report.results)
    if outside:
        yield f"outside {outside}"
    yield "declared {} of {}".format(*declared_count(header.capabilities))
    yield f"numerics {_numerics(header.capabilities)}"
    yield f"waivers {waived}"
    yield f"manifest {header.manifest[:12]}"


def _is_whole(report: Report) -> bool:
    """Tell whether the results are those of the manifest, by the requirements that the report was made with."""
    ids = [result.id for result in report.results]
    return manifest_digest(ids, report.header.requirements) == report.header.manifest


def declared_count(capabilities: Mapping[str, Any]) -> tuple[int, int]:
    """Count what is declared, and what could be: all that is simply yes or no, and each element type."""
    answers = [value for value in capabilities.values() if isinstance(value, bool)]
    answers += [dtype in capabilities.get("dtypes", ()) for dtype in DTYPES]
    return sum(answers), len(answers)


def _numerics(capabilities: Mapping[str, Any]) -> str:
    return " ".join(f"{dtype}:{label_of(arithmetic)}" for dtype, arithmetic in _arithmetics(capabilities))


def _arithmetics(capabilities: Mapping[str, Any]) -> Iterator[tuple[str, Arithmetic]]:
    profiles, declared = capabilities.get("numerics", {}), capabilities.get("dtypes", ())
    return ((dtype, arithmetic_of(profiles[dtype], dtype)) for dtype in DTYPES if dtype in declared)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
