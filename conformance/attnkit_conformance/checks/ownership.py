"""What lies in memory, before a call and after it, has no part in the answer (A8, A13).

Axes: ``B`` batch, ``H`` query heads, ``T`` query length, ``S`` key length, ``E`` value head size.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from attnkit_conformance.cases import Case, each_dtype, plain
from attnkit_conformance.checking import Checks, over
from attnkit_conformance.checks.edges import CALLS, EMPTY_AXES, EMPTY_ROWS
from attnkit_conformance.measuring import held
from attnkit_conformance.structures import CAUSALLY, LENGTHS
from attnkit_conformance.subject import Answer, Subject, lse_dtype

_TIMES = 4  # copies that are left lying about before a call
LITTERED = [
    *CALLS,
    *EMPTY_ROWS,
    *LENGTHS[:5],
    *(case for case in EMPTY_AXES if case.batch and case.queries),
    Case(label="larger", queries=33, keys=67, head_dim=64, options=CAUSALLY),
    *each_dtype([replace(EMPTY_ROWS[0], label="before-every-key-types", heads=4)]),
]


class TestMemory(Checks):
    """A13: a result is made of the contents of the arguments, as they are at the call, and of nothing else."""

    @over(CALLS)
    def test_new_contents_of_the_same_arrays(self, backend: Subject, case: Case) -> None:
        """Arrays that were written over give the answer of what they hold now; nothing is known by where it lies."""
        other = _other(case)
        arrays, options = [backend.array(array) for array in case.arrays], backend.options(case.options)
        for number, asked in enumerate((case, other, case)):
            if not _write(backend, asked, arrays, options):
                held("its library does not write into arrays")
                return
            answer = backend.ask(arrays, options, lse=backend.capabilities.lse)
            backend.assert_true(asked, answer, what=f"contents number {number + 1} of the same arrays: ")

    @over(CALLS)
    def test_one_element_changed(self, backend: Subject, case: Case) -> None:
        """The same call again, with one number of one argument changed at a time, gives the answer of the new one."""
        backend.assert_true(case, case.call(backend))
        for which, name in enumerate(("query", "key", "value")):
            for place in (0, -1):
                arrays = [plain(array).copy() for array in case.arrays]
                arrays[which].reshape(-1)[place] += 3
                changed = case.holding(arrays)
                backend.assert_true(changed, changed.call(backend), what=f"element {place} of {name} changed: ")

    @over(LITTERED)
    def test_memory_is_written_before_it_is_read(self, backend: Subject, case: Case) -> None:
        """NaN, infinity and numbers in the memory that results are made in leave no trace, in empty rows neither."""
        answers = []
        for canary in (np.nan, 12345.0, -np.inf):
            for shape, dtype in _memory(case):
                backend.harness.litter(np.full(shape, canary).astype(np.dtype(dtype)), _TIMES)
            answers.append(case.call(backend))
            backend.assert_true(case, answers[-1], what=f"with {canary} in memory: ")
            backend.assert_same(case, answers[-1], answers[0], what=f"with {canary} in memory")

    @over(CALLS[:3])
    def test_results_last(self, backend: Subject, case: Case) -> None:
        """Results that are kept are still the same after other calls, of their own shapes and of others."""
        asked = [case.holding(np.roll(plain(array), number, axis=2) for array in case.arrays) for number in range(6)]
        asked.append(replace(case, label=f"{case.label}-larger", queries=case.queries + 2, keys=case.keys + 5))
        kept = [_result(backend, one) for one in asked]
        for number, (one, result) in enumerate(zip(asked, kept, strict=True)):
            backend.assert_true(one, Answer(backend.numpy(result), None), what=f"result {number}, read at the end: ")


def _other(case: Case) -> Case:
    """Give a case with other numbers in all of its arrays."""
    terms = {name: 1 - 2 * case.options[name] for name in ("bias", "alibi", "sinks") if name in case.options}
    other = replace(case, options={**case.options, **terms})
    return other.holding(plain(array)[..., ::-1] * 1.5 for array in case.arrays)


def _write(backend: Subject, case: Case, arrays: list[Any], options: dict[str, Any]) -> bool:
    """Write the numbers of a case into arrays that lie in the backend; ``False`` where that is not possible."""
    held = [*zip(arrays, case.arrays, strict=True)]
    held += [(options[name], case.options[name]) for name in ("bias", "alibi", "sinks") if name in options]
    return all(backend.harness.write(array, contents) for array, contents in held)


def _memory(case: Case) -> Iterator[tuple[tuple[int, ...], str]]:
    """Give shapes and element types of what a call is likely to allocate: results, accumulators, scores, row facts."""
    wide, rows = lse_dtype(case.dtype), case.output_shape[:3]
    yield case.output_shape, case.dtype
    yield from ((shape, wide) for shape in (case.output_shape, rows, (*rows, 1), (*rows, case.keys)))


def _result(backend: Subject, case: Case) -> Any:
    """Ask, and leave the output with the backend."""
    arrays = [backend.array(array) for array in case.arrays]
    (output,) = backend.harness.attention(arrays, backend.options(case.options))
    return output
