"""JUnit XML: the report as CI systems read it, a test suite for each requirement and a test case for each item."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from xml.etree import ElementTree as ET

from attnkit_conformance.results import Report, Result

# All that XML 1.0 does not allow, not even escaped: https://www.w3.org/TR/xml/#charsets
_ILLEGAL = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_TAGS = {
    "FAIL": "failure",
    "XPASS": "failure",
    "ERROR": "error",
    "CRASH": "error",
    "TIMEOUT": "error",
    "NOT_RUN": "skipped",
    "WAIVED": "skipped",
}


def junit_text(report: Report) -> str:
    """Give a report as JUnit XML; what XML cannot hold is written as Python escapes it."""
    groups: dict[str, list[Result]] = {}
    for result in report.results:
        groups.setdefault(result.requirement, []).append(result)
    root = _element("testsuites", name=report.header.backend, **_totals(report.results, skipped=False))
    for requirement, results in groups.items():
        root.append(_suite(report, requirement, results))
    ET.indent(root)
    return ET.tostring(root, encoding="unicode", xml_declaration=True).replace("'", '"', 4) + "\n"


def _suite(report: Report, requirement: str, results: Sequence[Result]) -> ET.Element:
    suite = _element("testsuite", name=requirement, timestamp=report.header.started, **_totals(results))
    suite.extend(map(_case, results))
    return suite


def _case(result: Result) -> ET.Element:
    case = _element("testcase", name=result.id, classname=result.requirement, time=_time([result]))
    case.append(_properties(result))
    if result.status in _TAGS:
        told = result.message or result.outcome or result.status
        problem = _element(_TAGS[result.status], type=result.status, message=told.splitlines()[0])
        problem.text = _legal(told)
        case.append(problem)
    return case


def _properties(result: Result) -> ET.Element:
    properties = _element("properties")
    named = {"requirement": result.requirement, "level": result.level, "status": result.status, "dtype": result.dtype}
    if result.outcome:
        named["outcome"] = result.outcome
    if result.worst is not None:
        named["ratio"] = f"{result.worst.ratio:.4g}"
    if result.repro:
        named["repro"] = result.repro
    properties.extend(_element("property", name=name, value=str(value)) for name, value in named.items())
    return properties


def _totals(results: Sequence[Result], *, skipped: bool = True) -> dict[str, str]:
    tags = [_TAGS.get(result.status, "") for result in results]
    totals = {"tests": len(tags), "failures": tags.count("failure"), "errors": tags.count("error")}
    totals |= {"skipped": tags.count("skipped")} if skipped else {}
    return {name: str(number) for name, number in totals.items()} | {"time": _time(results)}


def _time(results: Iterable[Result]) -> str:
    return f"{sum(result.seconds for result in results):.3f}"


def _element(tag: str, **attributes: str) -> ET.Element:
    return ET.Element(tag, {name: _legal(value) for name, value in attributes.items()})


def _legal(text: str) -> str:
    return _ILLEGAL.sub(lambda sign: sign[0].encode("unicode_escape").decode(), text)
