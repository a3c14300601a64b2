from __future__ import annotations

import hashlib
import json
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from attnkit.numerics import numerics_for
from attnkit_conformance.packages import Package, problems
from attnkit_conformance.selftest.mutants import MUTANTS
from attnkit_conformance.vectors import export
from attnkit_conformance.vectors.catalogue import CORE, filled
from attnkit_conformance.vectors.exactly import ExactTruth

NUMERICS = numerics_for("strict-fp32", "float32")
BY_LABEL = {case.label: filled(case, "float32") for case in CORE}


@cache
def exact_truth(label: str) -> dict[str, np.ndarray]:
    return ExactTruth(BY_LABEL[label]).expected(NUMERICS, lse=True)


@pytest.mark.parametrize("case", CORE, ids=lambda case: case.label)
def test_the_truth_is_that_of_the_oracle(case) -> None:
    """Two ways to the same number; the bound is that of the core, rounded up."""
    held = BY_LABEL[case.label]
    exact, bound = exact_truth(case.label), held.tolerance(NUMERICS)
    for role, near, tau in (("output", held.truth.output, bound.output), ("lse", held.truth.lse, bound.lse)):
        assert np.array_equal(np.isfinite(exact[role]), np.isfinite(near))
        finite = np.isfinite(near)
        # The oracle's own error grows with its scores, which float64 holds to 2**-53 of their size.
        slack = (1 + np.abs(held.truth.lse).max(where=np.isfinite(held.truth.lse), initial=0)) * 2**-44
        assert (np.abs(exact[role][finite] - near[finite]) <= slack).all()
        assert (exact[f"{role}_tau"] >= tau * (1 - 1e-9)).all()
        assert (exact[f"{role}_tau"] <= tau * (1 + 1e-6)).all()


def sums(path: Path) -> str:
    return (path / "SHA256SUMS").read_text()


def arrays(path: Path) -> str:
    lines = [line for line in sums(path).splitlines() if line.endswith((".bin", "index.tsv", "case.tsv"))]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def test_export_is_the_same_again(made: Path, tmp_path: Path) -> None:
    only = Package.open(made).manifest.cases
    export(tmp_path / "again", cases="full", only=sorted({name.rpartition("-")[0] for name in only}))
    assert sums(tmp_path / "again") == sums(made)


def test_arrays_never_change(made: Path) -> None:
    """Whatever changes these numbers makes other vectors, which is told in the changelog."""
    assert arrays(made) == "026a7d972e35c829625084d27974878fa4663174df8abac97bb881484d2a89e6"


def test_core_is_small_whole_and_right(tmp_path: Path, answer, checker) -> None:
    from attnkit_conformance.vectors import verify

    export(tmp_path / "core", dtypes=("float16",))
    size = sum(place.stat().st_size for place in (tmp_path / "core").rglob("*") if place.is_file())
    assert size * 5 < 20e6  # float16 is a fifth of all types together, at least
    answers = answer(tmp_path / "core", tmp_path / "answers")
    assert verify(tmp_path / "core", answers).agrees
    assert checker(tmp_path / "core", answers)[0] == 0


@pytest.mark.parametrize(
    "mutant", [mutant for mutant in MUTANTS[:100:7] if not mutant.name.endswith("large_tiles")], ids=lambda m: m.name
)
def test_wrong_implementations_do_not_verify(mutant) -> None:
    """Whoever is wrong in any way is further off than the bound in some case of the core."""
    subject = mutant.subject()
    for case in BY_LABEL.values():
        if case.undeclared(subject.capabilities):
            continue
        exact, answer = exact_truth(case.label), subject.attention(case.arrays, case.options, lse=case.lse)
        for role in ("output", "lse") if case.lse else ("output",):
            if off(getattr(answer, role), exact[role], exact[f"{role}_tau"]):
                return
    pytest.fail("every answer is within its bound")


def off(given, truth, tau) -> bool:
    with np.errstate(all="ignore"):
        wide = np.asarray(given, np.float64)
        return not ((wide == truth) | (np.abs(wide - truth) <= tau)).all()


def test_a_package_says_what_it_is(made: Path) -> None:
    manifest = Package.open(made).manifest
    assert manifest.kind == "vectors"
    assert manifest.contract
    assert manifest.suite
    assert manifest.numerics == {
        "float32": "strict-fp32",
        "float16": "fa-16",
        "bfloat16": "fa-16",
        "float64": "float64",
    }
    assert "CC0" in (made / "LICENSE").read_text()
    assert problems(made) == []


def test_other_formats_hold_the_same(tmp_path: Path) -> None:
    import safetensors.numpy

    path = tmp_path / "v"
    export(path, dtypes=("bfloat16", "float32"), only=("causal",), also=("hex", "npz", "safetensors"))
    folder = path / "causal-float32"
    query = Package.open(path).read("causal-float32").case.arrays[0]

    words = [int(line, 16) for line in (folder / "hex" / "in.query.hex").read_text().split()]
    assert np.array_equal(np.array(words, np.uint32).view(np.float32), query.reshape(-1))
    assert np.array_equal(np.load(folder / "arrays.npz")["in.query"], query)
    held = safetensors.numpy.load_file(folder / "arrays.safetensors")
    assert np.array_equal(held["in.query"], query)
    assert held["truth.output_tau"].dtype == np.float64
    short = [int(line, 16) for line in (path / "causal-bfloat16" / "hex" / "in.query.hex").read_text().split()]
    assert [word << 16 for word in short] == words
    assert problems(path) == []


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"cases": "most"}, "cases must be one of core, hardware, full"),
        ({"dtypes": ("int8",)}, "dtype must be one of"),
        ({"numerics": "exact"}, "numerics must be one of"),
        ({"also": ("png",)}, "also must be among"),
        ({"only": ("nothing",)}, "no case is called nothing"),
    ],
)
def test_what_there_is_not_is_refused(tmp_path: Path, asked, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        export(tmp_path / "v", **asked)
    assert not (tmp_path / "v").exists()


def test_the_call_is_told_as_data(made: Path) -> None:
    told = json.loads((made / "window-float16" / "case.json").read_text())
    assert [term["kind"] for term in told["mask"]] == ["window"]
    assert (made / "window-float16" / "case.tsv").read_text().count("\n") > 10
