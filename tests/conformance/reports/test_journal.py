"""Journals: what is written comes back, and of a run that was cut short all but the line being written."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from attnkit_conformance.reports.journal import Journal, ReportError, read_journal
from attnkit_conformance.results import Report


def write(report: Report, path: Path) -> Path:
    with Journal(path) as journal:
        journal.start(report.header)
        for result in report.results:
            journal.add(result)
        if report.footer:
            journal.finish(report.footer)
    return path


def test_a_whole_run_comes_back(faulty: Report, tmp_path: Path) -> None:
    assert faulty.footer
    assert read_journal(write(faulty, tmp_path / "new" / "journal.jsonl")) == faulty


def test_every_line_is_strict_json_of_one_thing(faulty: Report, tmp_path: Path) -> None:
    lines = write(faulty, tmp_path / "journal.jsonl").read_text("utf-8").splitlines()
    found = [json.loads(line, parse_constant=pytest.fail) for line in lines]
    assert [list(line) for line in found] == [["header"], *[["result"]] * len(faulty.results), ["footer"]]


def test_every_result_is_on_the_disk_at_once(faulty: Report, tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.jsonl")
    journal.start(faulty.header)
    for number, result in enumerate(faulty.results[:3], 1):
        journal.add(result)
        assert read_journal(journal.path).results == faulty.results[:number]
    journal.close()


def test_a_process_that_dies_loses_nothing_that_was_told(clean: Report, tmp_path: Path) -> None:
    (tmp_path / "report.json").write_text(clean.model_dump_json(), "utf-8")
    program = """
import os, sys
from pathlib import Path
from attnkit_conformance.reports.files import load_report
from attnkit_conformance.reports.journal import Journal
report, journal = load_report(Path(sys.argv[1])), Journal(Path(sys.argv[2]))
journal.start(report.header)
for result in report.results[:5]:
    journal.add(result)
os._exit(9)
"""
    paths = [str(tmp_path / name) for name in ("report.json", "journal.jsonl")]
    assert subprocess.run([sys.executable, "-c", program, *paths], check=False, timeout=120).returncode == 9
    assert read_journal(tmp_path / "journal.jsonl") == clean.model_copy(
        update={"results": clean.results[:5], "footer": None}
    )


def test_it_may_be_torn_at_any_byte(faulty: Report, tmp_path: Path) -> None:
    odd = faulty.results[0].model_copy(update={"message": "größer als τ\n"})
    whole = write(
        faulty.model_copy(update={"results": (odd, faulty.results[1])}), tmp_path / "whole.jsonl"
    ).read_bytes()
    torn, first = tmp_path / "torn.jsonl", whole.index(b"\n") + 1
    for length in range(first, len(whole)):
        torn.write_bytes(whole[:length])
        found = read_journal(torn)
        complete = whole[:length].count(b"\n") - 1
        assert complete <= len(found.results) <= complete + 1, (
            "all lines that end, and the last if only its end is gone"
        )
        assert found.results == (odd, faulty.results[1])[: len(found.results)]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("", "line 1 must be the header"),
        ("{result}", "line 1 must be the header"),
        ("{header}\nnonsense\n{result}", "line 2: Invalid JSON"),
        ("{header}\n{header}", "line 2: one header"),
        ("{header}\n{footer}\n{result}", "line 3: one header"),
        ('{header}\n{{"result": {{"id": 3}}}}', "line 2: result.id: Input should be a valid string"),
        ('{header}\n{{"remark": 1}}', "line 2: remark: Extra inputs"),
        ("{header}\n{{}}", "line 2: must be a header, a result or a footer"),
    ],
)
def test_anything_else_is_refused_by_line(clean: Report, tmp_path: Path, lines: str, message: str) -> None:
    parts = {"header": clean.header, "result": clean.results[0], "footer": clean.footer}
    named = {name: f'{{"{name}": {model.model_dump_json()}}}' for name, model in parts.items() if model}
    path = tmp_path / "journal.jsonl"
    path.write_text(lines.format(**named) + "\n" * bool(lines), "utf-8")
    with pytest.raises(ReportError, match=f"journal.jsonl: {message}"):
        read_journal(path)
