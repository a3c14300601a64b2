"""Every kernel that a device may be asked for: what compile checks and warm-ups go through.

Nobody lists them: all kinds of calls are launched on a runtime that only takes notes.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from attnkit import AttentionRequest
from attnkit_cupy import raw
from attnkit_cupy.params import ELEMENT_TYPES, Params
from attnkit_cupy.runtime import DEFAULT_SHARED_BYTES, NO_DEFINES, Device, Kernel
from attnkit_cupy.stored import StoredKind

DEVICES = {
    75: Device(75, 40, 64 * 1024),
    80: Device(80, 108, 163 * 1024),
    86: Device(86, 84, 99 * 1024),
    89: Device(89, 128, 99 * 1024),
    90: Device(90, 132, 227 * 1024),
    100: Device(100, 148, 227 * 1024),
    120: Device(120, 170, 99 * 1024),
}
"""A usual device of each architecture."""

_SIZES = tuple(range(32, 257, 32))
_ROWS = (1, 2, 4, 5, 8, 9, 16, 17, 32, 64, 65, 1000)
_KEYS = 2**14
_CODECS = ("int8", "int4", "fp8")
_DTYPES = ("float32", "float16", "bfloat16")


class Instantiation(NamedTuple):
    """A kernel: its source, and its C++ expression."""

    source: str
    name: str


def instantiations(device: Device) -> list[Instantiation]:
    """Give every kernel that calls on a device can lead to, sorted."""
    notes = _Notes(device)
    for request, kind in _calls():
        features = request.softcap is not None
        raw.KERNELS[raw.kernel_for(request, kind, device)].launch(notes, _params(request, kind), features)
    others = [Instantiation("mend.cu", "attn::mend")]
    others += [
        Instantiation("slots.cu", f"attn::{act}_slots<unsigned {size}>")
        for act, size in product(("read", "write"), ("char", "short", "int"))
    ]
    return sorted({*notes.found, *others})


def _calls() -> Iterator[tuple[AttentionRequest, StoredKind]]:
    for size, rows, dtype in product(_SIZES, _ROWS, _DTYPES):
        kinds = [StoredKind(dtype, dtype, dtype, False, True)]
        kinds += [StoredKind(codec, codec, dtype, True, True) for codec in _CODECS]
        for kind, softcap in product(kinds, (None, 1.0)):
            sizes = (1, rows, 1, 1, _KEYS, size, size)
            yield AttentionRequest(("cupy.ndarray",), "cuda:0", dtype, dtype, *sizes, softcap=softcap), kind


def _params(request: AttentionRequest, kind: StoredKind) -> Params:
    params = Params()
    params.set(batch=1, heads=request.num_heads, kv_heads=1, group=request.group, queries=1, keys=_KEYS)
    params.set(head_dim=request.head_dim, value_dim=request.value_dim)
    params.set(query_type=ELEMENT_TYPES[request.dtype])
    params.set(key_type=ELEMENT_TYPES[kind.key], value_type=ELEMENT_TYPES[kind.value])
    return params


class _Notes:
    """A runtime that launches nothing, and notes what it is asked for."""

    xp: Any = np

    def __init__(self, device: Device) -> None:
        self.device = device
        self.found: set[Instantiation] = set()

    @property
    def place(self) -> Hashable:
        return "nowhere"

    def on(self, array: Any) -> AbstractContextManager[Any]:
        del array
        return nullcontext()

    def module(self, source: str, names: Sequence[str], defines: Mapping[str, object] = NO_DEFINES) -> _Module:
        del defines
        self.found.update(Instantiation(source, name) for name in names)
        return _Module()


class _Module:
    def get_function(self, name: str) -> Kernel:
        del name
        return _Silent()


class _Silent:
    max_dynamic_shared_size_bytes = DEFAULT_SHARED_BYTES

    def __call__(
        self, grid: tuple[int, ...], block: tuple[int, ...], args: tuple[Any, ...], *, shared_mem: int = 0
    ) -> None:
        """Launch nothing."""
