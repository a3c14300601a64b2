"""A harness for attnkit in Python: NumPy only, no attnkit. ``attnkit crosscheck numpy "cmd:python3 harness.py"``.

Replace ``attention`` by whatever you want to check: a simulator, a device behind a driver, another library.
"""

import json
import sys
from pathlib import Path

import numpy as np

CAPABILITIES = {
    "dtypes": ["float32", "float64"],
    "gqa": True,
    "value_dim": True,
    "window": True,
    "lengths": True,
    "lse": True,
}


def attention(call: dict, arrays: dict) -> tuple[np.ndarray, np.ndarray]:
    """Naive attention: output [B, H, T, E] and LSE [B, H, T]."""
    batch, heads, queries, keys = (call[name] for name in ("batch", "heads", "queries", "keys"))
    group = heads // max(call["kv_heads"], 1)
    key, value = (np.repeat(arrays[name], group, axis=1) for name in ("key", "value"))
    query_lengths = np.broadcast_to(arrays.get("query_lengths", queries), (batch,))
    kv_lengths = np.broadcast_to(arrays.get("kv_lengths", keys), (batch,))
    rows, columns = np.arange(queries)[:, None], np.arange(keys)[None, :]
    shown = np.zeros((batch, queries, keys), bool)
    for b in range(batch):
        position = rows + kv_lengths[b] - query_lengths[b]
        seen = (columns < kv_lengths[b]) & (rows < query_lengths[b])
        for term in call.get("mask", []):
            if term["kind"] in ("causal", "window"):
                left = term.get("left")
                right = 0 if term["kind"] == "causal" else term.get("right")
                seen &= True if left is None else columns > position - left
                seen &= True if right is None else columns <= position + right
        shown[b] = seen
    value = np.where(np.arange(keys)[:, None] < kv_lengths[:, None, None, None], value, 0)
    with np.errstate(all="ignore"):
        scores = arrays["query"] @ key.swapaxes(2, 3) * value.dtype.type(float.fromhex(call["scale_hex"]))
        scores = np.where(shown[:, None], scores, -np.inf)
        top = scores.max(axis=-1, keepdims=True, initial=-np.inf)
        weights = np.where(shown[:, None], np.exp(scores - top), 0)
        total = weights.sum(axis=-1, keepdims=True)
        output = np.where(total > 0, weights @ value / total, 0)
        lse = np.where(total > 0, np.log(total) + top, -np.inf)[..., 0]
    return output.astype(value.dtype), lse.astype(value.dtype)


def attend(folder: Path) -> None:
    call = json.loads((folder / "case.json").read_text())
    arrays = {
        role: np.fromfile(
            folder / "in" / f"{role}.bin",
            "<f4" if told["dtype"] == "float32" else "<f8" if told["dtype"] == "float64" else "<i8",
        ).reshape(told["shape"])
        for role, told in call["arrays"].items()
    }
    output, lse = attention(call, arrays)
    output.tofile(folder / "out" / "output.bin")
    if call["lse"]:
        lse.tofile(folder / "out" / "lse.bin")


for line in sys.stdin:
    message = json.loads(line)
    reply = {"id": message["id"], "status": "ok"}
    if message["command"] == "hello":
        reply |= {"protocol": 1, "name": "numpy-harness", "version": "1", "language": "Python"}
    elif message["command"] == "capabilities":
        reply |= {"capabilities": CAPABILITIES}
    elif message["command"] == "attend":
        try:
            attend(Path(message["folder"]))
        except Exception as error:  # the other side wants to know
            reply = {"id": message["id"], "status": "error", "message": f"{type(error).__name__}: {error}"}
    print(json.dumps(reply), flush=True)
    if message["command"] == "stop":
        break
