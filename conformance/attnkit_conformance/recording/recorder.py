"""record: write every attention call inside a block into a package, as it is made.

Axes: ``B`` batch, ``H`` query heads, ``K`` key/value heads, ``T`` query length, ``S`` key length, ``D`` query/key head
size, ``E`` value head size.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

import attnkit as ak
from attnkit.arrays import library_of
from attnkit.conversion import convert
from attnkit.tracing import Answered, observing
from attnkit_conformance.packages.calls import case_of_call
from attnkit_conformance.packages.writing import PackageWriter

Array = np.ndarray[Any, Any]


class Tape:
    """What is written.

    Attributes
    ----------
    calls, nbytes
        How many calls are in the package, and bytes of their arrays.
    left_out
        Why other calls are not, and how many.
    backends
        Who answered, ``"numpy:tiled"``, and how often.
    """

    def __init__(self, writer: PackageWriter, most_calls: int, most_bytes: int) -> None:
        self.calls = self.nbytes = 0
        self.left_out: Counter[str] = Counter()
        self.backends: Counter[str] = Counter()
        self._writer, self._most_calls, self._most_bytes = writer, most_calls, most_bytes

    def take(self, call: Answered) -> None:
        """Write a call."""
        reason = self._against(call)
        if reason:
            self.left_out[reason] += 1
            return
        query, key, value, output = on_host(call)
        operands = _on_host(call.operands, call.backend)
        case = case_of_call(query, key, value, operands, call.request)
        outputs = {"output": output}
        if call.result.lse is not None:
            outputs["lse"] = _host(call.result.lse, call.backend)
        self._writer.add(f"call-{self.calls:05d}", case, outputs=outputs, lse="lse" in outputs)
        self.calls += 1
        self.nbytes += sum(array.nbytes for array in (query, key, value, *outputs.values()))
        self.backends[f"{call.backend.name}:{call.path}"] += 1
        self._writer.numerics.setdefault(case.dtype, call.backend.capabilities().numerics.get(case.dtype, ""))

    def _against(self, call: Answered) -> str:
        """Say why a call is not written; nothing where it is."""
        if self.calls >= self._most_calls:
            return f"more than {self._most_calls} calls"
        if self.nbytes >= self._most_bytes:
            return f"more than {self._most_bytes} bytes"
        if np.promote_types(_kind(call.request.dtype), _kind(call.request.kv_dtype)) != _kind(call.request.dtype):
            return f"keys of {call.request.kv_dtype}, which {call.request.dtype} does not hold"
        return ""


@contextmanager
def record(path: str | Path, *, most_calls: int = 10_000, most_bytes: int = 1 << 32) -> Iterator[Tape]:
    """Record the attention calls of this thread or task inside the block, caches' and packed ones included.

    Keys and values of a cache are written as attention saw them: decoded, in the order of their positions. Calls are on
    disk as they are made; where the block raises, the package holds those made until then.

    Parameters
    ----------
    path
        A folder that is not there yet, or is empty; it is a package of the kind ``"recording"`` afterwards.
    most_calls, most_bytes
        What is beyond is counted, and not written.

    Raises
    ------
    PackageError
        If the folder is not empty.
    """
    writer = PackageWriter(Path(path), "recording", numerics={})
    with writer:
        tape = Tape(writer, most_calls, most_bytes)
        problem: BaseException | None = None
        try:
            with observing(tape.take):
                yield tape
        except BaseException as error:  # what was recorded until then is kept
            problem = error
        writer.made_by = ", ".join(sorted(tape.backends))
        writer.about = {"left_out": dict(tape.left_out), "ended": type(problem).__name__ if problem else "well"}
    if problem is not None:
        raise problem


def on_host(call: Answered) -> tuple[Array, Array, Array, Array]:
    """Copy query, key, value and output of a call to the host."""
    query, key, value, output = (
        _host(array, call.backend) for array in (call.query, call.key, call.value, call.result.output)
    )
    return query, key, value, output


def _kind(dtype: str) -> np.dtype[Any]:
    return np.dtype(dtype)


def _host(array: Any, backend: ak.Backend) -> Array:
    """Copy an array of any library to the host."""
    if isinstance(array, np.ndarray):
        return array.copy()
    if library_of(array) in backend.capabilities().libraries:
        return backend.to_numpy(array)
    return np.array(convert(array, "numpy"))  # the call was converted for the backend, and its results back


def _on_host(operands: ak.Operands, backend: ak.Backend) -> ak.Operands:
    def moved(item: Any) -> Any:
        if item is None or isinstance(item, int):
            return item
        return tuple(map(moved, item)) if isinstance(item, tuple) else _host(item, backend)

    return ak.Operands(*map(moved, operands))
