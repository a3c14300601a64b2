"""What asking for gradients does to a call: its results, its arguments, how they lie in memory (A13, A14, A16).

Axes: ``B`` batch, ``H`` query heads, ``K`` key/value heads, ``T`` query length, ``S`` key length, ``D`` query/key head
size, ``E`` value head size.
"""

from __future__ import annotations

import numpy as np

from attnkit_conformance.checking import Checks, over
from attnkit_conformance.checks.edges import CALLS
from attnkit_conformance.compare import assert_equal
from attnkit_conformance.gradient_cases import GradientCase, graded, with_lse
from attnkit_conformance.harness.views import VIEWS
from attnkit_conformance.subject import Subject

ASKED = graded(CALLS)
FEW = ASKED[:7]


class TestGradientCalls(Checks):
    """A16: gradients come with the call as it is."""

    @over([*ASKED, *with_lse(CALLS[:4])])
    def test_results_do_not_change(self, backend: Subject, case: GradientCase) -> None:
        """Inputs that require gradients give the results that they give without, bit for bit on one path."""
        plainly = backend.attention(case.arrays, case.options, lse=case.lse)
        results, _ = case.differentiate(backend)
        backend.assert_true(case, results)
        if backend.path is not None or len(backend.description.paths) == 1:
            backend.assert_same(case, results, plainly, what="of inputs that require gradients")

    @over(FEW)
    def test_each_argument_alone(self, backend: Subject, case: GradientCase) -> None:
        """The gradient of one argument is the same when the others do not require any."""
        for name in case.names:
            _, found = case.differentiate(backend, name)
            case.assert_true(backend, found, what="alone, ")

    @over(FEW)
    def test_arguments_stay_as_they_are(self, backend: Subject, case: GradientCase) -> None:
        """After the backward pass every argument and cotangent holds what it held."""
        arguments, cotangents = case.moved(backend)
        backend.differentiate(arguments, case.names, cotangents)
        for name, original in case.arguments.items():
            assert_equal(backend.numpy(arguments[name]), original, what=f"{name} after the backward pass")
        assert_equal(backend.numpy(cotangents[0]), case.cotangents[0], what="cotangent after the backward pass")

    @over(FEW[:5])
    def test_views(self, backend: Subject, case: GradientCase) -> None:
        """Gradients of transposed, sliced, reversed and read-only views, of cotangents that lie in the same way."""
        arguments, _ = case.moved(backend)
        view = backend.harness.view
        for how in VIEWS:
            arguments |= {name: view(case.arguments[name], how) for name in ("query", "key", "value")}
            _, found = backend.differentiate(arguments, case.names, [view(case.cotangents[0], how)])
            case.assert_true(backend, found, what=f"{how} views: ")

    @over(FEW[:5])
    def test_cotangents_that_are_one(self, backend: Subject, case: GradientCase) -> None:
        """The cotangent of a sum is one number for all elements, without a copy (stride 0)."""
        same = case.weighing(np.full(case.output_shape, 0.5))
        one = np.full((1, 1, 1, 1), 0.5, same.cotangents[0].dtype)
        wide = backend.harness.broadcast(one, case.output_shape)
        same.assert_true(backend, backend.differentiate(same.moved(backend)[0], case.names, [wide])[1])

    @over(ASKED)
    def test_from_run_to_run(self, backend: Subject, case: GradientCase) -> None:
        """A14: equal inputs give equal bits where that is declared."""
        _, first = case.differentiate(backend)
        for _ in range(3):
            case.assert_same(backend, case.differentiate(backend)[1], first, what="of the same call, made again")
