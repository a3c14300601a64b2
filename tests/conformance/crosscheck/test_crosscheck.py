"""Two sides, the same requests: agreement within the bounds, and the right one blamed where there is none."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

import attnkit as ak
from attnkit_conformance.cases import Case
from attnkit_conformance.crosscheck import CrossReport, crosscheck
from attnkit_conformance.crosscheck.fuzzing import fuzz
from attnkit_conformance.crosscheck.judging import judge
from attnkit_conformance.crosscheck.requests import drift, requests
from attnkit_conformance.crosscheck.sides import Failed, Live, Refused
from attnkit_conformance.selftest.plain import EVERYTHING, Plain

DTYPES = ("float32", "float64", "float16", "bfloat16")
FAULTS = (  # each of another kind
    "causal_loose",
    "window_wide",
    "gqa_head0",
    "scale_none",
    "sink_ignored",
    "tail_tile_dropped",
    "boundary_key_twice",
    "rescale_total_missing",
)


@pytest.mark.parametrize("other", ["torch", "torch:tiled", "numpy:dense"])
def test_first_party_backends_agree(other) -> None:
    report = crosscheck("numpy", other, fuzz(120, 3, DTYPES))
    assert report.agree, report.findings
    assert report.asked == 120
    assert report.blamed == frozenset()
    assert {line.part for line in report.statistics} == {"output", "lse"}
    assert {line.dtype for line in report.statistics} == set(DTYPES)
    assert all(0 < line.apart <= 1 or line.dtype == "bfloat16" for line in report.statistics)


def test_the_emulated_kernels_agree() -> None:
    report = crosscheck("numpy", "cuda-emulated", requests("causal;joined", ("float32", "float16"), 0))
    assert report.agree, report.findings


def test_the_same_seed_asks_the_same() -> None:
    one, other, third = (list(fuzz(20, seed, DTYPES)) for seed in (5, 5, 6))
    assert [str(case) for case in one] == [str(case) for case in other] != [str(case) for case in third]
    assert all(
        np.array_equal(a, b) for x, y in zip(one, other, strict=True) for a, b in zip(x.arrays, y.arrays, strict=True)
    )


def test_requests_are_of_many_kinds() -> None:
    cases = list(fuzz(300, 0, DTYPES))
    kinds = {term[0] for case in cases if "mask" in case.options for term in case.options["mask"].terms}
    assert kinds == {"causal", "window", "prefix", "chunked", "documents", "dense"}
    assert {name for case in cases for name in case.options} == set(ak.call.Options._fields)
    assert {case.heads // case.kv_heads for case in cases} == {1, 2, 3}
    assert max(case.keys for case in cases) > 1024
    assert any(case.queries > case.keys for case in cases)
    assert any(case.width not in (case.head_dim, 0) for case in cases)


@pytest.mark.parametrize("place", ["A", "B"])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_faulty_side_is_found_and_blamed(fault, place, faulty, plain) -> None:
    sides = (faulty(fault), plain) if place == "A" else (plain, faulty(fault))
    report = crosscheck(
        *sides, [*requests("structures", ("float32",), 1), *fuzz(30, 1, ("float32",))], shrink=False, keep_going=False
    )
    assert report.blamed == {place}
    assert not report.agree


def test_both_may_be_wrong(faulty) -> None:
    report = crosscheck(faulty("gqa_head0"), faulty("gqa_head0"), requests("grouped", ("float32",), 0), shrink=False)
    assert report.blamed == {"A", "B"}
    assert {finding.blamed for finding in report.findings} == {"A and B"}


def test_the_smallest_request_shows_the_same_fault(faulty, plain, tmp_path) -> None:
    case = replace(next(iter(requests("b2h4k2t20s70d16:causal,softcap=3,alibi", ("float32",), 0))), lse=False)
    report = crosscheck(plain, faulty("tail_tile_dropped"), [case], repro=tmp_path)
    (finding,) = report.findings
    assert finding.smallest.startswith("b2h4k2t20s70d16:causal,softcap=3,alibi-b1h1k1t")
    assert "t1s" in finding.smallest
    assert "weights are wrong" in finding.weights
    assert "first at sequence 0, head 0, query" in finding.explanation
    assert finding.picture is not None
    assert sum(finding.picture.ulps) == 2 * 4 * 20 * 16


@pytest.mark.parametrize(
    ("fault", "spec", "what"),
    [
        ("scale_none", "b1h2t5s9d8:causal,sinks", "output"),
        ("lse_base_2", "b1h2t5s9d8:causal,sinks", "lse"),
        ("one_head_loses_the_tail", "repeated-head", "output"),
    ],
)
def test_a_program_shows_the_fault_and_its_end(fault, spec, what, tmp_path) -> None:
    (tmp_path / "side.py").write_text(
        "from attnkit_conformance.selftest.mutants import BY_NAME\n"
        "from attnkit_conformance.selftest.plain import Plain\n"
        f"broken = lambda: BY_NAME[{fault!r}].subject().harness.backend\n"
    )
    target = "side:broken"
    code = (
        "from attnkit_conformance.crosscheck import crosscheck\n"
        "from attnkit_conformance.crosscheck.requests import requests\n"
        "from pathlib import Path\n"
        f"asked = requests({spec!r}, ('bfloat16',), 0)\n"
        f"r = crosscheck('numpy', {target!r}, asked, repro=Path('out'), keep_going=False, shrink=False)\n"
        "print(r.findings[0].folder)\n"
    )
    made = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    program = tmp_path / made.stdout.strip() / "repro.py"
    command = [sys.executable, str(program)]
    env = {"PYTHONPATH": str(tmp_path)}
    shown = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert (shown.returncode, shown.stderr) == (1, "")
    assert re.match(rf"{what}: \d+ of \d+ elements beyond tau\n", shown.stdout)
    side = tmp_path / "side.py"
    side.write_text(side.read_text().replace(f"BY_NAME[{fault!r}].subject().harness.backend", "Plain()"))
    gone = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert (gone.returncode, gone.stderr) == (0, "")


def test_refusals_are_counted_and_not_compared() -> None:
    class Modest(Plain):
        name = "modest"
        declared = replace(EVERYTHING, window=False, lse=False)

    report = crosscheck(Modest(), Plain(), requests("windows;plain", ("float32",), 0))
    assert report.agree
    assert report.skipped == {"A refuses window": 18}
    assert report.compared == report.asked - 18
    assert {line.part for line in report.statistics} == {"output"}


def test_nothing_compared_is_no_agreement() -> None:
    class Nothing(Plain):
        name = "nothing"
        declared = replace(EVERYTHING, window=False)

    report = crosscheck(Nothing(), Plain(), requests("windows", ("float32",), 0))
    assert not report.agree
    assert report.findings == []


@pytest.mark.parametrize(
    ("answer", "complaint"),
    [
        (lambda case: (case.truth.output[:, :, :-1], None), "output must be"),
        (lambda case: (case.truth.output, None), "output must be float32, got float64"),
        (lambda case: (np.full(case.output_shape, np.nan, np.float32), None), "inf tau"),
    ],
)
def test_what_is_no_answer_is_a_complaint(answer, complaint) -> None:
    from attnkit_conformance.subject import Answer

    case, side = Case(label="x"), Live(Plain())
    judgement = judge(
        case, {"A": Answer(*answer(case)), "B": side.answer(case)}, {n: side.numerics("float32") for n in ("A", "B")}
    )
    assert list(judgement.complaints) == ["A"]
    assert complaint in judgement.complaints["A"]


def test_errors_crashes_and_hangs_are_findings(tmp_path) -> None:
    class Raising(Plain):
        name = "raising"

        def attention(self, *_):
            raise RuntimeError("out of order")

    report = crosscheck(Raising(), Plain(), requests("b1t1s1", ("float32",), 0), shrink=False)
    assert report.findings[0].complaints == {"A": "error: RuntimeError: out of order"}
    (tmp_path / "ends.py").write_text(
        "import os, time\nfrom attnkit_conformance.selftest.plain import Plain\n"
        "class Dies(Plain):\n    name = 'dies'\n    def attention(self, *_): os._exit(3)\n"
        "class Hangs(Plain):\n    name = 'hangs'\n    def attention(self, *_): time.sleep(60)\n"
    )
    sys.path.insert(0, str(tmp_path))
    try:
        for kind, how in (("Dies", "died"), ("Hangs", "hung")):
            with Live(f"ends:{kind}", isolated=True, seconds=1) as side:
                report = crosscheck(side, Plain(), requests("b1t1s1;b1t2s2", ("float32",), 0), shrink=False)
                assert len(report.findings) == 2  # it was started again
                assert report.findings[0].complaints["A"].startswith(f"{how}: ")
    finally:
        sys.path.remove(str(tmp_path))


def test_declared_numerics_can_be_replaced(plain) -> None:

    strict = Live(Plain(), numerics={"float16": "fp32P-16"})
    assert strict.numerics("float16").name == "fp32P-16"
    assert strict.numerics("float32") == plain.numerics("float32")


def test_drift_is_given_by_length(plain) -> None:
    report = crosscheck(plain, "numpy", [], drift=drift(("float32", "float16"), 0, (16, 300)))
    assert [(point.dtype, point.keys) for point in report.drift] == [
        ("float32", 16),
        ("float32", 300),
        ("float16", 16),
        ("float16", 300),
    ]
    assert all(0 < point.rms["A"] <= point.error["A"] <= 1 for point in report.drift)


def test_a_report_is_read_back(faulty, plain) -> None:
    report = crosscheck(faulty("scale_none"), plain, requests("causal", ("float32",), 0), shrink=False)
    assert CrossReport.model_validate_json(report.model_dump_json()) == report


def test_refused_and_failed_are_values() -> None:
    assert Refused(("window",)) == Refused(("window",))
    assert Failed("died", "x") != Failed("hung", "x")
