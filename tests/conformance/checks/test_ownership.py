"""What is put into memory before a call, and what is written into arrays between calls."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from attnkit_conformance.checks import ownership
from attnkit_conformance.measuring import measuring
from attnkit_conformance.selftest.plain import Array, Plain, unregistered


class Counting(Plain):
    """Counts the arrays that are made of NumPy's."""

    def from_numpy(self, array: Array) -> Array:
        self.__dict__.setdefault("made", []).append(array.copy())
        return super().from_numpy(array)


def test_litter_is_made_and_let_go_of() -> None:
    backend = Counting()
    litter = unregistered(backend).harness.litter(np.full((2, 3), np.nan), 4)
    assert litter is None
    assert [array.shape for array in backend.__dict__["made"]] == [(2, 3)] * 4
    assert all(np.isnan(array).all() for array in backend.__dict__["made"])


@pytest.mark.parametrize("case", ownership.LITTERED[:3], ids=str)
def test_litter_has_the_sizes_of_results(case: ownership.Case) -> None:
    backend = Counting()
    ownership.TestMemory().test_memory_is_written_before_it_is_read(backend=unregistered(backend), case=case)
    littered = {array.nbytes for array in backend.__dict__["made"] if array.size and np.isnan(array).all()}
    answer = case.call(unregistered(Plain()))
    assert answer.output.nbytes in littered
    assert answer.lse is not None
    assert answer.lse.nbytes in littered


def test_a_library_that_does_not_write_into_arrays_is_not_accused() -> None:
    class Fixed(np.ndarray[Any, Any]):
        def __setitem__(self, key: Any, value: Any) -> None:
            raise TypeError("arrays of this library do not change")

    class Frozen(Plain):
        def from_numpy(self, array: Array) -> Array:
            return super().from_numpy(array).view(Fixed)

    check = ownership.TestMemory()
    with measuring() as notes:
        check.test_new_contents_of_the_same_arrays(backend=unregistered(Frozen()), case=ownership.CALLS[0])
    assert [note.what for note in notes] == ["its library does not write into arrays"]
