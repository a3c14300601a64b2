from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from attnkit.numerics import Numerics
from attnkit_conformance.cases import Case
from attnkit_conformance.harness.targets import open_target
from attnkit_conformance.packages import Package
from attnkit_conformance.packages.files import write_array
from attnkit_conformance.subject import Subject
from attnkit_conformance.vectors import export, exporting

LABELS = ("causal", "plain-lse", "grouped", "huge", "empty-rows", "value-dim", "window", "poison", "tile-64")


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A few vectors in every element type."""
    path = tmp_path_factory.mktemp("vectors") / "some"
    export(path, cases="full", only=LABELS[:-1])
    return path


@pytest.fixture
def vectors(made: Path, tmp_path: Path) -> Path:
    """The same, byte for byte, to be changed at will."""
    return Path(shutil.copytree(made, tmp_path / "vectors"))


@pytest.fixture(scope="session")
def answer() -> Callable[..., Path]:
    def answered(vectors: Path, folder: Path, backend: str = "numpy") -> Path:
        subject, package = Subject(open_target(backend)), Package.open(vectors)
        for name in package.names:
            case = package.read(name).case
            given = subject.attention(case.arrays, case.options, lse=True)
            write_array(folder / name / "out" / "output.bin", given.output)
            assert given.lse is not None
            write_array(folder / name / "out" / "lse.bin", given.lse)
        return folder

    return answered


@pytest.fixture(scope="session")
def right(made: Path, answer: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Right answers to the few."""
    return answer(made, tmp_path_factory.mktemp("answers") / "right")


@pytest.fixture
def outputs(right: Path, tmp_path: Path) -> Path:
    """The same, to be changed at will."""
    return Path(shutil.copytree(right, tmp_path / "outputs"))


class OracleTruth:
    """In the place of ``ExactTruth``: the oracle's float64, in a tenth of the time."""

    def __init__(self, case: Case) -> None:
        self._case = case

    def expected(self, numerics: Numerics, *, lse: bool) -> dict[str, np.ndarray]:
        truth, bound = self._case.truth, self._case.tolerance(numerics)
        wanted = ("output", "lse") if lse else ("output",)
        return {role: getattr(truth, role) for role in wanted} | {
            f"{role}_tau": getattr(bound, role) for role in wanted
        }


@pytest.fixture(scope="session")
def export_fast() -> Callable[..., Path]:
    """Export as it is, but for the truth, which is the oracle's."""

    def exported(path: Path, **options) -> Path:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(exporting, "ExactTruth", OracleTruth)
            export(path, **options)
        return path

    return exported


@pytest.fixture(scope="session")
def checker(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path, Path], tuple[int, str]]:
    """The checker in C, built without a warning."""
    source = Path(__file__).parents[3] / "tools" / "attnkit_check.c"
    program = tmp_path_factory.mktemp("checker") / "attnkit_check"
    flags = ("-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic", "-O1")
    subprocess.run(["cc", *flags, str(source), "-o", str(program), "-lm"], check=True)

    def checked(vectors: Path, outputs: Path) -> tuple[int, str]:
        done = subprocess.run([program, vectors, outputs], capture_output=True, text=True, check=False)
        return done.returncode, done.stdout + done.stderr

    return checked
