"""Arguments of a launch as bytes, by CuPy's rules, checked against what the kernel declares.

CUDA takes any bytes for any parameter; the emulator has the C++ types, and refuses what does not fit.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from attnkit_cupy.runtime import LaunchError, ptr

_KINDS = {"p": "an array", "i": "an integer", "f": "a floating-point number", "s": "a struct"}
_ALIGNMENT = 16  # of each argument, as launch.hpp has it


class Parameter(NamedTuple):
    """What a kernel declares, or a launch gives: pointer, integer, float or struct (``p i f s``), and its bytes."""

    kind: str
    size: int

    def __str__(self) -> str:
        return f"{_KINDS[self.kind]} of {self.size} bytes"


class Signature:
    """The parameters of a kernel."""

    def __init__(self, parameters: list[Parameter]) -> None:
        self._parameters = parameters
        self._padding = [bytes(-parameter.size % _ALIGNMENT) for parameter in parameters]

    def pack(self, args: tuple[Any, ...]) -> bytes:
        """Give the bytes of arguments, one after another.

        Raises
        ------
        LaunchError
            If their number, kind or size is not what the kernel declares.
        TypeError
            If no kernel takes such an argument.
        """
        if len(args) != len(self._parameters):
            raise LaunchError(f"takes {len(self._parameters)} arguments, {len(args)} given")
        parts: list[bytes] = []
        for index, (parameter, arg) in enumerate(zip(self._parameters, args, strict=True)):
            kind, data = marshal(arg)
            if parameter != (kind, len(data)):
                raise LaunchError(f"argument {index}: expected {parameter}, got {Parameter(kind, len(data))}")
            parts += data, self._padding[index]
        return b"".join(parts)


def marshal(arg: Any) -> tuple[str, bytes]:
    """Give kind and bytes of an argument: arrays by address, structs and NumPy scalars by value, numbers in 8 bytes."""
    if isinstance(arg, np.ndarray):
        return ("s", arg.tobytes()) if arg.dtype.fields and arg.size == 1 else ("p", _address(arg))
    if isinstance(arg, np.void):
        return "s", arg.tobytes()
    if isinstance(arg, np.generic):
        return ("i" if arg.dtype.kind in "biu" else "f"), arg.tobytes()
    if arg is None or hasattr(getattr(arg, "data", None), "ptr"):
        return "p", _address(arg)
    if isinstance(arg, int):
        return "i", np.int64(arg).tobytes()
    if isinstance(arg, float):
        return "f", np.float64(arg).tobytes()
    raise TypeError(f"a kernel takes arrays, NumPy scalars, structs and numbers, not {type(arg).__name__}")


def _address(array: Any) -> bytes:
    return ptr(array).to_bytes(8, "little")
