"""Known faults: what has gone wrong in well-known libraries, rebuilt as small backends and caches.

Each is about one convention of the contract, and the requirement that rejects it names that convention.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

import attnkit as ak
from attnkit_conformance.selftest.gate import cheapest_first, first_failure
from attnkit_conformance.selftest.own_faults import (
    Advances,
    CropsTooMuch,
    OverCrops,
    RepeatsNothing,
    SharesTheTail,
    WrapsPadding,
)
from attnkit_conformance.selftest.plain import EVERYTHING, Array, Plain, unregistered
from attnkit_conformance.subject import Subject


@dataclass(frozen=True, slots=True)
class KnownFault:
    """A fault that a library had.

    Attributes
    ----------
    name
        What it did.
    requirement
        Id of the requirement that names the convention, and fails.
    convention
        Words of its statement that say how it should have been.
    subject
        Makes the faulty backend.
    """

    name: str
    requirement: str
    convention: str
    subject: Callable[[], Subject]

    def __str__(self) -> str:
        return self.name

    def mistakes(self) -> Iterator[str]:
        """Say what the suite makes of it that it should not."""
        chosen = cheapest_first(self.requirement)
        if first_failure(self.subject(), chosen)[1] is None:
            yield f"{self}: {self.requirement} does not reject it"
        if self.convention not in chosen[0].requirement.statement:
            yield f"{self}: {self.requirement} does not say {self.convention!r}"


class DropsCausal(Plain):
    """Takes a dense mask or a causal one, and forgets the second when it builds its own kind of mask."""

    name = "drops-causal"

    def causal(self, p: Array, j: Array) -> Array:
        """Show everything."""
        return np.ones(np.broadcast_shapes(p.shape, j.shape), bool)


class IgnoresUnknownOptions(Plain):
    """Takes any call, and looks at the options that it knows: a soft-cap came after it was written."""

    name = "ignores-unknown-options"
    declared = replace(EVERYTHING, softcap=False)

    def unsupported(self, request: ak.AttentionRequest, path: str | None = None) -> list[ak.Reason]:
        """Say nothing about a soft-cap."""
        return super().unsupported(request._replace(softcap=None), path)

    def cap(self, scores: Array, request: ak.AttentionRequest) -> Array:
        """Know of no soft-cap."""
        del request
        return scores


class Base2(Plain):
    """Works with powers of two throughout, and gives the log-sum-exp that it has."""

    name = "base-2"

    def lse(self, top: Array, total: Array) -> Array:
        """Give the logarithm to the base of 2."""
        return super().lse(top, total) / np.log(2)


class WideWindowInDecoding(Plain):
    """Counts the token itself apart from the window, in the kernel for one query only."""

    name = "wide-window-in-decoding"

    def window(self, p: Array, j: Array, left: int | None, right: int | None) -> Array:
        """Show one key more where there is one row."""
        return super().window(p, j, left if left is None or p.shape[-2] > 1 else left + 1, right)


class TopLeftInDecoding(Plain):
    """Lets the only query of a decoding step stand on the first key."""

    name = "top-left-in-decoding"

    def positions(self, operands: ak.Operands) -> tuple[Array, Array]:
        """Give positions as if query and keys began together where there is one row and no offset."""
        p, j = super().positions(operands)
        given = operands.query_offset is not None
        return (p if given or operands.query_length != 1 else np.zeros_like(p)), j


class AllZero(Plain):
    """Gives zeros of the right shape and type."""

    name = "all-zero"

    def finish(self, output: Array, query: Array, request: ak.AttentionRequest) -> Array:
        """Forget the result."""
        return super().finish(np.zeros_like(output), query, request)


class BarelyCorrelated(Plain):
    """Gives numbers of the right size, whose correlation with the right ones is 0.13."""

    name = "barely-correlated"

    def finish(self, output: Array, query: Array, request: ak.AttentionRequest) -> Array:
        """Mix a little of the result with noise of its size."""
        noise = np.random.default_rng(0).standard_normal(output.shape) * output.std() if output.size else output
        return super().finish(0.13 * output + np.sqrt(1 - 0.13**2) * noise, query, request)


def _backend(kind: type[Plain]) -> Callable[[], Subject]:
    return lambda: unregistered(kind())


KNOWN_FAULTS = (
    KnownFault("an adapter drops is_causal", "ATTN-CAUSAL-001", "row i sees key j where j <=", _backend(DropsCausal)),
    KnownFault(
        "an unknown option is ignored", "ATTN-SOFTCAP-001", "soft-cap", _backend(IgnoresUnknownOptions)
    ),
    KnownFault("a log-sum-exp to the base of 2", "ATTN-LSE-001", "natural logarithm", _backend(Base2)),
    KnownFault(
        "a window of W + 1 in decoding only", "ATTN-CACHE-ATTEND-002", "the rows of attention over everything at once",
        _backend(WideWindowInDecoding),
    ),
    KnownFault(
        "an over-long crop leaves -2 tokens", "ATTN-CACHE-CUT-002", "more than is held",
        _backend(OverCrops),
    ),
    KnownFault(
        "an overflow raises after the cache has advanced", "ATTN-CACHE-FAIL-001", "before anything is written",
        _backend(Advances),
    ),
    KnownFault(
        "a quantised crop counts 9 tokens and holds 7", "ATTN-CACHE-CODEC-004", "are the same tokens",
        _backend(CropsTooMuch),
    ),
    KnownFault(
        "padding is written over the last token", "ATTN-CACHE-APPEND-004", "never wrapped", _backend(WrapsPadding)
    ),
    KnownFault("forks share a page", "ATTN-CACHE-FORK-001", "may diverge at once", _backend(SharesTheTail)),
    KnownFault("repeating does nothing", "ATTN-CACHE-BATCH-001", "as in a list", _backend(RepeatsNothing)),
    KnownFault(
        "top-left causal in decoding", "ATTN-CAUSAL-001", "bottom-right alignment", _backend(TopLeftInDecoding)
    ),
    KnownFault("an output of zeros", "ATTN-API-002", "the mean of the values", _backend(AllZero)),
    KnownFault("a correlation of 0.13", "ATTN-API-002", "the mean of the values", _backend(BarelyCorrelated)),
)  # fmt: skip


def mistakes() -> Iterator[str]:
    """Say what is wrong about any of them."""
    for fault in KNOWN_FAULTS:
        yield from fault.mistakes()
