"""All of ``full``: with the oracle's truth, which is quick, and a sample of it with the truth that is exported."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from pathlib import Path

import numpy as np
import pytest

from attnkit_conformance.packages import Package
from attnkit_conformance.structures import STRUCTURES
from attnkit_conformance.vectors import export, verify
from attnkit_conformance.vectors.catalogue import CORE, HARDWARE, catalogue, filled

DTYPE = "float16"
BACKENDS = ("numpy", "torch")
PROBES = 11  # seven masks attended to, three selections, the chain
SAMPLE = [case.label for case in catalogue("full")[3::16]]


@pytest.fixture(scope="module")
def full(export_fast: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export_fast(tmp_path_factory.mktemp("vectors") / "full", cases="full", dtypes=(DTYPE,))


@pytest.fixture(scope="module")
def rows(full: Path) -> list[dict[str, str]]:
    head, *lines = [line.split("\t") for line in (full / "index.tsv").read_text().splitlines()]
    return [dict(zip(head, line, strict=True)) for line in lines]


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("vectors") / "sample"
    export(path, cases="full", only=SAMPLE)
    return path


@pytest.mark.parametrize("backend", BACKENDS)
def test_every_case_is_answered_right(full: Path, tmp_path: Path, answer, checker, backend: str) -> None:
    answers = answer(full, tmp_path / "answers", backend)
    found = verify(full, answers)
    assert found.agrees
    assert {finding.status for finding in found.findings} == {"right"}
    assert len({finding.case for finding in found.findings}) == len(CORE) + len(HARDWARE) + len(STRUCTURES) + PROBES
    assert checker(full, answers)[0] == 0


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_sample_is_answered_right_in_every_type(sample: Path, tmp_path: Path, answer, backend: str) -> None:
    found = verify(sample, answer(sample, tmp_path / "answers", backend))
    assert found.agrees
    assert {finding.status for finding in found.findings} == {"right"}
    assert len({finding.case for finding in found.findings}) == 4 * len(SAMPLE)
    assert sum(label.startswith("suite-") for label in SAMPLE) > 5


def test_the_index_lists_every_array_once(full: Path, rows) -> None:
    files = {place.relative_to(full).as_posix() for place in full.rglob("*.bin")}
    assert sorted(row["file"] for row in rows) == sorted(files)
    assert {row["case"] for row in rows} == set(Package.open(full).names)


def test_sizes_of_the_index_are_those_of_the_files(full: Path, rows) -> None:
    for row in rows:
        assert int(row["count"]) == prod(map(int, row["shape"].split("x"))), row
        assert (full / row["file"]).stat().st_size == int(row["count"]) * np.dtype(row["dtype"]).itemsize, row


def test_shapes_of_the_index_are_those_of_the_call(full: Path, rows) -> None:
    package = Package.open(full)
    shapes = {(row["case"], row["role"]): row["shape"] for row in rows}
    for name in package.names:
        told = package.read(name).told
        rows_of_queries = told.batch, told.heads, told.queries
        wanted = {f"in.{role}": array.shape for role, array in told.arrays.items()}
        for part in ("expected", "tau"):
            wanted[f"{part}.output"] = (*rows_of_queries, told.value_dim)
            wanted |= {f"{part}.lse": rows_of_queries} if told.lse else {}
        found = {role: shape for (case, role), shape in shapes.items() if case == name}
        assert found == {role: "x".join(map(str, shape)) or "1" for role, shape in wanted.items()}, name


def test_who_sees_whom_is_as_in_the_catalogue(full: Path) -> None:
    package = Package.open(full)
    for case in catalogue("full"):
        assert np.array_equal(package.read(f"{case.label}-{DTYPE}").case.shown, filled(case, DTYPE).shown), case.label


def test_structures_are_those_of_the_suite() -> None:
    """What is drawn at random is drawn again; all else is as it was, ids that differ in high digits too."""
    for ours, theirs in zip(catalogue("full")[-len(STRUCTURES) :], STRUCTURES, strict=True):
        shown = filled(ours, DTYPE).shown
        assert shown.shape == theirs.shown.shape
        drawn = any(word in theirs.label for word in ("dense", "documents", "bias-inf"))
        if not drawn or theirs.label == "documents-far":
            assert np.array_equal(shown, theirs.shown), theirs.label
