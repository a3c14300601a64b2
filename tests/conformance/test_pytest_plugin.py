"""The pytest plug-in as a third party meets it: one line of a file, one option, in a pytest of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from attnkit_conformance import run_conformance
from attnkit_conformance.reports.files import load_report

BACKENDS = """
import sys
from dataclasses import replace
import numpy as np
import attnkit as ak

sys.path.append(%r)
from attnkit_conformance.selftest.plain import Plain

class Mean(ak.Backend):
    name = "mean"
    paths = ("attention", "short")

    def capabilities(self):
        return ak.Capabilities()

    def unsupported(self, request, path=None):
        reasons = super().unsupported(request)
        if path == "short" and request.query_length > 1:
            reasons.append(ak.Reason("path", "query_length", "1", str(request.query_length)))
        return reasons

    def attention(self, query, key, value, operands, request):
        output = np.broadcast_to(value.mean(axis=2, keepdims=True), (*query.shape[:3], value.shape[3]))
        return ak.AttentionOutput(output.copy())

    def from_numpy(self, array):
        return array.copy()

    to_numpy = from_numpy


class Claiming(Plain):
    name = "claiming"
    declared = replace(Plain.declared, grad=True)


ak.register(ak.BackendSpec("plain", Plain), "plain-plug-in 1.2")
ak.register(ak.BackendSpec("claiming", Claiming), "claiming-plug-in")
ak.register(ak.BackendSpec("mean", Mean), "mean-plug-in 0.3")
ak.register(ak.BackendSpec("absent", Mean, available=lambda: "no device", install_hint="buy one"), "absent")
""" % str(Path(__file__).parent)  # noqa: UP031  # braces are Python here
SUITE = "from attnkit_conformance.suite import *\n"
Run = Callable[..., tuple[int, str]]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Write files and run pytest on them; gives its exit status and output."""
    (tmp_path / "conftest.py").write_text("import backends_of_theirs\n")
    (tmp_path / "backends_of_theirs.py").write_text(BACKENDS)
    (tmp_path / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\naddopts = --strict-markers\n")

    def run(*arguments: str, **files: str) -> tuple[int, str]:
        for name, text in files.items():
            (tmp_path / f"{name}.py").write_text(text)
        outer = ("PYTEST_ADDOPTS", "PYTEST_CURRENT_TEST", "PYTEST_XDIST")
        environment = {name: value for name, value in os.environ.items() if not name.startswith(outer)}
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments]
        done = subprocess.run(command, cwd=tmp_path, env=environment, text=True, capture_output=True, timeout=300)
        return done.returncode, done.stdout + done.stderr

    return run


def test_one_line_is_a_whole_test_file(run: Run) -> None:
    status, output = run("-v", "--attnkit-backend=plain", "-k", "TestRefused or TestGroupedHeads", test_theirs=SUITE)
    assert status == pytest.ExitCode.OK, output
    assert "test_theirs.py::TestGroupedHeads::test_every_head_reads_its_own" in output
    assert "[plain-decode-b2h4k2t1s40d16-float32] PASSED" in output
    assert "attnkit conformance: plain of plain-plug-in 1.2" in output
    assert "contract 1.0; level 2, seed 0, in process, no verdict: use attnkit conform run" in output
    assert "skipped" not in output
    assert "plain: 19 answered; partial: 19 of " in output


def test_the_installed_suite_runs_by_name(run: Run) -> None:
    status, output = run("-q", "--pyargs", "attnkit_conformance", "--attnkit-backend=plain", "-k", "TestRefused")
    assert status == pytest.ExitCode.OK, output
    assert "4 passed" in output


def test_it_may_be_loaded_by_hand(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    by_hand = ("-p", "attnkit_conformance.pytest_plugin", "--attnkit-backend=plain")
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    status, output = run("-q", *by_hand, "-k", "TestRefused", test_theirs=SUITE)
    assert status == pytest.ExitCode.OK, output


def test_several_backends_and_paths_in_one_run(run: Run) -> None:
    names = ("--attnkit-backend=plain", "--attnkit-backend=mean", "--attnkit-backend=mean:short")
    status, output = run("-v", *names, "-k", "test_every_head_reads_its_own", test_theirs=SUITE)
    assert status == pytest.ExitCode.OK, output  # the mean of constants is their attention
    assert "plain of plain-plug-in 1.2" in output
    assert "mean of mean-plug-in 0.3, contract 1.0" in output
    assert "[mean:short-decode-b2h2k2t1s40d16-float32] PASSED" in output
    assert "plain: 15 answered" in output
    assert "mean: 3 answered, 12 refused" in output
    assert "mean:short: 1 answered, 12 refused, 2 outside" in output
    assert "12 refused gqa" in output
    assert "2 outside query_length must be 1" in output


def test_faults_are_told_apart(run: Run) -> None:
    status, output = run("-q", "--attnkit-backend=mean", "-k", "TestOneHot and plain", test_theirs=SUITE)
    assert status == pytest.ExitCode.TESTS_FAILED
    assert "value of the chosen key" in output
    assert "worst at [b=" in output
    assert "ratio" in output


def test_nothing_runs_without_a_backend(run: Run) -> None:
    status, output = run("-q", test_theirs=SUITE)
    assert status == pytest.ExitCode.USAGE_ERROR, output
    assert "needs --attnkit-backend NAME; available:" in output
    assert "mean" in output


def test_nothing_runs_without_a_backend_in_parallel(run: Run) -> None:
    status, output = run("-q", "-n", "2", test_theirs=SUITE)
    assert status == pytest.ExitCode.TESTS_FAILED, output
    assert "needs --attnkit-backend NAME" in output


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nobody", "no backend named 'nobody'"),
        ("absent", "cannot run here: no device; buy one"),
        ("mean:long", "no such path; paths of mean: attention, short"),
        ("cmd:./harness", "no program './harness'; build it, or give its path"),
    ],
)
def test_a_backend_that_cannot_be_had_is_an_error(run: Run, name: str, message: str) -> None:
    status, output = run("-q", f"--attnkit-backend={name}", test_theirs=SUITE)
    assert status == pytest.ExitCode.USAGE_ERROR, output
    assert message in output
    assert "passed" not in output


def test_a_backend_that_cannot_be_had_is_an_error_in_parallel(run: Run) -> None:
    status, output = run("-q", "-n", "2", "--attnkit-backend=absent", test_theirs=SUITE)
    assert status == pytest.ExitCode.USAGE_ERROR, output
    assert "cannot run here: no device" in output


def test_it_is_dormant_in_other_peoples_runs(run: Run) -> None:
    theirs = """
import sys, pytest

@pytest.fixture(params=["one", "two"])
def backend(request):
    return request.param

def test_theirs(backend):
    assert backend in ("one", "two")
    assert "attnkit" not in sys.modules
    assert "numpy" not in sys.modules
"""
    status, output = run("-q", "--noconftest", test_theirs=theirs)
    assert status == pytest.ExitCode.OK, output
    assert "2 passed" in output
    assert "attnkit conformance" not in output


def test_a_path_that_keeps_out_of_everything_does_not_pass(run: Run) -> None:
    chosen = ("--attnkit-backend=mean:short", "-k", "test_applied_or_refused and plain")
    status, output = run("-q", *chosen, test_theirs=SUITE)
    assert status == pytest.ExitCode.TESTS_FAILED, output
    assert "mean:short: nothing was answered" in output


def test_gradients_that_cannot_be_asked_for_are_named(run: Run) -> None:
    chosen = ("--attnkit-backend=claiming", "-k", "TestRefused or TestGradientCalls and test_views")
    status, output = run("-q", *chosen, test_theirs=SUITE)
    assert status == pytest.ExitCode.OK, output
    assert "claiming: 4 answered, 5 unchecked" in output
    assert "5 unchecked gradients, since the backend has no vjp" in output


def test_a_backend_of_which_nothing_could_be_seen_does_not_pass(run: Run) -> None:
    status, output = run(
        "-q", "--attnkit-backend=claiming", "-k", "TestGradientCalls and test_views", test_theirs=SUITE
    )
    assert status == pytest.ExitCode.TESTS_FAILED, output
    assert "claiming: nothing was answered; 5 unchecked" in output


def test_counts_survive_parallel_runs(run: Run) -> None:
    status, output = run(
        "-q", "-n", "2", "--attnkit-backend=plain", "-k", "test_every_head_reads_its_own", test_theirs=SUITE
    )
    assert status == pytest.ExitCode.OK, output
    assert "plain: 15 answered" in output


def test_it_says_what_the_other_fronts_say(run: Run, tmp_path: Path) -> None:
    target = "attnkit_conformance.selftest.plain:Plain"
    options = ("--attnkit-level=0", "--attnkit-seed=3", "--attnkit-report=report")
    status, output = run("-q", "-n", "2", f"--attnkit-backend={target}", *options, test_theirs=SUITE)
    assert status == pytest.ExitCode.OK, output
    assert "partial" not in output
    assert "report: report" in output
    ours, theirs = load_report(tmp_path / "report"), run_conformance(target, level=0, seed=3, isolated=False)
    assert ours.footer is not None
    assert ours.footer.verdict == "NO VERDICT: in process"
    here = {"started": ours.header.started, "environment": ours.header.environment}  # another process, other libraries
    assert ours.header == theirs.header.model_copy(update=here)
    assert ours.header.environment["numpy"] == np.__version__
    assert [result.model_copy(update={"seconds": 0}) for result in ours.results] == [
        result.model_copy(update={"seconds": 0}) for result in theirs.results
    ]


def test_a_report_of_a_part_says_so(run: Run, tmp_path: Path) -> None:
    names = ("--attnkit-backend=plain", "--attnkit-backend=mean")
    status, output = run("-q", *names, "-k", "TestOneHot and plain", "--attnkit-report=report", test_theirs=SUITE)
    assert status == pytest.ExitCode.TESTS_FAILED, output
    right, wrong = (load_report(tmp_path / "report" / name) for name in ("plain", "mean"))
    assert right.header.partial
    assert {result.status for result in right.results} == {"PASS"}
    failed = [result for result in wrong.results if result.status == "FAIL"]
    assert failed
    assert "value of the chosen key" in failed[0].message
    assert failed[0].worst is not None


def test_the_classes_run_as_they_are(run: Run) -> None:
    theirs = SUITE + "\nclass TestOurMerge(TestMerge):\n    def test_parts_make_the_whole(self):\n        pass\n"
    status, output = run("-q", "--attnkit-backend=plain", "-k", "TestOurMerge", test_theirs=theirs)
    assert status == pytest.ExitCode.INTERRUPTED, output
    assert "TestOurMerge: the suite's classes run as they are, not as subclasses" in output
