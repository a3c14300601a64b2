"""Verification: is a report whole, and does it say what its results say? The backend is not needed for that.

Which items a run has follows from its level, seed and sample alone, so the manifest is made again here, and every
result is held against its item: nothing may be missing, be there twice, or have been moved to another requirement.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from importlib.metadata import version

import attnkit as ak
from attnkit.capabilities import CONTRACT_VERSION
from attnkit_conformance.custom import arithmetic_of
from attnkit_conformance.items import Item, items, manifest_digest
from attnkit_conformance.reports.declared import capabilities_of, declared
from attnkit_conformance.reports.kinds import kind_of, refused_codes
from attnkit_conformance.reports.verify_waivers import waiver_problems
from attnkit_conformance.requirements import LEVELS, digest
from attnkit_conformance.results import Header, Report, Result
from attnkit_conformance.verdict import is_conformant, verdict_of

_FORMAT = Header.model_fields["format"].default


def problems(report: Report) -> list[str]:
    """List everything that is wrong with a report; an empty list means that it can be believed.

    A report of a backend that fails has no problems, as long as it says so.
    """
    header = report.header
    wanted = {item.id: item for item in items(header.level, seed=header.seed, sample=header.sample)}
    return [
        *_made_by_another_suite(header, list(wanted)),
        *_out_of_range(header),
        *_not_one_result_each(report, wanted),
        *_at_its_place(report, wanted),
        *(f"{result.id}: {text}" for result in report.results for text in _contradictions(result)),
        *_unlike_the_declaration(report, wanted),
        *waiver_problems(report, wanted),
        *_wrong_footer(report),
    ]


def _made_by_another_suite(header: Header, ids: list[str]) -> Iterator[str]:
    expected = {
        "format": _FORMAT,
        "suite": version("attnkit"),
        "contract": CONTRACT_VERSION,
        "requirements": digest(),
        "manifest": manifest_digest(ids),
    }
    for name, ours in expected.items():
        theirs = getattr(header, name)
        if theirs != ours:
            yield f"header: {name} must be {ours}, got {theirs}; was the report made by another version of the suite?"


def _out_of_range(header: Header) -> Iterator[str]:
    if header.level not in LEVELS:
        yield f"header: level must be one of {', '.join(map(str, LEVELS))}, got {header.level}"
    if not 0 < header.sample <= 1:
        yield f"header: sample must be more than 0 and at most 1, got {header.sample:g}"


def _not_one_result_each(report: Report, wanted: Mapping[str, Item]) -> Iterator[str]:
    found = Counter(result.id for result in report.results)
    yield from (f"{name}: no result" for name in wanted if name not in found)
    yield from (f"{name}: is not an item of this run" for name in found if name not in wanted)
    yield from (f"{name}: {number} results, must be one" for name, number in found.items() if number > 1)


def _at_its_place(report: Report, wanted: Mapping[str, Item]) -> Iterator[str]:
    for result in report.results:
        if result.id in wanted:
            requirement = wanted[result.id].requirement
            for name, true in {"requirement": requirement.id, "level": requirement.level}.items():
                if getattr(result, name) != true:
                    yield f"{result.id}: {name} must be {true}, got {getattr(result, name)}"


def _contradictions(result: Result) -> Iterator[str]:
    """Give what cannot be true of one result on its own."""
    if result.status != "PASS":
        if not (result.message or result.outcome):
            yield f"{result.status}, but it does not say why"
    elif not result.outcome.startswith(("answered", "refused ", "outside ")):
        yield f"PASS, but its outcome is {result.outcome!r}"
    elif kind_of(result) != "outside" and not (result.comparisons and result.elements and result.worst):
        yield "PASS, but nothing was compared"
    elif result.worst and not result.worst.ratio <= 1:
        yield f"PASS, but its worst error is {result.worst.ratio:.3g} times its bound"


def _unlike_the_declaration(report: Report, wanted: Mapping[str, Item]) -> Iterator[str]:
    """Give the calls that had to be refused by what is declared and were answered, and the reverse."""
    ran = [result for result in report.results if result.status != "NOT_RUN" and result.id in wanted]
    if not ran:
        return
    try:
        capabilities = capabilities_of(report.header.capabilities)
    except (TypeError, ValueError, ak.AttnkitError) as error:
        yield f"header: capabilities cannot be read: {error}"
        return
    if declared(capabilities) != dict(report.header.capabilities):
        yield "header: capabilities must be those of the contract, each of them, and no others"
    yield from _unknown_numerics(capabilities)
    own = any(told.startswith("{") for told in capabilities.numerics.values())
    for result in ran:
        case = wanted[result.id].case.on(capabilities)
        if result.dtype != case.dtype:
            yield f"{result.id}: dtype must be {case.dtype} by what is declared, got {result.dtype}"
        if kind_of(result) == "outside" and report.header.path is None and not own:
            yield f"{result.id}: only a path that was forced leaves calls to others, got {result.outcome!r}"
        missing = set(case.undeclared(capabilities))
        if result.status == "PASS" and refused_codes(result) != missing:
            due = f"refused {', '.join(sorted(missing))}" if missing else "answered"
            yield f"{result.id}: must be {due} by what is declared, got {result.outcome or 'no outcome'}"


def _unknown_numerics(capabilities: ak.Capabilities) -> Iterator[str]:
    for dtype in sorted(capabilities.dtypes):
        try:
            arithmetic_of(capabilities.numerics[dtype], dtype)
        except (ValueError, TypeError) as error:
            yield f"header: numerics of {dtype}: {error}"


def _wrong_footer(report: Report) -> Iterator[str]:
    header, footer = report.header, report.footer
    if footer is None:
        yield "footer: missing, the run was cut short"
        return
    counts = dict(report.counts())
    if {status: number for status, number in footer.counts.items() if number} != counts:
        yield f"footer: counts must be {counts}, got {dict(footer.counts)}"
    if is_conformant(footer.verdict) and (header.partial or not header.isolated):
        yield "footer: a run that is partial, or in the process of the suite, has no verdict"
    if footer.verdict != verdict_of(report):
        yield f"footer: verdict must be {verdict_of(report)!r}, got {footer.verdict!r}"
