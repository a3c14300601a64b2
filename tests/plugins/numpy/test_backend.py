"""Which path takes what, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import attnkit as ak
from attnkit_numpy import decode
from attnkit_numpy.backend import NumpyBackend


def arrays(rows: int, keys: int, heads: int = 4, kv_heads: int = 2, head_dim: int = 64) -> list[Any]:
    return [np.ones((1, heads, rows, head_dim), np.float32), *(np.ones((1, kv_heads, keys, head_dim), np.float32),) * 2]


def path_of(*sizes: int) -> str:
    path = ak.explain(*arrays(*sizes)).path
    assert path is not None
    return path


def test_few_rows_decode_and_many_are_tiled() -> None:
    assert path_of(1, 500) == "decode"
    assert path_of(2048, 2048) == "tiled"


def test_decode_refuses_many_rows_with_a_reason() -> None:
    rows = decode.MOST_ROWS // 2 + 1
    with pytest.raises(ak.UnsupportedError) as caught:
        ak.attention(*arrays(rows, 8), backend="numpy:decode")
    (reason,) = caught.value.reasons["numpy:decode"]
    assert (reason.code, reason.field) == ("path", "query_length")
    ak.attention(*arrays(rows - 1, 8), backend="numpy:decode")


def test_gradients_are_refused_and_nothing_else() -> None:
    capabilities = NumpyBackend().capabilities()
    declared = {name: getattr(capabilities, name) for name in capabilities.__slots__}
    assert [name for name, value in declared.items() if value is False] == ["grad"]
