"""Vectors as ONNX models: ONNX Runtime gives what they say, but where the operator defines something else."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper
from typer.testing import CliRunner

from attnkit_conformance.packages import PackageError
from attnkit_conformance.vectors import export
from attnkit_conformance.vectors.cli import app
from attnkit_conformance.vectors.onnx_export import TOLD, export_onnx


@pytest.fixture(scope="module")
def exported(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("onnx")
    export(folder / "vectors", cases="core", dtypes=["float32"])
    export_onnx(folder / "vectors", folder / "models")
    return folder


def run(case: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Give what ONNX Runtime computes, what is expected, and the bound."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(case / "model.onnx"), options, providers=["CPUExecutionProvider"])
    data = case / "test_data_set_0"
    tensors = [onnx.load_tensor(str(path)) for path in sorted(data.glob("input_*.pb"))]
    given = {tensor.name: numpy_helper.to_array(tensor) for tensor in tensors}
    expected = numpy_helper.to_array(onnx.load_tensor(str(data / "output_0.pb")))
    tau = np.frombuffer((case / "output_tau.bin").read_bytes(), np.float64).reshape(expected.shape)
    return session.run(None, given)[0], expected, tau


def test_onnx_runtime_gives_what_the_vectors_say(exported) -> None:
    told = json.loads((exported / "models" / TOLD).read_text())
    models = sorted(path.parent for path in (exported / "models").glob("*/model.onnx"))
    assert len(models) > 30
    assert {path.name for path in models} == {name for name, lines in told.items() if "left out" not in "".join(lines)}
    for case in models:
        found, expected, tau = run(case)
        assert found.dtype == expected.dtype
        empty = (expected == 0).all(axis=-1)
        rows = ~empty if told[case.name] else np.ones_like(empty)
        wide = expected.astype(np.float64)  # rounded once more than what the bound is about
        bound = tau + np.spacing(np.abs(expected)).astype(np.float64)
        same = (np.abs(found - wide) <= bound) | (np.isnan(found) & np.isnan(wide)) | (found == wide)
        assert same[rows].all(), (case.name, np.argwhere(~same)[:3])


def test_every_kind_of_mask_is_among_them(exported) -> None:
    names = " ".join(path.parent.name for path in (exported / "models").glob("*/model.onnx"))
    for kind in ("causal", "window", "prefix", "chunked", "documents", "dense", "bias", "alibi"):
        assert kind in names, kind


def test_what_cannot_be_expressed_is_left_out_with_its_reason(exported) -> None:
    told = json.loads((exported / "models" / TOLD).read_text())
    reasons = {line for lines in told.values() for line in lines if line.startswith("left out")}
    assert "left out: the operator has no sinks" in reasons
    for name, lines in told.items():
        assert (exported / "models" / name).exists() != any(line.startswith("left out") for line in lines)


def test_the_command_line_exports(exported, tmp_path) -> None:
    done = CliRunner().invoke(app, ["onnx", str(exported / "vectors"), str(tmp_path / "models")])
    assert done.exit_code == 0, done.output
    assert "models, " in done.output
    assert CliRunner().invoke(app, ["onnx", str(exported / "vectors"), str(tmp_path / "models")]).exit_code == 2
    with pytest.raises(PackageError, match="no package"):
        export_onnx(tmp_path, tmp_path / "x")
