from __future__ import annotations

import json
import shutil
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from typer.testing import CliRunner

from attnkit_conformance.packages import Package, PackageError
from attnkit_conformance.vectors import verify
from attnkit_conformance.vectors.cli import app

NAME = "grouped-float32"  # [2, 4, 5, 16]: every axis has a length of its own


def output(folder: Path, name: str = NAME, role: str = "output") -> Path:
    return folder / name / "out" / f"{role}.bin"


def message(vectors: Path, outputs: Path) -> str:
    wrong = [finding for finding in verify(vectors, outputs).findings if finding.status == "wrong"]
    assert len(wrong) == 1
    return wrong[0].message


def test_the_checker_is_short() -> None:
    assert len((Path(__file__).parents[3] / "tools" / "attnkit_check.c").read_text().splitlines()) < 100


def test_the_checker_knows_wrong_use(vectors: Path, tmp_path: Path, checker) -> None:
    assert checker(tmp_path / "nowhere", vectors)[0] == 2
    (vectors / NAME / "truth" / "output_tau.bin").unlink()
    assert checker(vectors, tmp_path)[0] == 2


def test_right_answers_verify(vectors: Path, outputs: Path, checker) -> None:
    found = verify(vectors, outputs)
    assert found.agrees
    assert 0 < max(finding.ratio for finding in found.findings) <= 1
    code, said = checker(vectors, outputs)
    assert code == 0
    assert f"VERIFIED: {len(found.findings)} right, 0 wrong, 0 missing, 0 refused" in said


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize("fault", ["far", "nan", "inf"])
def test_one_wrong_element_is_found_by_both(vectors: Path, outputs: Path, checker, dtype: str, fault: str) -> None:
    entry = Package.open(vectors).read(f"causal-{dtype}")
    place = output(outputs, entry.name)
    array = np.frombuffer(place.read_bytes(), np.dtype(dtype)).copy()
    tau = entry.truth["output_tau"].reshape(-1)[77]
    array[77] = {"far": float(array[77]) + 3 * tau, "nan": np.nan, "inf": np.inf}[fault]
    place.write_bytes(array.tobytes())

    assert not verify(vectors, outputs).agrees
    assert message(vectors, outputs)
    code, said = checker(vectors, outputs)
    assert code == 1
    assert f"WRONG    {entry.name} output: element 77" in said


def test_both_give_the_same_verdict_at_the_bound(vectors: Path, outputs: Path, checker) -> None:
    entry = Package.open(vectors).read("causal-float64")
    place, (truth, tau) = output(outputs, entry.name), (entry.truth["output"], entry.truth["output_tau"])
    for factor, right in ((0.0, True), (0.9, True), (1.1, False)):
        place.write_bytes((truth + tau * factor).tobytes())
        assert verify(vectors, outputs).agrees == right
        assert checker(vectors, outputs)[0] == (0 if right else 1)


def test_lse_is_held_too(vectors: Path, outputs: Path, checker) -> None:
    place = output(outputs, "empty-rows-float16", "lse")
    lse = np.frombuffer(place.read_bytes(), np.float32).copy()
    assert np.isneginf(lse).any()
    lse[np.isneginf(lse)] = -1e30
    place.write_bytes(lse.tobytes())
    assert "-inf" in message(vectors, outputs)
    assert checker(vectors, outputs)[0] == 1


def test_big_endian_is_named(vectors: Path, outputs: Path) -> None:
    place = output(outputs)
    place.write_bytes(np.frombuffer(place.read_bytes(), "<f4").byteswap().tobytes())
    assert "the byte order is big-endian instead of little-endian" in message(vectors, outputs)


@pytest.mark.parametrize("layout", ["BTHE", "BHET", "HBTE", "TBHE", "EBHT"])
def test_a_transposed_layout_is_named(vectors: Path, outputs: Path, layout: str) -> None:
    place = output(outputs)
    array = np.frombuffer(place.read_bytes(), np.float32).reshape(2, 4, 5, 16)
    place.write_bytes(np.ascontiguousarray(array.transpose(["BHTE".index(axis) for axis in layout])).tobytes())
    assert f"the layout is transposed: {layout} instead of BHTE" in message(vectors, outputs)


def test_both_at_once_are_named(vectors: Path, outputs: Path) -> None:
    place = output(outputs)
    array = np.frombuffer(place.read_bytes(), np.float32).reshape(2, 4, 5, 16).transpose(0, 2, 1, 3)
    place.write_bytes(np.ascontiguousarray(array).byteswap().tobytes())
    said = message(vectors, outputs)
    assert "big-endian" in said
    assert "BTHE" in said


@pytest.mark.parametrize(
    ("given", "wanted"), [("bfloat16", "float16"), ("float16", "bfloat16"), ("float64", "float32")]
)
def test_another_element_type_is_named(vectors: Path, outputs: Path, given: str, wanted: str) -> None:
    name = f"window-{wanted}"
    truth = Package.open(vectors).read(name).truth["output"]
    if given == "bfloat16":  # whose 8 bits lie within the bound of float16 only where they are exact
        truth = truth * 0 + truth.astype(ml_dtypes.bfloat16).astype(np.float64)
        output(outputs, name).write_bytes(truth.astype(ml_dtypes.bfloat16).tobytes())
        assert "the elements are" not in message(vectors, outputs)
        return
    output(outputs, name).write_bytes(truth.astype(given).tobytes())
    assert f"the elements are {given} instead of {wanted}" in message(vectors, outputs)


def test_noise_is_not_given_a_name(vectors: Path, outputs: Path) -> None:
    place = output(outputs)
    place.write_bytes(np.random.default_rng(0).standard_normal(640).astype(np.float32).tobytes())
    assert "read so" not in message(vectors, outputs)


def test_missing_cut_and_refused_answers(vectors: Path, outputs: Path, checker) -> None:
    output(outputs).unlink()
    assert [f.case for f in verify(vectors, outputs).findings if f.status == "missing"] == [NAME]
    code, said = checker(vectors, outputs)
    assert (code, "1 missing" in said) == (1, True)

    output(outputs).write_bytes(b"\0" * 7)
    assert "must be 2560 bytes (float32 [2, 4, 5, 16]), got 7" in message(vectors, outputs)
    assert checker(vectors, outputs)[0] == 1

    (output(outputs).parent / "refused.txt").write_text("gqa\n")
    found = verify(vectors, outputs)
    assert found.agrees
    assert sum(f.status == "refused" for f in found.findings) == 1
    code, said = checker(vectors, outputs)
    assert (code, "1 refused" in said) == (0, True)


def test_a_refusal_counts_for_each_array_of_the_case(vectors: Path, outputs: Path, checker) -> None:
    (output(outputs, "plain-lse-float32").parent / "refused.txt").write_text("lse\n")
    refused = [finding.role for finding in verify(vectors, outputs).findings if finding.status == "refused"]
    assert refused == ["output", "lse"]
    assert "2 refused" in checker(vectors, outputs)[1]


def test_nothing_answered_is_not_verified(vectors: Path, tmp_path: Path, checker) -> None:
    (tmp_path / "empty").mkdir()
    assert not verify(vectors, tmp_path / "empty").agrees
    assert checker(vectors, tmp_path / "empty")[0] == 1


def test_a_flipped_byte_in_the_vectors_is_noticed_first(vectors: Path, outputs: Path) -> None:
    place = vectors / NAME / "truth" / "output_tau.bin"
    content = bytearray(place.read_bytes())
    content[100] ^= 1
    place.write_bytes(content)
    found = verify(vectors, outputs)
    assert not found.agrees
    assert not found.findings
    assert any(f"{NAME}/truth/output_tau.bin" in line for line in found.damage)


def test_command_line(vectors: Path, outputs: Path, tmp_path: Path) -> None:
    run = CliRunner()
    asked = ["verify", str(vectors), "--outputs", str(outputs)]
    done = run.invoke(app, [*asked, "--report", str(tmp_path / "r.html")])
    assert done.exit_code == 0
    assert "VERIFIED" in done.output
    assert "Verified" in (tmp_path / "r.html").read_text()

    output(outputs).unlink()
    done = run.invoke(app, [*asked, "--report", str(tmp_path / "r.json")])
    assert done.exit_code == 1
    report = json.loads((tmp_path / "r.json").read_text())
    assert report["counts"]["missing"] == 1
    assert not report["agrees"]

    assert run.invoke(app, [*asked, "--report", str(tmp_path / "r.pdf")]).exit_code == 2
    assert run.invoke(app, ["verify", str(outputs), "--outputs", str(outputs)]).exit_code == 2
    assert run.invoke(app, ["export", str(vectors)]).exit_code == 2
    assert run.invoke(app, ["export", str(tmp_path / "x"), "--numerics", "fa-16"]).exit_code == 2


def test_answers_that_changed_are_refused(made: Path, outputs: Path, vectors: Path) -> None:
    shutil.copy(made / "manifest.json", outputs / "manifest.json")
    with pytest.raises(PackageError, match="is not as it was written"):
        verify(vectors, outputs)
