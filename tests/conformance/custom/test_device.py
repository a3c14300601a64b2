"""The device of the documentation, in integers: it declares what it does, and is held to that wherever it is asked."""

import json
import shutil
import sys
from fractions import Fraction
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import mpmath
import numpy as np
import pytest
from typer.testing import CliRunner

import attnkit as ak
from attnkit_conformance.cases import Case
from attnkit_conformance.cli.app import app as conform
from attnkit_conformance.conformance import run_conformance
from attnkit_conformance.crosscheck import crosscheck
from attnkit_conformance.crosscheck.sides import Live
from attnkit_conformance.custom import CustomNumerics
from attnkit_conformance.packages import Package
from attnkit_conformance.packages.files import write_array
from attnkit_conformance.reports.verify import problems
from attnkit_conformance.vectors import export, verify
from attnkit_conformance.verdict import is_conformant

from .conftest import EXAMPLE
from .simulating import Device

CASES = [
    Case(label=f"c{n}", queries=5, keys=40, head_dim=16, seed=n, options={"mask": ak.Mask.causal()}) for n in range(3)
]
OWN = CustomNumerics.load(EXAMPLE / "numerics.json")


@pytest.fixture(scope="module")
def harness():
    spec = spec_from_file_location("fixed_point_harness", EXAMPLE / "harness.py")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def wrong(tmp_path) -> Path:
    """A folder with the device, to be broken."""
    return Path(shutil.copytree(EXAMPLE, tmp_path / "device"))


def target(folder: Path = EXAMPLE) -> str:
    return f"cmd:{sys.executable} {folder / 'harness.py'}"


def test_the_table_is_as_near_as_declared(harness) -> None:
    """Every number that the exponential may be asked for."""
    below = np.arange(2**18 + 1)
    found, exact = harness.exponential(below) / 2**16, np.exp(-below / 2**12)
    assert (np.abs(found - exact) <= OWN.stages.exp.absolute + 2.0**-16).all()
    assert (exact - found).max() > 0.9 * 2.0**-16


def test_the_scale_is_as_near_as_declared(harness) -> None:
    dots = np.array([2**36 + 12345, -(2**37) + 1])
    for scale in (0.125, 0.17677669529663687, 1.0, 0.0123, -0.4, 3.0):
        exact = [Fraction(int(dot)) * Fraction(scale) / 2**12 for dot in dots]
        inside = [abs(number) < 2**18 for number in exact]
        for got, number, held in zip(harness.scaled(dots, scale).tolist(), exact, inside, strict=True):
            assert not held or abs(got - number) <= Fraction(OWN.stages.score.relative) * abs(number) + Fraction(1, 2)
    assert mpmath.mpf(harness.LOG2E) / 2**30 - mpmath.log(mpmath.e, 2) < mpmath.mpf(2) ** -31


def test_it_gets_the_verdict_of_its_class() -> None:
    report = run_conformance(target(), level=0)
    verdict = report.footer.verdict
    assert verdict.startswith(f"{OWN.verdict} attnkit-contract 1.0 / suite ")
    assert f"numerics float32:{OWN.verdict}" in verdict
    assert is_conformant(verdict)
    assert not verdict.startswith("CONFORMANT")
    assert not problems(report)


def test_core_items_are_answered_or_outside() -> None:
    report = run_conformance(target(), level=1, only=["ATTN-NUM-00*", "ATTN-MASK-00*"], isolated=False)
    assert {result.status for result in report.results} == {"PASS"}
    outcomes = [result.outcome for result in report.results]
    assert outcomes.count("answered") > 30
    assert all(told == "answered" or told.startswith("outside its own numerics: ") for told in outcomes)


BREAKS = {
    "a mask off by one": ("<= np.arange(queries)", "< np.arange(queries)"),
    "exponentials of 8 bits": ("np.minimum(whole + 4, 62), 0)", "np.minimum(whole + 4, 62), 0) >> 8 << 8"),
    "a reciprocal of 8 bits": ("// np.maximum(total, 1)", "// np.maximum(total, 1) >> 10 << 10"),
    "a table of 16": ("(power >> 16) & 255", "(power >> 16) & 240"),
    "outputs cut to 8 bits": ("output = np.clip(output,", "output = np.clip(output >> 4 << 4,"),
    "inputs cut to 7 bits": ("INPUT, 5) for name", "INPUT, 5) >> 5 << 5 for name"),
    "a scale of another size": ("scaled(dots, float", "scaled(dots, 1.01 * float"),
}


@pytest.mark.parametrize("name", BREAKS)
def test_faults_are_found_and_blamed(wrong, name) -> None:
    old, new = BREAKS[name]
    program = wrong / "harness.py"
    text = program.read_text()
    assert old in text
    program.write_text(text.replace(old, new))
    with Live(target(wrong)) as side, Live("numpy") as numpy:
        found = crosscheck(numpy, side, CASES, shrink=False)
    assert {finding.blamed for finding in found.findings} == {"B"}


def test_the_device_itself_agrees_with_numpy() -> None:
    with Live(target()) as side, Live("numpy") as numpy:
        found = crosscheck(numpy, side, CASES)
    assert found.agree
    assert found.compared == 3


def test_numpy_is_held_to_numerics_that_are_told(tmp_path) -> None:
    """What is exact lies within any bound; the verdict still says by which it was judged."""
    report = run_conformance("numpy", level=0, numerics=OWN.declared)
    assert report.footer.verdict.startswith(f"{OWN.verdict} ")
    run = CliRunner().invoke(conform, ["run", "numpy", "--level", "0", "--numerics", str(EXAMPLE / "numerics.json")])
    assert run.exit_code == 0
    assert OWN.verdict in run.stdout
    (tmp_path / "d.json").write_text("{}")
    run = CliRunner().invoke(conform, ["run", "numpy", "--numerics", str(tmp_path / "d.json")])
    assert run.exit_code == 2
    assert "name" in run.output


def test_vectors_of_its_numerics(tmp_path) -> None:
    export(tmp_path / "v", numerics=OWN, only=("causal", "grouped", "plain"))
    manifest = json.loads((tmp_path / "v" / "manifest.json").read_text())
    assert manifest["numerics"] == OWN.declared
    package = Package.open(tmp_path / "v")
    for folder, worse in (("right", 0.0), ("wrong", 0.01)):
        for name in package.names:
            output = Device(OWN)(package.read(name).case) + np.float32(worse)
            write_array(tmp_path / folder / name / "out" / "output.bin", output)
    assert verify(tmp_path / "v", tmp_path / "right").agrees
    assert not verify(tmp_path / "v", tmp_path / "wrong").agrees


def test_the_page_shows_the_declaration() -> None:
    page = (EXAMPLE.parents[1] / "custom-numerics.md").read_text()
    assert json.loads(page.split("```json\n")[1].split("```")[0]) == {
        **json.loads((EXAMPLE / "numerics.json").read_text()),
        "name": "my accelerator",
    }
    assert OWN.verdict in page
