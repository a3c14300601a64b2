"""ONNX: golden vectors as models of the standard's operator Attention (opset 23), each with a test data set.

What the operator has no word for goes into its mask, as data: every kind of mask, lengths, positions, and ALiBi beside
a bias. What it defines in another way than the contract is told for each case; what it cannot express is left out, with
the reason.

Axes: ``B`` batch, ``H`` query heads, ``T`` query length, ``S`` key length.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import numpy as np

from attnkit_conformance.cases import Case
from attnkit_conformance.packages import Package, PackageError
from attnkit_conformance.packages.files import write_array
from attnkit_conformance.packages.folder import Entry

Array = np.ndarray[Any, Any]
OPSET: Final = 23
TOLD: Final = "conventions.json"
_EMPTY = "rows without keys are 0 here; the operator's softmax over minus infinity is not defined"
_NOT = {
    "sinks": "the operator has no sinks",
    "softcap": "the operator caps scores after the mask is added, the contract before",
    "size": "an axis is empty",
    "scale": "a scale that is not positive, which ONNX Runtime refuses",
    "poison": "hidden keys hold NaN or infinity, which the operator multiplies with 0",
}


def export_onnx(vectors: Path, folder: Path) -> dict[str, list[str]]:
    """Write ``CASE/model.onnx``, ``CASE/test_data_set_0/*.pb`` and ``CASE/output_tau.bin`` for each vector.

    Parameters
    ----------
    vectors
        A package of vectors.
    folder
        A new or empty folder.

    Returns
    -------
    Case -> what the operator defines in another way, or why it is left out: ``"left out: ..."``; the same is written
    into ``conventions.json``.

    Raises
    ------
    PackageError
        If there is no such package, or the folder is in use.
    ImportError
        If ``onnx`` is not installed.
    """
    package = Package.open(vectors)
    if folder.exists() and any(folder.iterdir()):
        raise PackageError(f"{folder}: must be a new or an empty folder")
    told: dict[str, list[str]] = {}
    for name in package.names:
        entry = package.read(name)
        reason = against(entry.case)
        if reason:
            told[name] = [f"left out: {reason}"]
            continue
        told[name] = [] if entry.case.seeing.all() else [_EMPTY]
        _write(folder / name, entry)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / TOLD).write_text(json.dumps(told, indent=1) + "\n", "utf-8")
    return told


def against(case: Case) -> str:
    """Say why the operator cannot express a call; nothing where it can."""
    if 0 in (case.batch, case.heads, case.queries, case.keys):
        return _NOT["size"]
    if not all(np.isfinite(np.asarray(array, np.float64)).all() for array in case.arrays):
        return _NOT["poison"]
    if case.options.get("scale", 1.0) <= 0:
        return _NOT["scale"]
    if case.options.get("sinks") is not None:
        return _NOT["sinks"]
    if case.options.get("softcap") is not None and _mask(case) is not None:
        return _NOT["softcap"]
    return ""


def _write(folder: Path, entry: Entry) -> None:
    try:
        import onnx
        from onnx import helper, numpy_helper
    except ImportError as error:
        raise ImportError("onnx not installed; pip install onnx") from error
    case, mask = entry.case, _mask(entry.case)
    arrays = dict(zip(("Q", "K", "V"), case.arrays, strict=True)) | ({} if mask is None else {"attn_mask": mask})
    output = entry.truth["output"].astype(np.dtype(case.dtype))
    tensors = [numpy_helper.from_array(np.ascontiguousarray(array), name) for name, array in arrays.items()]
    expected = numpy_helper.from_array(output, "Y")
    scale = case.options.get("scale")
    attributes: dict[str, Any] = {} if scale is None else {"scale": float(scale)}
    if case.options.get("softcap") is not None:
        attributes["softcap"] = float(case.options["softcap"])
    node = helper.make_node("Attention", list(arrays), ["Y"], is_causal=int(_is_causal(case)), **attributes)
    graph = helper.make_graph(
        [node],
        "attention",
        [helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims)) for tensor in tensors],
        [helper.make_tensor_value_info("Y", expected.data_type, list(expected.dims))],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=10)
    onnx.checker.check_model(model)
    data = folder / "test_data_set_0"
    data.mkdir(parents=True)
    (folder / "model.onnx").write_bytes(model.SerializeToString())
    for number, tensor in enumerate(tensors):
        (data / f"input_{number}.pb").write_bytes(tensor.SerializeToString())
    (data / "output_0.pb").write_bytes(expected.SerializeToString())
    write_array(folder / "output_tau.bin", entry.truth["output_tau"])


def _is_causal(case: Case) -> bool:
    """Tell whether the operator's own causal mask is meant: alone, and over as many keys as queries."""
    mask = case.options.get("mask")
    others = set(case.options) - {"mask", "scale", "softcap"}
    alone = mask is not None and [term[0] for term in mask.terms] == ["causal"]
    return alone and case.queries == case.keys and not any(case.options[name] is not None for name in others)


def _mask(case: Case) -> Array | None:
    """Give everything that hides or is added as one mask: booleans, or floats of the query's type."""
    added = [case.options.get(name) for name in ("bias", "alibi")]
    if _is_causal(case) or (not case.options.keys() - {"scale", "softcap"}):
        return None
    if all(array is None for array in added):
        return np.array(case.shown)
    problem = case.truth.problem
    places = np.arange(case.keys)
    total = np.empty(case.shown.shape)
    for b, h, i in np.ndindex(total.shape[:3]):
        total[b, h, i] = problem.added(b, h, i, places).sum(axis=0)
    return np.where(case.shown, total, -np.inf).astype(np.dtype(case.dtype))
