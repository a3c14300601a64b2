"""The kernels as NVRTC compiles them for each architecture: what they take, and which instructions they are made of.

Compiling all of them takes an hour on one core, so each run takes some of each source, of any architecture; with
``ATTNKIT_COMPILE=all`` in the environment it takes all.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import subprocess
import sysconfig
from collections import defaultdict
from pathlib import Path

import pytest

from attnkit_cupy.catalogue import DEVICES, Instantiation, instantiations
from attnkit_cupy.cuda.cubins import StoredCubin, cubin
from attnkit_cupy.folders import KERNELS

pytest.importorskip("cupy", reason="NVRTC is called through CuPy")

CEILINGS = {
    "flash_decode.cu": 216,
    "flash_decode_mma.cu": 255,
    "flash_forward_mma.cu": 255,
    "flash_forward_simt.cu": 128,
    "mend.cu": 128,
    "merge_splits.cu": 128,
    "slots.cu": 40,
}
"""The most registers that a thread of each kernel may take."""

ALL = os.environ.get("ATTNKIT_COMPILE") == "all"
OLDEST, NEWEST = min(DEVICES), max(DEVICES)

# Where each instruction stands for a thing that the source asks for and a compiler might not give: products on tensor
# cores, matrices read from shared memory by a warp, and copies that pass the registers by.
INSTRUCTIONS = [
    (75, "flash_forward_mma.cu", {"HMMA.1688.F32", "LDSM.16.M88.4", "LDSM.16.MT88.4"}),
    (80, "flash_forward_mma.cu", {"HMMA.16816.F32.BF16", "LDSM.16.M88.4", "LDSM.16.MT88.4", "LDGSTS.E.BYPASS"}),
    (90, "flash_decode_mma.cu", {"HMMA.16816.F32", "LDSM.16.M88.4", "LDSM.16.MT88.4", "LDGSTS.E.BYPASS"}),
    (90, "flash_decode.cu", {"FFMA", "LDGSTS.E.BYPASS"}),
    (120, "flash_forward_simt.cu", {"FFMA"}),
]
LOCAL_MEMORY = {"LDL", "STL"}


def catalogue() -> dict[str, list[tuple[int, Instantiation]]]:
    """Give the instantiations of each source on every architecture."""
    found = defaultdict(list)
    for arch, device in DEVICES.items():
        for each in instantiations(device):
            found[each.source].append((arch, each))
    return found


CATALOGUE = catalogue()


def chosen() -> list[tuple[int, Instantiation]]:
    """Give all, or of each source one for the oldest architecture, one for the newest, and one between."""
    rng = random.Random(1)
    ages = [{OLDEST}, {NEWEST}, set(DEVICES) - {OLDEST, NEWEST}]
    few = [rng.choice([each for each in every if each[0] in archs]) for every in CATALOGUE.values() for archs in ages]
    return [each for every in CATALOGUE.values() for each in every] if ALL else few


def built(arch: int, instantiation: Instantiation) -> StoredCubin:
    return cubin(KERNELS / instantiation.source, (instantiation.name,), str(arch))


def disassembler() -> str | None:
    """Give nvdisasm, of pip's package or of a toolkit."""
    folders = Path(sysconfig.get_path("purelib"), "nvidia").glob("cu*/bin")
    return shutil.which("nvdisasm", path=os.pathsep.join([*map(str, folders), os.environ.get("PATH", "")]))


def test_every_source_has_a_ceiling() -> None:
    assert set(CATALOGUE) == set(CEILINGS)


@pytest.mark.parametrize("arch", DEVICES)
def test_what_a_device_is_asked_for_depends_on_its_tensor_cores(arch: int) -> None:
    names = [each.name for each in instantiations(DEVICES[arch])]
    types = {part for part in ("f16", "bf16") for name in names if f"mma<attn::{part}," in name}
    assert types == ({"f16"} if arch < 80 else {"f16", "bf16"})
    assert len(names) == len(set(names)) > 50


@pytest.mark.parametrize(
    ("arch", "instantiation"),
    chosen(),
    ids=lambda item: re.sub(r"attn::(TYPE_)?| ", "", item.name) if isinstance(item, Instantiation) else str(item),
)
def test_no_stack_no_spills_few_registers(arch: int, instantiation: Instantiation) -> None:
    resources = built(arch, instantiation).resources[instantiation.name]
    assert resources[1:] == (0, 0, 0), "stack, spill stores and loads"
    assert 0 < resources.registers <= CEILINGS[instantiation.source]


@pytest.mark.skipif(disassembler() is None, reason="nvdisasm is not here: pip install nvidia-cuda-nvdisasm")
@pytest.mark.parametrize(
    ("arch", "source", "expected"), INSTRUCTIONS, ids=[f"{arch}-{source}" for arch, source, _ in INSTRUCTIONS]
)
def test_instructions(arch: int, source: str, expected: set[str]) -> None:
    wanted = "bf16" if any("BF16" in name for name in expected) else ""
    names = [each for number, each in CATALOGUE[source] if number == arch and wanted in each.name]
    plain = next(each for each in names if each.name.endswith("false>"))
    text = subprocess.run(
        [str(disassembler()), "-c", str(built(arch, plain).path)], capture_output=True, text=True, check=True
    ).stdout
    found = set(re.findall(r"\b[A-Z][A-Z0-9_]+(?:\.[A-Z0-9_]+)*", text))
    missing = {want for want in expected if not any(name.startswith(want) for name in found)}
    assert not missing, sorted(name for name in found if name.startswith(("HMMA", "LDSM", "LDG")))
    assert not {name.partition(".")[0] for name in found} & LOCAL_MEMORY
