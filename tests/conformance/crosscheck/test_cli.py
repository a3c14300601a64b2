"""``attnkit crosscheck``: exit codes, the table, JSON and the page."""

from __future__ import annotations

import json
import re

import pytest
from typer.testing import CliRunner

from attnkit_conformance.crosscheck.cli import app

RUNNER = CliRunner()


def run(*arguments: str, code: int = 0) -> str:
    done = RUNNER.invoke(app, arguments)
    assert done.exit_code == code, done.output
    return done.output


@pytest.fixture
def broken(tmp_path, monkeypatch) -> str:
    (tmp_path / "ours.py").write_text(
        "from attnkit_conformance.selftest.mutants import BY_NAME\n"
        "def make():\n    return BY_NAME['tail_tile_dropped'].subject().harness.backend\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return "ours:make"


def test_agreement_is_exit_code_0() -> None:
    text = run("numpy", "torch", "--fuzz", "12", "--seed", "4")
    assert text.startswith("AGREE: A = numpy, B = torch\n")
    assert "12 of 12 requests compared" in text
    assert re.search(r"output +float64", text)


def test_a_fault_is_exit_code_1(broken, tmp_path) -> None:
    page, folder = tmp_path / "out" / "page.html", tmp_path / "programs"
    text = run(
        "numpy",
        broken,
        "--cases",
        "b1h2t3s33d8",
        "--dtype",
        "float32",
        "--report",
        str(page),
        "--repro",
        str(folder),
        code=1,
    )
    assert text.startswith("DIFFER: A = numpy, B = ours:make\n")
    assert "wrong: ours:make on b1h2t3s33d8-b1h2k2t3s33d8-float32" in text
    assert "smallest: b1h2t3s33d8-b1h1k1t1s17d1-float32" in text
    html = page.read_text()
    assert "They differ" in html
    assert html.count("<svg") == 1
    assert "http://" not in re.sub(r'xmlns[^"]*"[^"]*"|"http://www.w3.org[^"]*"|<!DOCTYPE[^>]*>', "", html)
    assert len(list(folder.glob("*/repro.py"))) == 1


def test_a_broken_law_is_exit_code_1(tmp_path, monkeypatch) -> None:
    (tmp_path / "lawless.py").write_text(
        "from attnkit_conformance.selftest.mutants import BY_NAME\n"
        "def make():\n    return BY_NAME['columns_share_a_scale'].subject().harness.backend\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    path, begins = tmp_path / "report.json", "law: output by the law columns-changed: "
    asked = ("--cases", "laws", "--dtype", "float32", "--report", str(path))
    text = run("numpy", "lawless:make", *asked, code=1)
    assert text.startswith("DIFFER")
    assert f"    lawless:make: {begins}" in text
    (finding,) = json.loads(path.read_text())["findings"]
    assert finding["blamed"] == "B"
    assert finding["complaints"]["B"].startswith(begins)


def test_the_page_escapes_names(broken, tmp_path) -> None:
    from attnkit_conformance.crosscheck import crosscheck
    from attnkit_conformance.crosscheck.page import page
    from attnkit_conformance.crosscheck.requests import requests

    report = crosscheck("numpy", "torch", requests("plain", ("float32",), 0), what="<script>alert(1)</script>")
    assert "<script>" not in page(report)


def test_json_is_the_report(tmp_path) -> None:
    told = json.loads(run("numpy", "torch", "--cases", "causal", "--dtype", "float16", "--drift", "--json"))
    assert told["format"] == "attnkit-crosscheck/1"
    assert told["findings"] == []
    assert {point["dtype"] for point in told["drift"]} == {"float16"}
    path = tmp_path / "report.json"
    run("numpy", "torch", "--cases", "plain", "--report", str(path))
    assert json.loads(path.read_text())["compared"] == 16


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("numpy", "nowhere"), "no backend named 'nowhere'"),
        (("numpy", "torch", "--cases", "everything"), "no cases 'everything'; there are plain, causal"),
        (("numpy", "torch", "--cases", "b1t2:spin=3"), "no option 'spin'; there are causal"),
        (("numpy", "torch", "--cases", "h3k2t2"), "heads must be a multiple of kv_heads"),
        (("numpy", "torch", "--cases", "b1t2:window=x"), "window=x"),
        (("numpy", "torch", "--cases", "b1t2:draw=odd"), "no draw 'odd'"),
        (("numpy", "torch", "--dtype", "float8"), "--dtype must be of float32"),
        (("cuda-emulated", "torch", "--dtype", "float64"), "no element type among float64 is taken by both"),
    ],
)
def test_wrong_use_is_exit_code_2(arguments, words) -> None:
    assert words in run(*arguments, code=2)


def test_a_side_that_lacks_a_type_is_told() -> None:
    text = run("numpy", "cuda-emulated", "--cases", "b1h1t2s3d8", "--dtype", "float64,float32")
    assert "1 not compared: B refuses dtypes" in text


def test_isolated_sides_have_processes_of_their_own() -> None:
    assert run(
        "numpy", "numpy:tiled", "--cases", "plain;laws;repeated-head", "--dtype", "float32", "--isolated"
    ).startswith("AGREE")
