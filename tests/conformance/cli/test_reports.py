"""The commands over reports: made anew, verified, compared."""

from __future__ import annotations

import json

import pytest

from attnkit_conformance.reports.files import load_report


@pytest.fixture
def report(conform, plain, tmp_path):
    """The folder of a report of a whole run."""
    folder = tmp_path / "report"
    assert conform("run", plain, "--level", 0, "--report", folder).exit_code == 0
    return folder


def test_the_files_come_from_the_journal_again(conform, report, tmp_path) -> None:
    result = conform("report", report / "journal.jsonl", "--out", tmp_path / "again")
    assert result.exit_code == 0
    assert result.stdout.startswith("CONFORMANT")
    assert {path.name for path in (tmp_path / "again").iterdir()} == {
        path.name for path in report.iterdir() if path.name != "journal.jsonl"
    }
    assert load_report(tmp_path / "again") == load_report(report)


def test_a_run_that_was_cut_short(conform, report) -> None:
    journal = report / "journal.jsonl"
    lines = journal.read_text("utf-8").splitlines(keepends=True)
    journal.write_text("".join(lines[:3]) + lines[3][:20], "utf-8")
    (report / "report.json").unlink()
    told = json.loads(conform("report", report, "--json").output)
    assert told["results"] == 2
    assert told["verdict"] == "INCOMPLETE: cut short after 2 items, of which 0 failed"
    verified = conform("verify-report", report)
    assert verified.exit_code == 1
    assert verified.stdout.startswith("footer: missing")


def test_a_whole_report_is_legal(conform, report) -> None:
    result = conform("verify-report", report / "report.json")
    assert result.exit_code == 0, result.output
    assert "whole and legal" in result.stdout
    assert json.loads(conform("verify-report", report, "--json").output) == {"problems": []}


def test_a_report_that_lacks_results_is_not(conform, report) -> None:
    found = load_report(report)
    short = found.model_copy(update={"results": found.results[2:]})
    (report / "report.json").write_text(short.model_dump_json(), "utf-8")
    result = conform("verify-report", report)
    assert result.exit_code == 1
    assert f"{found.results[0].id}: no result" in result.stdout


def test_a_report_is_not_worse_than_itself(conform, report) -> None:
    assert conform("diff", report, report).exit_code == 0
    assert json.loads(conform("diff", report, report, "--json").output)["worse"] is False


def test_a_report_with_a_new_failure_is_worse(conform, report, tmp_path) -> None:
    found = load_report(report)
    failed = found.results[0].model_copy(update={"status": "FAIL", "message": "AssertionError: wrong"})
    later = tmp_path / "later.json"
    later.write_text(found.model_copy(update={"results": (failed, *found.results[1:])}).model_dump_json(), "utf-8")
    result = conform("diff", report, later)
    assert result.exit_code == 1
    assert found.results[0].id in result.stdout


@pytest.mark.parametrize("command", [["report"], ["verify-report"], ["diff", "nowhere"]])
def test_what_is_no_report_is_wrong_use(conform, tmp_path, command) -> None:
    (tmp_path / "report.json").write_text("[]")
    result = conform(*command, tmp_path)
    assert result.exit_code == 2
    assert "Traceback" not in result.stderr
    assert result.stderr.startswith("attnkit: ")
