"""``run`` as a person meets it: verdict, exit code, report, and what was asked for wrongly."""

from __future__ import annotations

import json

import pytest

from attnkit_conformance.cli.progress import Watch
from attnkit_conformance.reports.files import load_report
from attnkit_conformance.results import Result

HARNESS = ("--level", 0)


def test_a_backend_that_conforms(conform, plain, tmp_path) -> None:
    result = conform("run", plain, *HARNESS, "--report", tmp_path / "report")
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("CONFORMANT attnkit-contract")
    assert f"report: {tmp_path / 'report' / 'report.html'}" in result.stdout
    report = load_report(tmp_path / "report")
    assert report.header.isolated
    assert report.footer is not None
    assert report.footer.verdict == result.stdout.splitlines()[0]
    assert load_report(tmp_path / "report" / "journal.jsonl") == report


def test_a_backend_that_does_not(conform, wrong) -> None:
    result = conform("run", wrong, *HARNESS)
    assert result.exit_code == 1
    assert result.stdout.startswith("NOT CONFORMANT")
    assert "ATTN-API-002 (A1, A11) One plain call" in result.stdout
    assert "An unmasked call gives an output of shape" in result.stdout
    assert "ratio" in result.stdout
    assert "FAIL ATTN-API-002/" in result.stderr  # as it came
    assert "FAIL" not in conform("run", wrong, *HARNESS, "--only", "ATTN-API-001").stderr


def test_json_is_all_of_standard_output(conform, wrong) -> None:
    result = conform("run", wrong, *HARNESS, "--json")
    told = json.loads(result.stdout)
    assert result.exit_code == 1
    assert told["verdict"].startswith("NOT CONFORMANT")
    assert told["report"] is None
    assert [failure["requirement"] for failure in told["failures"]] == ["ATTN-API-002"]
    assert told["counts"]["failed"] == len(told["failures"][0]["items"])


def test_in_process_is_no_verdict(conform, plain, wrong) -> None:
    right = conform("run", plain, *HARNESS, "--in-process")
    assert right.exit_code == 0
    assert right.stdout.startswith("NO VERDICT: in process")
    assert conform("run", wrong, *HARNESS, "--in-process").exit_code == 1


def test_a_part_is_no_verdict(conform, plain) -> None:
    result = conform("run", plain, *HARNESS, "--only", "ATTN-API-*", "--only", "ATTN-CAP-001", "--in-process")
    assert result.exit_code == 0
    assert "partial" in result.stdout.splitlines()[0]


def test_an_earlier_report_does_not_outlive_the_next_run(conform, plain, tmp_path) -> None:
    conform("run", plain, *HARNESS, "--in-process", "--report", tmp_path)
    assert (tmp_path / "report.json").exists()
    assert conform("run", "nobody", "--report", tmp_path).exit_code == 2
    assert not (tmp_path / "report.json").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nobody"], ["no backend named 'nobody'", "available: "]),
        (["cmd:./harness"], ["cmd:./harness", "no program", "build it"]),
        (["numpy:long"], ["no such path"]),
        (["nowhere:make", "--in-process"], ["No module named 'nowhere'"]),
        (["numpy", "--only", "ATTN-NOTHING-*"], ["only", "ATTN-NOTHING-*"]),
        (["numpy", "--sample", "0"], ["--sample must be > 0"]),
        (["numpy", "--waivers", "missing.toml"], ["missing.toml"]),
    ],
)
def test_wrong_use_is_one_message_and_exit_code_2(conform, arguments, words) -> None:
    result = conform("run", *arguments)
    assert result.exit_code == 2
    assert "Traceback" not in result.stderr
    assert all(word in result.stderr for word in words), result.stderr


def test_a_run_that_is_cut_short_says_where_its_results_are(conform, plain, tmp_path, monkeypatch) -> None:
    def interrupt(self: Watch, result: Result) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Watch, "add", interrupt)
    result = conform("run", plain, *HARNESS, "--in-process", "--report", tmp_path / "report")
    assert result.exit_code not in (0, 2)
    assert f"'attnkit conform report {tmp_path / 'report'}' has what is known" in result.stderr
    assert load_report(tmp_path / "report" / "journal.jsonl").footer is None


def test_many_broken_requirements_are_named_and_some_are_told(conform, wrong) -> None:
    only = [f"--only=ATTN-{area}-*" for area in ("NUM", "CAUSAL", "SCALE", "MASK", "OWN", "SHAPE")]
    lines = conform("run", wrong, "--level", 1, *only, "--in-process").stdout.splitlines()
    titles = [line for line in lines if line.endswith("items fail")]
    statements = [line for line in lines if line.startswith("    FAIL ATTN-")]
    assert len(titles) > len(statements) == 6
