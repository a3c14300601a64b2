"""The harness sees arrays as users do, whatever a backend's own copies make of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from attnkit_conformance.harness.failures import raised, told
from attnkit_conformance.harness.local import Harness
from attnkit_conformance.selftest.plain import Plain


class Casting(Plain):
    """Gives float64, and hides it."""

    def finish(self, output: Any, query: Any, request: Any) -> Any:
        return output.astype(np.float64)

    def to_numpy(self, array: Any) -> Any:
        return np.asarray(array, np.float32)


class ReadOnly(Plain):
    """Lets nobody write into its arrays."""

    def from_numpy(self, array: Any) -> Any:
        copy = np.array(array)
        copy.flags.writeable = False
        return copy


def harness(backend: Plain) -> Harness:
    return Harness(backend.name, backend, backend)


def test_an_element_type_that_only_the_copy_has_is_found() -> None:
    under_test = harness(Casting())
    arrays = [under_test.array(np.ones((1, 1, 2, 8), np.float32)) for _ in range(3)]
    (output,) = under_test.attention(arrays, {})
    with pytest.raises(TypeError, match=r"to_numpy must give the array as it is, .*float64.*, got .*float32"):
        under_test.numpy(output)


def test_arrays_of_numpy_can_be_written_over() -> None:
    under_test = harness(ReadOnly())
    array = under_test.array(np.ones(3))
    assert under_test.write(array, 7)
    assert under_test.numpy(array).tolist() == [7, 7, 7]


def test_a_text_that_has_no_bytes_is_spelt_out() -> None:
    error = raised(told(RuntimeError("no file named \udc80")))
    assert str(error).encode() == b"no file named \\udc80"
