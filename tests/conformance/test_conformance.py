"""A whole run, cut small: it ends with a report, whatever the backend does on the way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import attnkit as ak
import attnkit_conformance
from attnkit_conformance import Result, TargetError, Waiver, iter_checks, run_conformance, session
from attnkit_conformance.items import items, manifest_digest
from attnkit_conformance.reports.journal import read_journal
from attnkit_conformance.selftest.plain import Plain

UNRELIABLE = '''
import os, time
from pathlib import Path
from attnkit_conformance.selftest.plain import Plain

TRACE = Path(__file__).with_name("trace")


class Unreliable(Plain):
    """Lost at a soft-cap; each process leaves a trace."""

    def __init__(self):
        with TRACE.open("a") as file:
            file.write("started\\\\n")

    def cap(self, scores, request):
        if request.softcap is not None:
            self.lose()
        return super().cap(scores, request)

    def lose(self):
        os._exit(7)


class Hanging(Unreliable):
    def lose(self):
        time.sleep(600)


def once():
    """Starts once, and never again."""
    if TRACE.exists():
        raise RuntimeError("the chip is on fire")
    return Unreliable()
'''.replace("\\\\n", "\\n")
SOFTCAPS = "ATTN-SOFTCAP-*"
CORE = "ATTN-API-002"


@pytest.fixture
def unreliable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "unreliable_backends.py").write_text(UNRELIABLE)
    monkeypatch.syspath_prepend(tmp_path)
    return "unreliable_backends"


def chosen(*patterns: str) -> list[str]:
    return [item.id for item in items(2) if any(item.requirement.id.startswith(one.rstrip("*")) for one in patterns)]


class Scrambling(Plain):
    """Its arrays do not come back as they were."""

    def to_numpy(self, array: Any) -> Any:
        return np.array(array) + 1 if array.size and array.dtype == np.float32 else np.array(array)


def test_a_run_by_itself(tmp_path: Path) -> None:
    heard: list[Result] = []
    report = run_conformance("numpy", level=1, only=[CORE], on_result=heard.append, journal=tmp_path / "run.jsonl")
    assert report.counts() == {"PASS": len(heard)}
    assert tuple(heard) == report.results
    assert report.header.isolated
    assert report.header.partial
    assert report.header.backend == "numpy"
    assert report.header.capabilities["gqa"] is True
    assert report.header.environment["numpy"] == np.__version__
    assert report.header.manifest == manifest_digest(item.id for item in items(1))
    assert report.footer is not None
    assert report.footer.verdict == "NO VERDICT: partial"
    assert read_journal(tmp_path / "run.jsonl") == report


def test_a_backend_itself_runs_here_and_gets_no_verdict() -> None:
    report = run_conformance(Plain(), level=0)
    assert not report.header.isolated
    assert {result.level for result in report.results} == {0}
    assert report.footer is not None
    assert report.footer.verdict == "NO VERDICT: in process"
    assert not run_conformance("numpy", level=0, isolated=False).header.isolated


def test_a_sample_is_a_share_of_the_items() -> None:
    report = run_conformance(Plain(), sample=0.01, seed=5)
    assert [result.id for result in report.results] == [
        item.id for item in sorted(items(2, seed=5, sample=0.01), key=lambda item: item.requirement.level > 0)
    ]
    assert report.header.seed == 5
    assert "a sample of 0.01" in str(report.footer)


def test_what_is_not_available_is_reported() -> None:
    report = run_conformance("cupy", level=1)
    assert len(report.results) == len(items(1))
    assert set(report.counts()) == {"NOT_RUN"}
    assert report.footer is not None
    assert report.footer.verdict.startswith("INCOMPLETE: ")
    assert "cupy" in report.footer.verdict
    no_device = run_conformance("numpy", level=0, device="cuda:9")
    assert "no device 'cuda:9' here" in no_device.results[0].outcome


@pytest.mark.parametrize("target", ["nobody", "nobody:nothing", "numpy:nowhere"])
def test_what_does_not_exist_is_an_error(target: str) -> None:
    with pytest.raises(TargetError):
        run_conformance(target, level=0)


def test_a_pattern_that_fits_nothing_is_an_error() -> None:
    with pytest.raises(ValueError, match="'ATTN-NOTHING-\\*'"):
        run_conformance(Plain(), only=[CORE, "ATTN-NOTHING-*"])


def test_one_item_can_be_chosen_by_its_name() -> None:
    name = items(2)[-1].id
    assert [result.id for result in run_conformance(Plain(), only=[name]).results] == [name]


def test_a_wrong_adapter_ends_the_run() -> None:
    report = run_conformance(Scrambling(), level=1)
    harness = [result for result in report.results if result.level == 0]
    rest = [result for result in report.results if result.level > 0]
    assert "FAIL" in {result.status for result in harness}
    assert {(result.status, result.outcome.partition(":")[0]) for result in rest} == {
        ("NOT_RUN", "the adapter is wrong")
    }
    assert "the adapter is wrong" in str(report.footer)


@pytest.mark.parametrize(("kind", "status"), [("Unreliable", "CRASH"), ("Hanging", "TIMEOUT")])
def test_a_lost_process_is_replaced(unreliable: str, tmp_path: Path, kind: str, status: str) -> None:
    name = next(name for name in chosen(SOFTCAPS) if "TestOptions" in name or "TestApplied" in name)
    report = run_conformance(f"{unreliable}:{kind}", only=[name, "ATTN-API-*", "ATTN-CAUSAL-002"], timeout=3)
    lost = {result.id: result for result in report.results if result.status != "PASS"}
    assert set(lost) == {name}
    assert lost[name].status == status
    assert report.results[-1].id != name, "the run went on"
    assert report.footer is not None
    assert "1 failure in 1 requirement" in report.footer.verdict
    assert (tmp_path / "trace").read_text().count("started") == 2


def test_who_cannot_be_started_again_is_not_run(unreliable: str) -> None:
    report = run_conformance(f"{unreliable}:once", only=[SOFTCAPS])
    statuses = [result.status for result in report.results]
    first = statuses.index("CRASH")
    assert set(statuses[first + 1 :]) == {"NOT_RUN"}
    assert "the chip is on fire" in report.results[-1].outcome


def test_patience_ends(unreliable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "PATIENCE", 2)
    report = run_conformance(f"{unreliable}:Unreliable", only=[SOFTCAPS])
    assert report.counts()["CRASH"] >= 2
    assert "lost in 2 items in a row" in report.results[-1].outcome


def test_what_is_waived_is_told(unreliable: str) -> None:
    given = {"backend": "plain", "reason": "known", "link": "https://example.org/7", "expires": "2999-01-01"}
    waivers = [Waiver.model_validate({"id": "ATTN-API-001", **given})]
    report = run_conformance(Scrambling(), level=0, waivers=waivers)
    assert report.counts()["WAIVED"] == 1
    assert report.header.waivers[0]["reason"] == "known"
    passing = run_conformance(Plain(), level=0, waivers=waivers)
    assert passing.counts()["XPASS"] == 1
    assert "1 failure in 1 requirement" in str(passing.footer)


def test_failures_are_reproduced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def reproduce(item: Any, make_subject: Any, folder: Path) -> Path:
        first, second = make_subject(), make_subject()
        assert first.harness is not second.harness
        asked.append(item.test)
        return folder / item.fingerprint

    monkeypatch.setattr("attnkit_conformance.repro.reproduce", reproduce)
    zero = type("Zero", (Plain,), {"finish": lambda self, out, query, request: 0 * super(zero, self).finish(
        out, query, request)})  # fmt: skip
    report = run_conformance(zero(), level=1, only=["ATTN-CAUSAL-*"], repro=tmp_path / "repro")
    failed = [result for result in report.results if result.status == "FAIL"]
    assert len(asked) == len(set(asked)) > 0
    assert len(failed) > len(asked), "the first failure of each test is the one to read"
    assert failed[0].repro.startswith("repro/")


def test_a_reproducer_that_cannot_be_made_does_not_end_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def reproduce(item: Any, make_subject: Any, folder: Path) -> None:
        raise RuntimeError("out of ideas")

    monkeypatch.setattr("attnkit_conformance.repro.reproduce", reproduce)
    report = run_conformance(Scrambling(), level=0, repro=tmp_path / "repro")
    failed = [result for result in report.results if result.status == "FAIL"]
    assert "out of ideas" in failed[0].message


def test_checks_one_by_one() -> None:
    checks = list(iter_checks("numpy", level=1))
    assert [check.id for check in checks] == [item.id for item in items(1)]
    checks[0]()
    wrong = next(check for check in iter_checks(Scrambling(), level=0) if check.requirement.id == "ATTN-API-001")
    assert str(wrong) == wrong.id
    with pytest.raises(AssertionError):
        wrong()
    with pytest.raises(TargetError):
        iter_checks("nobody")


def test_the_package_imports_what_is_asked_for() -> None:
    assert attnkit_conformance.run_conformance is run_conformance
    with pytest.raises(AttributeError, match="nothing_of_the_kind"):
        attnkit_conformance.nothing_of_the_kind  # noqa: B018  # asked for on purpose
    assert ak.backends
