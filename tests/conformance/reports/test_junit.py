"""JUnit XML: what CI systems take in, whatever a backend says in its messages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from xml.etree import ElementTree as ET

import pytest

from attnkit_conformance.reports.junit import junit_text
from attnkit_conformance.results import Report, Status

# Elements and attributes of the schema of the xUnit plug-in of Jenkins, and the properties of a case that pytest has.
CHILDREN = {
    "testsuites": {"testsuite"},
    "testsuite": {"properties", "testcase", "system-out", "system-err"},
    "testcase": {"properties", "skipped", "error", "failure", "system-out", "system-err"},
    "properties": {"property"},
}
ATTRIBUTES = {
    "testsuites": {"name", "time", "tests", "failures", "errors"},
    "testsuite": {"name", "tests", "failures", "errors", "time", "skipped", "timestamp", "hostname", "id", "package"},
    "testcase": {"name", "time", "classname"},
    "property": {"name", "value"},
    "failure": {"type", "message"},
    "error": {"type", "message"},
    "skipped": {"type", "message"},
}


def parse(report: Report) -> ET.Element:
    root = ET.fromstring(junit_text(report))
    for element in root.iter():
        assert {child.tag for child in element} <= CHILDREN.get(element.tag, set()), element.tag
        assert set(element.attrib) <= ATTRIBUTES.get(element.tag, set()), element.tag
    return root


def properties(case: ET.Element) -> dict[str, str]:
    return {str(item.get("name")): str(item.get("value")) for item in case.iter("property")}


def test_a_suite_for_each_requirement_and_a_case_for_each_item(faulty: Report) -> None:
    root = parse(faulty)
    found = {str(suite.get("name")): [case.get("name") for case in suite.iter("testcase")] for suite in root}
    wanted: dict[str, list[str]] = {}
    for result in faulty.results:
        wanted.setdefault(result.requirement, []).append(result.id)
    assert found == wanted


def test_totals_are_those_of_the_cases(faulty: Report) -> None:
    root = parse(faulty)
    failing = Counter(result.requirement for result in faulty.results if result.status == "FAIL")
    assert failing.total() > 3
    assert {suite.get("name"): int(suite.get("failures", -1)) for suite in root} == {
        suite.get("name"): failing[str(suite.get("name"))] for suite in root
    }
    assert [root.get(name) for name in ("tests", "failures", "errors")] == [
        str(len(faulty.results)), str(failing.total()), "0",
    ]  # fmt: skip


def test_properties_tell_what_a_case_is_about(faulty: Report) -> None:
    cases = {case.get("name"): case for case in parse(faulty).iter("testcase")}
    for result in faulty.results:
        told = properties(cases[result.id])
        assert told["requirement"] == result.requirement
        assert told["level"] == str(result.level)
        assert told["status"] == result.status
        assert (result.worst is None) == ("ratio" not in told)
        assert result.worst is None or float(told["ratio"]) == pytest.approx(result.worst.ratio, rel=1e-3)


@pytest.mark.parametrize(
    ("status", "tag"),
    [
        ("FAIL", "failure"),
        ("XPASS", "failure"),
        ("ERROR", "error"),
        ("CRASH", "error"),
        ("TIMEOUT", "error"),
        ("NOT_RUN", "skipped"),
        ("WAIVED", "skipped"),
    ],
)
def test_every_status_has_its_element(clean: Report, changed: Callable[..., Report], status: Status, tag: str) -> None:
    root = parse(changed(clean, status=status, outcome="no device", message=""))
    [element] = [child for case in root.iter("testcase") for child in case if child.tag != "properties"]
    assert (element.tag, element.get("type"), element.get("message")) == (tag, status, "no device")
    suite = next(suite for suite in root if suite.find(f"testcase/{tag}") is not None)
    counted = {"failure": "failures", "error": "errors", "skipped": "skipped"}
    assert {name: suite.get(name) for name in counted.values()} == {
        name: str(int(name == counted[tag])) for name in counted.values()
    }


def test_no_message_can_break_it(clean: Report, changed: Callable[..., Report]) -> None:
    message = "".join(map(chr, range(0x300))) + "\ud800\ufffe\U0001f600 ]]> <a href='x'>&amp;</a>"
    root = parse(changed(clean, status="FAIL", message=message, repro='re"pro\x00'))
    [failure] = root.iter("failure")
    assert failure.text is not None
    assert failure.text.endswith("\\ud800\\ufffe\U0001f600 ]]> <a href='x'>&amp;</a>")
    assert failure.text.startswith("\\x00\\x01")
    assert all(sign in failure.text for sign in map(chr, range(0x20, 0x7F)))
    assert properties(next(case for case in root.iter("testcase") if case.find("failure") is not None))["repro"] == (
        're"pro\\x00'
    )
