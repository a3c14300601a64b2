"""Attend once by kernels with edits in their source, and say what came of it.

It is a program too, so that it can be run under sanitizers::

    python attend.py '{"kernel": "simt", "edits": [["flash_forward_simt.cu", "__syncthreads();", "", 0]]}'

Exit status: 0 the oracle's tolerance holds, 3 it does not, 4 the launch failed.

Rows that are not finite are not mended, as they would be otherwise: here they are the sign of a defect.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

import attnkit as ak
from attnkit import reference
from attnkit.numerics import numerics_for
from attnkit_cupy import raw
from attnkit_cupy.backend import EmulatedBackend
from attnkit_cupy.emulator import EmulatedRuntime, EmulatorConfig
from attnkit_cupy.emulator.runtime import EmulatedModule
from attnkit_cupy.folders import KERNELS
from attnkit_cupy.runtime import NO_DEFINES, LaunchError

FINE, WRONG, FAILED = 0, 3, 4
DTYPES = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}


class Edit(NamedTuple):
    """Replace one occurrence of a text, which must stand in the file; ``at`` counts from 0."""

    file: str
    old: str
    new: str
    at: int = 0


class Plan(NamedTuple):
    """What to run: a kernel, on which elements, after which edits; queries see keys causally."""

    kernel: str
    dtype: str = "float32"
    edits: Sequence[Sequence[Any]] = ()
    queries: int = 70
    keys: int = 150
    head_dim: int = 32
    batch: int = 2
    config: Mapping[str, Any] = {}


class EditedRuntime(EmulatedRuntime):
    """The emulator, with kernels from a folder of its own."""

    def __init__(self, folder: Path, config: EmulatorConfig) -> None:
        super().__init__(config)
        self._folder = folder

    def module(self, source: str, names: Sequence[str], defines: Mapping[str, object] = NO_DEFINES) -> EmulatedModule:
        return super().module(str(self._folder / source), names, defines)


def edited(edits: Sequence[Edit], folder: Path) -> Path:
    """Copy the kernels, and edit the copy."""
    copied = Path(shutil.copytree(KERNELS, folder / "kernels"))
    for file, old, new, at in edits:
        parts = (copied / file).read_text().split(old)
        if len(parts) < at + 2:
            raise ValueError(f"{old!r} stands {len(parts) - 1} times in {file}")
        (copied / file).write_text(old.join(parts[: at + 1]) + new + old.join(parts[at + 1 :]))
    return copied


@contextmanager
def only_kernel(name: str) -> Iterator[None]:
    """Take one kernel whatever would be faster, and mend nothing."""
    kernels, mend = raw.KERNELS, raw._mend
    raw.KERNELS, raw._mend = {name: kernels[name]}, lambda *_: None
    raw.kernel_for.cache_clear()
    try:
        yield
    finally:
        raw.KERNELS, raw._mend = kernels, mend
        raw.kernel_for.cache_clear()


def attend(plan: Plan) -> tuple[int, str]:
    """Give an exit status, and what is to be told."""
    rng = np.random.default_rng(0)
    shapes = ((2, plan.queries), (1, plan.keys), (1, plan.keys))
    query, key, value = (
        rng.standard_normal((plan.batch, *shape, plan.head_dim)).astype(DTYPES[plan.dtype]) for shape in shapes
    )
    truth = reference.attention(query, key, value, mask=ak.Mask.causal())
    config = EmulatorConfig(**{"schedule": "priority", "copies": "mixed", "workers": 1, **plan.config})
    backend = EmulatedBackend(config)
    with tempfile.TemporaryDirectory() as folder, only_kernel(plan.kernel):
        backend.runtime = EditedRuntime(edited([Edit(*edit) for edit in plan.edits], Path(folder)), config)
        try:
            found = ak.attention_with_lse(query, key, value, mask=ak.Mask.causal(), backend=backend)
        except LaunchError as error:
            return FAILED, str(error)
    profile = backend.capabilities().numerics[plan.dtype]
    bound = truth.tolerance(numerics_for(profile, plan.dtype))
    error = np.abs(found.output.astype(np.float64) - truth.output)
    fine = bool((error <= bound.output).all())
    return (FINE if fine else WRONG), f"largest error {error.max()}, allowed {bound.output.max()}"


if __name__ == "__main__":
    status, text = attend(Plan(**json.loads(sys.argv[1])))
    sys.stdout.write(text + "\n")
    sys.exit(status)
