"""Which path runs is said, and what it costs is what its name promises (S2)."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

import attnkit as ak

HEADS, KV_HEADS, LENGTH, HEAD_DIM = 8, 2, 2048, 512
PROGRAM = """
import json, resource, sys
import numpy, attnkit as ak

backend, heads, kv_heads, length, head_dim = sys.argv[1], *map(int, sys.argv[2:])

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)

def run(length):
    arrays = (array[:, :, :length] for array in (query, key, value))
    return ak.attention(*arrays, mask=ak.Mask.causal(), backend=backend)

rng = numpy.random.default_rng(0)
query, key, value = (rng.standard_normal((1, n, length, head_dim), "float32") for n in (heads, kv_heads, kv_heads))
run(64)
before = peak()
with ak.trace() as calls:
    output = run(length)
print(json.dumps({"path": calls[0].path, "bytes": peak() - before - output.nbytes}))
"""


@pytest.mark.fault("huggingface/transformers#46960")
@pytest.mark.parametrize("backend", ["numpy", "torch"])
def test_large_heads_in_groups_do_not_make_all_scores(backend) -> None:
    """No kernel took head sizes above 256 in groups; the path that makes all scores did, and ran out of memory."""
    sizes = map(str, (HEADS, KV_HEADS, LENGTH, HEAD_DIM))
    command = [sys.executable, "-W", "error", "-c", PROGRAM, backend, *sizes]
    told = json.loads(subprocess.run(command, check=True, timeout=300, capture_output=True, text=True).stdout)
    assert told["path"] in set(ak.get_backend(backend).paths) - {"dense"}
    assert told["bytes"] < LENGTH * LENGTH * HEADS * 4 / 4
