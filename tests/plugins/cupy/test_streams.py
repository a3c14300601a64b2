"""A call on torch tensors is queued on torch's stream; torch and the streams are stand-ins, as there is no device."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
import pytest

import attnkit as ak
from attnkit_cupy.backend import CupyBackend

cupy = pytest.importorskip("cupy", reason="the streams are CuPy's")
streams = pytest.importorskip("attnkit_cupy.cuda.streams")


class Tensor:
    def __init__(self, is_cuda):
        self.is_cuda = is_cuda
        self.device = SimpleNamespace(index=2)


@pytest.fixture
def entered(monkeypatch):
    """Give the contexts that are entered and left, with torch's stream 77 of device 2."""
    seen = []

    def standing_in(kind):
        @contextmanager
        def enter(*arguments):
            seen.append((kind, *arguments))
            yield
            seen.append(f"left {kind}")

        return enter

    torch = SimpleNamespace(
        Tensor=Tensor,
        cuda=SimpleNamespace(current_stream=lambda device: SimpleNamespace(cuda_stream=70 + device.index + 5)),
    )
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setattr(cupy.cuda, "Device", standing_in("device"))
    monkeypatch.setattr(cupy.cuda, "ExternalStream", standing_in("stream"))
    return seen


def test_work_joins_the_stream_of_a_tensor(entered) -> None:
    with streams.beside(Tensor(is_cuda=True)):
        entered.append("work")
    assert entered == [("device", 2), ("stream", 77, 2), "work", "left stream", "left device"]


@pytest.mark.parametrize("array", [Tensor(is_cuda=False), np.zeros(1), None], ids=["on the host", "numpy", "nothing"])
def test_what_has_no_stream_changes_nothing(entered, array) -> None:
    with CupyBackend.beside(SimpleNamespace(), array):
        entered.append("work")
    assert entered == ["work"]


def test_a_converted_call_runs_beside_its_query(monkeypatch) -> None:
    torch = pytest.importorskip("torch")
    backend, inside = ak.get_backend("numpy"), []

    @contextmanager
    def beside(array):
        inside.append(type(array))
        yield
        inside.append("left")

    monkeypatch.setattr(type(backend), "beside", lambda self, array: beside(array))
    query = torch.ones(1, 1, 2, 4)
    out = ak.attention(query, query, query, backend="numpy")
    assert inside == [torch.Tensor, "left"]
    assert out.dtype == torch.float32
