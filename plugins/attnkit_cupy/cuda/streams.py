"""The stream that a library of another one's arrays queues its work on."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import cupy

from attnkit_cupy.runtime import Array


@contextmanager
def beside(array: Array) -> Iterator[None]:
    """Let CuPy queue its work on the stream that torch uses for a tensor at the moment.

    DLPack would order two streams too, but torch takes back the memory of a tensor in the order of its own.
    """
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(array, torch.Tensor) or not array.is_cuda:
        yield
        return
    stream = torch.cuda.current_stream(array.device)
    with cupy.cuda.Device(array.device.index), cupy.cuda.ExternalStream(stream.cuda_stream, array.device.index):
        yield
