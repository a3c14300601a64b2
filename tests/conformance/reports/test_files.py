"""Files: what is written comes back as it was, in strict JSON that its schema describes, whole or not at all."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from attnkit_conformance.reports import files as writing
from attnkit_conformance.reports.files import load_report, schema_text, write_report
from attnkit_conformance.reports.journal import Journal, ReportError
from attnkit_conformance.results import Report, Worst

NAMES = {"report.json", "report.html", "junit.xml", "support.md", "support.csv", "support.json"}
SCHEMA = json.loads(schema_text())
WORDS = {"$ref", "additionalProperties", "anyOf", "const", "enum", "items", "properties", "propertyNames", "required"}
SILENT = {"$defs", "$schema", "default", "description", "title", "type"}
TYPES = {dict: ("object",), list: ("array",), str: ("string",), bool: ("boolean",), type(None): ("null",)}
NUMBERS = {int: ("integer", "number"), float: ("number",)}


def fits(value: Any, schema: Any) -> bool:
    """Check a value against a JSON schema, of those words that ours is written in."""
    if isinstance(schema, bool):
        return schema
    assert set(schema) <= WORDS | SILENT, f"words that this check does not know: {set(schema) - WORDS - SILENT}"
    if "$ref" in schema:
        return fits(value, SCHEMA["$defs"][schema["$ref"].rpartition("/")[2]])
    if "anyOf" in schema:
        return any(fits(value, one) for one in schema["anyOf"])
    if value not in schema.get("enum", [value]) or value != schema.get("const", value):
        return False
    if "type" in schema and schema["type"] not in (TYPES | NUMBERS)[type(value)]:
        return False
    if isinstance(value, list):
        return all(fits(item, schema.get("items", True)) for item in value)
    return not isinstance(value, dict) or fits_object(value, schema)


def fits_object(value: dict[str, Any], schema: dict[str, Any]) -> bool:
    known, other = schema.get("properties", {}), schema.get("additionalProperties", True)
    return (
        set(schema.get("required", ())) <= set(value)
        and all(fits(name, schema.get("propertyNames", True)) for name in value)
        and all(fits(item, known.get(name, other)) for name, item in value.items())
    )


def test_all_files_are_there_and_nothing_else(faulty: Report, tmp_path: Path) -> None:
    write_report(faulty, tmp_path / "a" / "b")
    write_report(faulty, tmp_path / "a" / "b")
    assert {path.name for path in (tmp_path / "a" / "b").iterdir()} == NAMES


def test_a_report_comes_back(faulty: Report, clean: Report, tmp_path: Path) -> None:
    for report in (faulty, clean):
        write_report(report, tmp_path)
        assert load_report(tmp_path) == report
        assert load_report(tmp_path / "report.json") == report


def test_a_journal_is_a_report_too(clean: Report, tmp_path: Path) -> None:
    with Journal(tmp_path / "journal.jsonl") as journal:
        journal.start(clean.header)
        journal.add(clean.results[0])
    assert load_report(tmp_path / "journal.jsonl").results == clean.results[:1]


def test_numbers_that_json_lacks_survive_strictly(
    clean: Report, changed: Callable[..., Report], tmp_path: Path
) -> None:
    worst = Worst(what="output", ratio=math.inf, rms=1e300, bias=-0.0, expected=-math.inf, actual=math.nan, tau=5e-324)
    report = changed(clean, status="FAIL", message="wrong", worst=worst)
    write_report(report, tmp_path)
    text = (tmp_path / "report.json").read_text("utf-8")
    plain = json.loads(text, parse_constant=pytest.fail)["results"][0]["worst"]
    assert [plain[name] for name in ("ratio", "expected", "actual")] == ["Infinity", "-Infinity", "NaN"]
    found = load_report(tmp_path).results[0].worst
    assert found is not None
    assert repr(found) == repr(worst), "NaN is unequal to itself"
    assert fits(json.loads(text), SCHEMA)


def test_the_shipped_schema_is_that_of_the_code() -> None:
    shipped = files("attnkit_conformance.reports") / "report.schema.json"
    assert json.loads(shipped.read_text("utf-8")) == json.loads(schema_text())
    assert shipped.read_text("utf-8") == schema_text()


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("header", "format"), "another/1"),
        (("header", "surplus"), 1),
        (("results", 0, "status"), "FINE"),
        (("results", 0, "worst", "ratio"), "plenty"),
        (("results", 0, "seconds"), "Infinity"),
        (("footer", "counts"), {"FINE": 1}),
    ],
)
def test_schema_and_reader_refuse_the_same(
    clean: Report, tmp_path: Path, place: tuple[str | int, ...], value: Any
) -> None:
    plain = clean.model_dump(mode="json")
    assert fits(plain, SCHEMA)
    *path, last = place
    target: Any = plain
    for step in path:
        target = target[step]
    target[last] = value
    assert not fits(plain, SCHEMA)
    (tmp_path / "report.json").write_text(json.dumps(plain), "utf-8")
    with pytest.raises(ReportError, match=f"report.json: {place[0]}"):
        load_report(tmp_path)


def test_every_field_of_a_report_is_promised(clean: Report) -> None:
    plain = clean.model_dump(mode="json")
    for name in plain["header"]:
        assert not fits({**plain, "header": {k: v for k, v in plain["header"].items() if k != name}}, SCHEMA), name


@pytest.mark.parametrize(("text", "message"), [("", "Invalid JSON"), ("{", "Invalid JSON"), ("{}", "header: Field")])
def test_what_is_no_report_is_named(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "report.json").write_text(text, "utf-8")
    with pytest.raises(ReportError, match=f"report.json: {message}"):
        load_report(tmp_path)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ReportError, match=r"report.json: there is no such file; give a report.json"):
        load_report(tmp_path)


def test_a_write_that_fails_leaves_what_was_there(
    clean: Report, faulty: Report, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_report(clean, tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def full(*arguments: object, **options: object) -> int:
        raise OSError("no space left")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(OSError, match="no space"):
        write_report(faulty, tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    assert load_report(tmp_path) == clean


def test_the_report_itself_comes_last() -> None:
    assert list(writing._WRITERS)[-1] == "report.json"
