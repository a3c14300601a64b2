"""Checks of single arguments: arrays, devices, integers and numbers, with the messages that they deserve."""

from __future__ import annotations

import math
from numbers import Real
from typing import Any

import numpy as np

from attnkit.arrays import DTYPES, device_of, dtype_name, is_array, library_of, type_names
from attnkit.errors import DeviceError, DTypeError, ShapeError
from attnkit.structure import FARTHEST

Array = Any
IntArray = np.ndarray[Any, np.dtype[np.int64]]
_ODD = ("is_nested", "is_sparse", "is_mkldnn")


def check_array(name: str, array: Any) -> None:
    """Raise ``DTypeError`` unless ``array`` is one, without hidden parts that attention would drop."""
    if type(array) is np.ndarray:
        return
    if not is_array(array):
        raise DTypeError(f"{name} must be an array, got {type(array).__name__}; convert it, e.g. with numpy.asarray")
    if isinstance(array, np.ma.MaskedArray):
        raise DTypeError(f"{name} must be a plain array, got a masked array; pass its mask as Mask.dense(...)")
    for odd in _ODD:
        if getattr(array, odd, False):
            kind = odd.removeprefix("is_")
            raise DTypeError(f"{name} must be a dense, strided array, got a {kind} one; convert it first")


def common_device(query: Array, key: Array, value: Array) -> str:
    """Give the one device of arrays of one library.

    Raises
    ------
    DTypeError
        If they come from several libraries.
    DeviceError
        If they lie on several devices.
    """
    if _share_place(query, key, value):
        return device_of(query)
    libraries = [library_of(array) for array in (query, key, value)]
    if len(set(libraries)) > 1:
        raise DTypeError(
            f"query, key, value must come from one array library, got {', '.join(libraries)}; convert them first"
        )
    devices = [device_of(array) for array in (query, key, value)]
    if len(set(devices)) > 1:
        raise DeviceError(f"query, key, value must lie on one device, got {', '.join(devices)}; move them first")
    return devices[0]


def _share_place(query: Array, key: Array, value: Array) -> bool:
    """Tell at little cost, in the usual case, that three arrays lie together."""
    place = getattr(query, "device", None)
    alike = type(query) is type(key) is type(value)
    return place is not None and alike and bool(key.device == place and value.device == place)


def check_home(name: str, array: Array, like: Array, owner: str = "the query") -> None:
    """Make sure that an array comes from the library of another one and lies on its device."""
    library = library_of(like)
    if library_of(array) != library:
        raise DTypeError(f"{name} must come from {owner}'s array library, {library}, got {type_names(array)[0]}")
    check_device(name, array, like, owner)


def check_device(name: str, array: Array, like: Array, owner: str) -> None:
    """Make sure that an array lies on the device of another one."""
    if device_of(array) != device_of(like):
        raise DeviceError(f"{name} must lie on {owner}'s device, {device_of(like)}, got {device_of(array)}")


def check_float(name: str, array: Any, like: Array) -> None:
    """Raise an error unless ``array`` holds floats and comes from the library and device of ``like``."""
    check_array(name, array)
    if dtype_name(array.dtype) not in DTYPES:
        hint = "; a boolean mask goes into Mask.dense(...)" if name == "bias" else ""
        raise DTypeError(f"{name} must hold floats ({', '.join(DTYPES)}), got {array.dtype}{hint}")
    check_home(name, array, like)


def finite_number(name: str, number: Any) -> float:
    """Give a finite real number as a float, or raise an error."""
    if isinstance(number, bool) or not isinstance(number, Real | np.floating | np.integer):
        raise DTypeError(f"{name} must be a real number or None, got {type(number).__name__}")
    try:
        value = float(number)
    except OverflowError:
        value = math.inf
    if not math.isfinite(value):
        raise ShapeError(f"{name} must be finite, got {value}")
    return value


def positive_softcap(number: Any) -> float:
    """Give a soft-cap, which is a finite number > 0, or raise an error."""
    softcap = finite_number("softcap", number)
    if softcap <= 0:
        raise ShapeError(f"softcap must be > 0, or None for no cap, got {softcap}")
    return softcap


def integers(name: str, numbers: Any, batch: int) -> Array:
    """Give ``[B]`` integers from one integer or ``[B]`` integers: on the host, or on the device where they lie."""
    if isinstance(numbers, int | np.integer) and not isinstance(numbers, bool | np.bool_):
        _check_range(name, [int(numbers)])
        return np.full(batch, numbers, np.int64)
    array = host_array(name, numbers) if isinstance(numbers, list | tuple | np.ndarray) else numbers
    if not is_array(array) or not dtype_name(array.dtype).startswith(("int", "uint")):
        got = getattr(array, "dtype", type(array).__name__)
        raise DTypeError(f"{name} must be an integer or integers [B], got {got}")
    if tuple(array.shape) != (batch,):
        raise ShapeError(f"{name} must be an integer or [B] = [{batch}], got shape {list(array.shape)}")
    if device_of(array) != "cpu":
        return array
    array = host_array(name, array)
    _check_range(name, array.tolist())
    return array.astype(np.int64)


def host_integers(name: str, numbers: Any, batch: int) -> IntArray:
    """Give ``[B]`` integers on the host, copied there where a library allows it."""
    array = integers(name, numbers, batch)
    return array if isinstance(array, np.ndarray) else integers(name, host_array(name, array), batch)


def host_array(name: str, numbers: Any) -> np.ndarray[Any, Any]:
    """Give a NumPy array of what is meant to hold integers; whether it does is for the caller to check."""
    if isinstance(numbers, np.ma.MaskedArray):
        raise DTypeError(f"{name} must be integers, got a masked array")
    try:
        array = np.asarray(numbers)
    except (TypeError, ValueError) as error:
        raise DTypeError(f"{name} must be integers on the host, got {type(numbers).__name__}: {error}") from error
    return array.astype(np.int64) if isinstance(numbers, list | tuple) and not array.size else array


def lengths(name: str, numbers: Any, batch: int, most: int, axis: str) -> Array:
    """Give ``[B]`` lengths from 0 to ``most``; those that lie on a device are not read back, kernels clamp them."""
    array = integers(name, numbers, batch)
    return array if not isinstance(array, np.ndarray) else _bounded(name, array, most, axis)


def host_lengths(name: str, numbers: Any, batch: int, most: int, axis: str) -> IntArray:
    """Give ``[B]`` lengths from 0 to ``most`` on the host."""
    return _bounded(name, host_integers(name, numbers, batch), most, axis)


def _bounded(name: str, array: IntArray, most: int, axis: str) -> IntArray:
    if array.size and (array.min() < 0 or array.max() > most):
        raise ShapeError(f"{name} must lie in 0..{axis} = 0..{most}, got {array.tolist()}")
    return array


def layer_number(layer: Any, count: int) -> int:
    """Give the number of a layer, 0 to ``count - 1``; negative ones count from the last.

    Raises
    ------
    IndexError
        If there is no such layer.
    DTypeError
        If it is no integer.
    """
    if isinstance(layer, bool) or not isinstance(layer, int | np.integer):
        raise DTypeError(f"layer must be an integer, got {layer!r}")
    if not -count <= layer < count:
        raise IndexError(f"layer must lie in 0..{count - 1}, got {layer}")
    return int(layer) % count


def row_number(name: str, number: Any, batch: int) -> int:
    """Give the number of one sequence, 0 to ``batch - 1``, or raise an error."""
    if isinstance(number, bool | np.bool_) or not isinstance(number, int | np.integer):
        raise DTypeError(f"{name} must be an integer, got {type(number).__name__}")
    if not 0 <= number < batch:
        raise ShapeError(f"{name} must lie in 0..B - 1 with B = {batch}, got {number}")
    return int(number)


def row_numbers(name: str, numbers: Any, batch: int) -> list[int]:
    """Give the numbers of sequences, each from 0 to ``batch - 1``, or raise an error."""
    array = host_array(name, numbers) if isinstance(numbers, list | tuple | np.ndarray) else numbers
    if not is_array(array) or len(array.shape) != 1:
        raise ShapeError(f"{name} must be integers [n], each in 0..B - 1 with B = {batch}, got {numbers!r}")
    rows = host_integers(name, array, int(array.shape[0]))
    if rows.size and (rows.min() < 0 or rows.max() >= batch):
        raise ShapeError(f"{name} must each lie in 0..B - 1 with B = {batch}, got {rows.tolist()}")
    return [int(row) for row in rows]


def _check_range(name: str, numbers: list[int]) -> None:
    beyond = [number for number in numbers if not -FARTHEST <= number <= FARTHEST]
    if beyond:
        raise ShapeError(f"{name} must lie in -2**53..2**53, got {beyond[0]}")
