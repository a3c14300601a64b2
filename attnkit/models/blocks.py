"""Block: the weights of one decoder layer as a backend multiplies with them fastest.

Axes: matrices are ``[in, out]``, and ``[out, in]`` where they are read.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from attnkit.backend import Backend
from attnkit.config import DType

Array = Any
Reader = Callable[[str], np.ndarray[Any, Any]]


@dataclass(frozen=True, slots=True)
class Block:
    """The weights of one layer, in as few matrices ``[in, out]`` as may be, since a decode step is many small calls.

    What is multiplied by the same input is one matrix, the gains of the norm before it are in it, and the gate is
    halved, which is how ``swiglu`` takes it and costs no bit.
    """

    qkv: Array
    out: Array
    gate_up: Array
    down: Array


@dataclass(frozen=True, slots=True)
class Maker:
    """Makes weights in the arrays of a backend."""

    backend: Backend
    dtype: DType

    @np.errstate(all="ignore")  # what a damaged file holds is seen in the text
    def block(self, read: Reader, prefix: str) -> Block:
        """Read the layer whose weights have names that begin with ``prefix``."""
        attn_norm, mlp_norm = (read(prefix + name).astype(np.float64) for name in ("attn_norm", "mlp_norm"))
        qkv = np.concatenate([read(prefix + name) for name in ("q", "k", "v")])
        gate_up = np.concatenate([read(prefix + "gate") / 2, read(prefix + "up")])
        return Block(
            qkv=self.matrix(qkv * attn_norm),
            out=self.matrix(read(prefix + "o")),
            gate_up=self.matrix(gate_up * mlp_norm),
            down=self.matrix(read(prefix + "down")),
        )

    def array(self, array: np.ndarray[Any, Any]) -> Array:
        """Convert an array to the element type, and hand it to the backend."""
        return self.backend.from_numpy(array.astype(self.dtype, copy=False))

    def matrix(self, array: np.ndarray[Any, Any]) -> Array:
        """Take ``[out, in]`` to ``[in, out]`` in the memory order that a product with one row reads fastest.

        Such a product reads the matrix once, at the speed of memory. In single and double precision runs along the
        longer axis are what BLAS streams fastest (measured: up to 1.7 times the other order). Half precision on a CPU
        without instructions for it has fast dot products alone, which run along ``in`` (torch: 2 to 30 times).
        """
        rows, columns = array.shape
        if rows >= columns and self.dtype in ("float32", "float64"):
            return self.array(np.ascontiguousarray(array.T))
        return self.array(np.ascontiguousarray(array)).T
