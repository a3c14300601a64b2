"""A whole attnkit plug-in: one backend, in plain NumPy.

Axes: ``B`` batch, ``H`` query heads, ``K`` key/value heads, ``T`` query length, ``S`` key length.
"""

from typing import Any

import numpy as np

import attnkit as ak


class ExampleBackend(ak.Backend):
    name = "example"
    automatic = False  # asked for by name only: NumPy arrays have an owner already

    def capabilities(self) -> ak.Capabilities:
        return ak.Capabilities(
            dtypes=frozenset({"float32", "float64"}),
            gqa=True, value_dim=True, window=True, prefix=True, chunked=True, documents=True, dense=True,
            bias=True, softcap=True, offsets=True, lse=True,
        )  # fmt: skip

    @np.errstate(all="ignore")  # hidden scores may overflow, and log(0) = -inf is the LSE of a row without keys
    def attention(
        self, query: Any, key: Any, value: Any, operands: ak.Operands, request: ak.AttentionRequest
    ) -> ak.AttentionOutput:
        key, value = (np.repeat(array, request.group, axis=1) for array in (key, value))
        scores = request.scale * (query @ key.swapaxes(-1, -2))  # [B, H, T, S]
        if request.softcap is not None:
            scores = request.softcap * np.tanh(scores / request.softcap)
        bias = request.score_bias(operands)
        scores = scores if bias is None else scores + bias
        scores = np.where(request.visible(operands), scores, -np.inf)

        top = scores.max(axis=-1, keepdims=True, initial=-np.inf)
        top = np.where(np.isfinite(top), top, 0).astype(scores.dtype)  # a row without keys has no maximum
        weights = np.exp(scores - top)
        total = weights.sum(axis=-1, keepdims=True)
        output = weights @ value / np.where(total > 0, total, 1)
        return ak.AttentionOutput(output, (top + np.log(total))[..., 0])

    def from_numpy(self, array: np.ndarray) -> np.ndarray:
        return array.copy()

    def to_numpy(self, array: np.ndarray) -> np.ndarray:
        return array.copy()


@ak.hookimpl
def attnkit_register_backends() -> ak.BackendSpec:
    return ak.BackendSpec(name="example", load=ExampleBackend, summary="The tutorial's backend, in plain NumPy.")
