"""The arrays of a vector in other formats, beside the raw ones; written so that they too come out the same again."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from attnkit_conformance.cases import Case
from attnkit_conformance.packages import PackageWriter, describe
from attnkit_conformance.packages.folder import read_call

Array = np.ndarray[Any, Any]
_TENSORS: Final = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "int64": "I64",
    "bool": "BOOL",
}


class VectorWriter(PackageWriter):
    """Writes a package whose arrays come in other formats too, and which can say more of a call."""

    def tell(self, name: str, sentences: Sequence[str]) -> None:
        """Say more of a case that was added: sentences after the others in the ``semantics`` of its ``case.json``."""
        place = self._place / name / "case.json"
        told = read_call(place)
        told = told.model_copy(update={"semantics": (*told.semantics, *sentences)})
        place.write_text(told.model_dump_json(indent=1, exclude_none=True) + "\n", "utf-8")

    def add_formats(self, name: str, case: Case, truth: Mapping[str, Array], formats: tuple[str, ...]) -> None:
        """Write the arrays of a case that was added in more formats: ``CASE/arrays.npz`` and the like."""
        arrays = {f"in.{role}": array for role, array in describe(case)[1].items()}
        arrays |= {f"truth.{role}": array for role, array in truth.items()}
        for format_ in formats:
            for file, content in FORMATS[format_](arrays).items():
                place = self._place / name / file
                place.parent.mkdir(exist_ok=True)
                place.write_bytes(content)


def _hex(arrays: Mapping[str, Array]) -> dict[str, bytes]:
    """Give each array as ``$readmemh`` reads it: the bits of one element a line, the first one first."""
    return {f"hex/{role}.hex": _hex_lines(array).encode() for role, array in arrays.items()}


def _hex_lines(array: Array) -> str:
    bits = np.ascontiguousarray(array).reshape(-1).view(f"u{array.itemsize}")
    return "".join(f"{int(word):0{2 * array.itemsize}x}\n" for word in bits)


def _npz(arrays: Mapping[str, Array]) -> dict[str, bytes]:
    """Give them as one ``.npz``, bfloat16 as uint16; the archive has no dates."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_STORED) as archive:
        for role, array in sorted(arrays.items()):
            entry = io.BytesIO()
            plain = array.view(np.uint16) if array.dtype.name == "bfloat16" else array
            np.lib.format.write_array(entry, np.ascontiguousarray(plain), version=(1, 0))
            archive.writestr(zipfile.ZipInfo(f"{role}.npy"), entry.getvalue())
    return {"arrays.npz": content.getvalue()}


def _safetensors(arrays: Mapping[str, Array]) -> dict[str, bytes]:
    """Give them as one ``.safetensors``: the length of a header, the header, and the raw arrays."""
    header: dict[str, Any] = {}
    body = b""
    for role, array in sorted(arrays.items(), key=lambda pair: (-pair[1].itemsize, pair[0])):
        raw = np.ascontiguousarray(array).tobytes()
        place = [len(body), len(body) + len(raw)]
        header[role] = {"dtype": _TENSORS[array.dtype.name], "shape": list(array.shape), "data_offsets": place}
        body += raw
    text = json.dumps(header, sort_keys=True).encode()
    text += b" " * (-len(text) % 8)
    return {"arrays.safetensors": len(text).to_bytes(8, "little") + text + body}


FORMATS: Final[dict[str, Callable[[Mapping[str, Array]], dict[str, bytes]]]] = {
    "hex": _hex,
    "npz": _npz,
    "safetensors": _safetensors,
}
"""Name -> files of a case, from its arrays by role."""
