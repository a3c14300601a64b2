"""What a backend may leave out, and what the base class does then."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import attnkit as ak


class Bare(ak.Backend):
    name = "bare"

    def capabilities(self) -> ak.Capabilities:
        return ak.Capabilities()

    def attention(self, query: Any, key: Any, value: Any, operands: Any, request: Any) -> ak.AttentionOutput:
        return ak.AttentionOutput(query)

    def from_numpy(self, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return array.copy()

    to_numpy = from_numpy


def test_gradients_cannot_be_asked_for_by_default() -> None:
    with pytest.raises(ak.UnsupportedError, match="'bare' offers no way to ask for gradients") as caught:
        Bare().vjp(lambda x: (x,), [np.ones(2)], [np.ones(2)])
    assert [reason.code for reason in caught.value.reasons["bare"]] == ["vjp"]
