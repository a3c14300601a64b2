"""Memory of long calls: it grows with the length, not with its square.

Peaks are of the whole process, which has made the arrays and a short call of each kind before. A bound is what a call
gives back, and 64 MB for the tiles of all threads; the scores of one head alone would be many times as much.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

ROOM = 64 * 2**20
HEAD_DIM = 16
PROGRAM = """
import json, resource, sys
import numpy, torch
import attnkit as ak

length, head_dim, grad, *backends = json.loads(sys.argv[1])
causal, window = ak.Mask.causal(), ak.Mask.causal() & ak.Mask.window(512)
ids = numpy.arange(length) * 8 // length

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)

def masks(length):
    yield "causal", causal
    yield "window", window
    yield "documents", causal & ak.Mask.documents(ids[:length], ids[:length])

def run(mask, length, backend):
    arrays = [array[:, :, :length] for array in (query, key, value)]
    with ak.trace() as calls:
        output = ak.attention(*arrays, mask=mask, backend=backend)
    if grad:
        output.sum().backward()
    return calls[0].path

query, key, value = (torch.rand(1, 1, length, head_dim, requires_grad=grad) for _ in range(3))
if grad:
    (query + key + value).sum().backward()  # so that the gradients exist
for backend in backends:
    for _, mask in masks(100):
        run(mask, 100, backend)
grown = []
for backend in backends:
    for name, mask in masks(length):
        before = peak()
        path = run(mask, length, backend)
        grown.append((backend, name, path, peak() - before))
print(json.dumps(grown))
"""


def measure(length: int, *, grad: bool) -> list[tuple[str, str, str, int]]:
    """Give backend, mask, path, and by how many bytes the peak rose, call by call."""
    argument = json.dumps([length, HEAD_DIM, grad, "torch:tiled", "torch"])
    command = [sys.executable, "-W", "error", "-c", PROGRAM, argument]
    done = subprocess.run(command, check=True, timeout=300, capture_output=True, text=True)
    rows: list[Any] = json.loads(done.stdout)
    return [tuple(row) for row in rows]


@pytest.mark.parametrize(("length", "grad"), [(16384, False), (8192, True)], ids=["forward", "backward"])
def test_peak_grows_with_the_length(length, grad) -> None:
    array = length * HEAD_DIM * 4
    bound = ROOM + (8 if grad else 2) * array  # the output, its gradient, and the gradients of three inputs twice
    assert bound < length * length * 4 / 3
    grown = measure(length, grad=grad)
    assert sum(rise for *_, rise in grown) <= bound, grown
    assert {path for backend, _, path, _ in grown if backend == "torch:tiled"} == {"tiled"}
