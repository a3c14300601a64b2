"""What a backend says about a call, ``unsupported``, is what comes of it, and is what it declares (A18, S2).

Axes: ``B`` batch, ``T`` query length, ``S`` key length, ``D`` query/key head size.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import attnkit as ak
from attnkit_conformance.cases import Case
from attnkit_conformance.checking import Checks, over
from attnkit_conformance.compare import assert_equal
from attnkit_conformance.covering import Choice
from attnkit_conformance.features import FEATURES, Sizes, declared_values, fields
from attnkit_conformance.measuring import held
from attnkit_conformance.samples import Sample, any_choice, swarm
from attnkit_conformance.subject import Answer, Subject, codes_of

REQUESTS = 52
_LARGEST = 1024  # beyond it, the limits of a backend are not visited

SAMPLES = [Case(label=f"requests{number}", queries=1, keys=1) for number in range(40)]


@dataclass(frozen=True, kw_only=True, eq=False)
class Request(Sample):
    """A sample whose arrays may require gradients."""

    grad: bool = False

    def __str__(self) -> str:
        return f"{super().__str__()}-grad" if self.grad else super().__str__()

    def features(self) -> Iterator[str]:
        """Give the fields that are simply yes or no, as the request needs them."""
        yield from super().features()
        if self.grad:
            yield "grad"


class TestAgreement(Checks):
    """A18: for any request, ``unsupported`` follows from what is declared, and the call does as it says."""

    @over(SAMPLES)
    def test_a_call_does_what_was_said(self, backend: Subject, case: Case) -> None:
        """No reason: the oracle's answer. Reasons: ``UnsupportedError`` with the same codes, arguments untouched."""
        rng = case.rng("requests")
        enabled, known = swarm(rng), declared_values(backend.capabilities)
        for number in range(REQUESTS):
            choice = any_choice(rng, enabled, known if number % 2 else FEATURES)
            _assert_agrees(backend, any_request(backend, rng, choice))


def any_request(backend: Subject, rng: np.random.Generator, choice: Choice) -> Request:
    """Draw a small request; its sizes are usual ones, or stand at the limits that are declared."""
    capabilities = backend.capabilities
    usual = Case(label="usual", head_dim=int(rng.choice([4, 8, 16]))).on(capabilities).head_dim
    limits = list(_limits(capabilities.head_dims))
    head_dim = int(rng.choice(limits)) if rng.random() < 0.2 and limits else usual
    batch, queries = int(rng.choice([1, 1, 1, 2])), int(rng.choice([1, 1, 2, 3]))
    sizes = Sizes(batch, queries, _keys(capabilities, rng), head_dim)
    grad = bool(rng.random() < 0.1) and _can_require_grad(backend)
    drawn = Request(**fields(choice, sizes, rng), grad=grad, seed=int(rng.integers(2**32)))
    return replace(drawn, value_dim=0) if drawn.width == head_dim else drawn


def _keys(capabilities: ak.Capabilities, rng: np.random.Generator) -> int:
    longest = capabilities.max_key_length
    if longest is not None and longest <= _LARGEST and rng.random() < 0.2:
        return longest + int(rng.integers(-1, 2))
    return int(rng.integers(0, 9))


def _limits(sizes: ak.Sizes) -> Iterator[int]:
    """Give sizes at the ends of a range and just past them, and between two multiples."""
    ends = [sizes.least] if sizes.most is None else [sizes.least, sizes.most]
    yield from (
        end + step for end in ends for step in (-sizes.multiple, -1, 0, 1, sizes.multiple) if 0 < end + step <= _LARGEST
    )


def _can_require_grad(backend: Subject) -> bool:
    harness = backend.harness
    return harness.needs_grad(harness.requiring_grad(np.zeros(1, np.float32)))


def _assert_agrees(backend: Subject, request: Request) -> None:
    make = backend.harness.requiring_grad if request.grad else backend.array
    arrays, options = [make(array) for array in request.arrays], backend.options(request.options)
    said = frozenset(backend.harness.reasons(arrays, options, request.lse))
    _assert_follows(backend, request, said)
    if not said:
        backend.assert_true(request, _taken(backend, request, arrays, options), what=f"{request}: ")
        return
    _assert_refuses(backend, request, said, arrays, options)
    for name, array, original in zip(("query", "key", "value"), arrays, request.arrays, strict=True):
        if original.size:
            assert_equal(backend.numpy(array), original, what=f"{request}: {name} after the refusal")


def _assert_follows(backend: Subject, request: Request, said: frozenset[str]) -> None:
    """Check that the reasons are those of the capabilities; a forced path may have limits of its own."""
    declared = frozenset(request.undeclared(backend.capabilities))
    own = {"path"} if backend.path else set()
    if said - own != declared:
        raise AssertionError(
            f"{request}: what is declared gives the codes {sorted(declared)}, unsupported gives {sorted(said)}"
        )
    held("reasons against what is declared")


def _taken(backend: Subject, request: Request, arrays: list[Any], options: dict[str, Any]) -> Answer:
    try:
        return backend.ask(arrays, options, lse=request.lse)
    except ak.UnsupportedError as error:
        raise AssertionError(f"{request}: unsupported gives no reason, yet the call is refused: {error}") from error


def _assert_refuses(
    backend: Subject, request: Request, said: frozenset[str], arrays: list[Any], options: dict[str, Any]
) -> None:
    try:
        backend.harness.attention(arrays, options, request.lse)
    except ak.UnsupportedError as error:
        if codes_of(error) != said:
            raise AssertionError(
                f"{request}: unsupported gives the codes {sorted(said)}, the call {sorted(codes_of(error))}: {error}"
            ) from error
        return
    raise AssertionError(f"{request}: unsupported gives the codes {sorted(said)}, yet the call gave a result")
