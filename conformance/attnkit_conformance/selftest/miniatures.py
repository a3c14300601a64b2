"""Miniatures: the bad backends that everyone would expect a suite to reject, each as small as can be.

They are targets: ``attnkit_conformance.selftest.miniatures:AlwaysZero`` names one on a command line, so that those
that crash or hang can be run in a process of their own.
"""

from __future__ import annotations

import ctypes
import os
import time
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import attnkit as ak
from attnkit_conformance.results import Status
from attnkit_conformance.selftest.own_faults import CropsTooMuch, SharesTheTail, WrapsPadding
from attnkit_conformance.selftest.plain import EVERYTHING, Array, Plain


class AlwaysZero(Plain):
    """Gives zeros."""

    name = "always-zero"

    def finish(self, output: Array, query: Array, request: ak.AttentionRequest) -> Array:
        """Give zeros."""
        return super().finish(0 * output, query, request)


class MeanOfValues(Plain):
    """Gives the mean of the values that a row sees, whatever query and key are."""

    name = "mean-of-values"

    def products(self, query: Array, key: Array) -> Array:
        """Let every key weigh the same."""
        return 0 * super().products(query, key)


class ClaimsEverything(Plain):
    """Declares all there is, and can do unmasked and causal attention."""

    name = "claims-everything"
    declared = replace(EVERYTHING, grad=True, poison="masked")

    def visible(self, operands: ak.Operands, request: ak.AttentionRequest) -> Array:
        """Know of nothing but causal."""
        p, j = self.positions(operands)
        return self.causal(p, j) if request.mask.causal else np.ones_like(p + j, bool)

    def scores(self, query: Array, key: Array, operands: ak.Operands, request: ak.AttentionRequest) -> Array:
        """Know of no term but the scale."""
        del operands
        return self.scaled_products(query, key, request)


class RaisesEverything(Plain):
    """Raises on every call."""

    name = "raises-everything"

    def attention(self, *arguments: Any, **options: Any) -> ak.AttentionOutput:
        """Raise."""
        del arguments, options
        raise RuntimeError("nothing works here")


class Crashes(Plain):
    """Ends its process."""

    name = "crashes"

    def attention(self, *arguments: Any, **options: Any) -> ak.AttentionOutput:
        """Leave without a word."""
        del arguments, options
        os._exit(3)


class Segfaults(Plain):
    """Reads from address 0."""

    name = "segfaults"

    def attention(self, *arguments: Any, **options: Any) -> ak.AttentionOutput:
        """Be stopped by the system."""
        del arguments, options
        ctypes.string_at(0)
        raise AssertionError("the system let it read from address 0")


class Hangs(Plain):
    """Never answers."""

    name = "hangs"

    def attention(self, *arguments: Any, **options: Any) -> ak.AttentionOutput:
        """Sleep."""
        del arguments, options
        while True:
            time.sleep(1)


class NaNEverywhere(Plain):
    """Gives NaN."""

    name = "nan-everywhere"

    def finish(self, output: Array, query: Array, request: ak.AttentionRequest) -> Array:
        """Give NaN."""
        return super().finish(np.full_like(output, np.nan), query, request)


class MutatesInputs(Plain):
    """Gives the right answer and leaves zeros in the query."""

    name = "mutates-inputs"

    def attention(self, query: Array, key: Array, value: Array, operands: Any, request: Any) -> ak.AttentionOutput:
        """Compute one call, then overwrite the query."""
        result = super().attention(query, key, value, operands, request)
        if query.flags.writeable:
            query[...] = 0
        return result


class ReturnsViews(Plain):
    """Gives a view of the values where they are the answer: where there is one key."""

    name = "returns-views"

    def attention(self, query: Array, key: Array, value: Array, operands: Any, request: Any) -> ak.AttentionOutput:
        """Compute one call, and save a copy."""
        output, lse = super().attention(query, key, value, operands, request)
        same = key.shape[2] == 1 and output.shape == value.shape and np.array_equal(output, value)
        return ak.AttentionOutput(value if same else output, lse)


class StaleBuffer(Plain):
    """Gives what the last call of these shapes computed."""

    name = "stale-buffer"

    def __init__(self) -> None:
        self.buffers: dict[Any, ak.AttentionOutput] = {}

    def attention(self, query: Array, key: Array, value: Array, operands: Any, request: Any) -> ak.AttentionOutput:
        """Compute one call, and give another one's result."""
        result = super().attention(query, key, value, operands, request)
        stale = self.buffers.get((result.output.shape, request.dtype, request.lse), result)
        self.buffers[result.output.shape, request.dtype, request.lse] = result
        return stale


class MemoisesByPointer(Plain):
    """Remembers results by where the arrays lie, and keeps the arrays, so that nothing else comes to lie there."""

    name = "memoises-by-pointer"

    def __init__(self) -> None:
        self.known: dict[Any, Any] = {}

    def attention(self, query: Array, key: Array, value: Array, operands: Any, request: Any) -> ak.AttentionOutput:
        """Compute a call once for each place of its arrays."""
        arrays = (query, key, value)
        place = (request, *(array.__array_interface__["data"][0] for array in arrays), *map(str, operands))
        if place not in self.known:
            self.known[place] = (super().attention(*arrays, operands, request), arrays)
        output, lse = self.known[place][0]
        return ak.AttentionOutput(output.copy(), lse)


class SaysYesAndRefuses(Plain):
    """Says that it takes a soft-cap, which it neither declares nor takes."""

    name = "says-yes-and-refuses"
    declared = replace(EVERYTHING, softcap=False)

    def unsupported(self, request: ak.AttentionRequest, path: str | None = None) -> list[ak.Reason]:
        """Say yes to a soft-cap."""
        return super().unsupported(request._replace(softcap=None), path)

    def attention(self, query: Array, key: Array, value: Array, operands: Any, request: Any) -> ak.AttentionOutput:
        """Refuse it all the same, with the right code."""
        self.refuse(request)
        return super().attention(query, key, value, operands, request)

    def refuse(self, request: ak.AttentionRequest, path: str | None = None) -> None:
        """Refuse a soft-cap."""
        reasons = super().unsupported(request, path)
        if reasons:
            raise ak.UnsupportedError("it does not take this call:", {self.name: tuple(reasons)})


class SaysNoAndAnswers(Plain):
    """Says no to windows when it is asked about a call, and answers when the call is made."""

    name = "says-no-and-answers"

    def __init__(self) -> None:
        self.asked: set[ak.AttentionRequest] = set()

    def unsupported(self, request: ak.AttentionRequest, path: str | None = None) -> list[ak.Reason]:
        """Say no the second time: the first time it is asked so as to choose a path for the call."""
        again = request in self.asked
        self.asked.add(request)
        no = [ak.Reason("window", "mask", "no window", "a window")] if again and request.mask.left is not None else []
        return [*super().unsupported(request, path), *no]


@dataclass(frozen=True, slots=True)
class Miniature:
    """A bad backend, and what the suite must make of it.

    Attributes
    ----------
    kind
        The backend.
    requirements
        Ids of requirements that it must fail.
    status
        What its items must come to, where it runs in a process of its own.
    only
        Patterns for the items that show it, where those of its requirements are many.
    """

    kind: type[Plain]
    requirements: tuple[str, ...]
    status: Status = "FAIL"
    only: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.kind.name

    @property
    def target(self) -> str:
        """How a command line names it."""
        return f"{self.kind.__module__}:{self.kind.__name__}"

    @property
    def is_safe(self) -> bool:
        """It may be run in this process."""
        return self.status == "FAIL"

    @property
    def is_broken(self) -> bool:
        """It fails before anything is said about attention, at level 0."""
        return any(requirement.startswith("ATTN-API-") for requirement in self.requirements)


MINIATURES = (
    Miniature(AlwaysZero, ("ATTN-API-002",)),
    Miniature(MeanOfValues, ("ATTN-MASK-001", "ATTN-LSE-001")),
    Miniature(
        ClaimsEverything, ("ATTN-WINDOW-001", "ATTN-BIAS-001", "ATTN-LEN-001"), only=("ATTN-[WBL]*::test_applied_or_*",)
    ),
    Miniature(RaisesEverything, ("ATTN-API-002",)),
    Miniature(Crashes, ("ATTN-API-002",), "CRASH"),
    Miniature(Segfaults, ("ATTN-API-002",), "CRASH"),
    Miniature(Hangs, ("ATTN-API-002",), "TIMEOUT"),
    Miniature(NaNEverywhere, ("ATTN-API-002",)),
    Miniature(MutatesInputs, ("ATTN-OWN-001",)),
    Miniature(ReturnsViews, ("ATTN-OWN-002",)),
    Miniature(StaleBuffer, ("ATTN-OWN-002",)),
    Miniature(MemoisesByPointer, ("ATTN-MEM-001",)),
    Miniature(SaysYesAndRefuses, ("ATTN-AGREE-001",), only=("*[[]requests[0-4]-*",)),
    Miniature(SaysNoAndAnswers, ("ATTN-AGREE-001",), only=("*[[]requests[0-4]-*",)),
    Miniature(CropsTooMuch, ("ATTN-CACHE-CODEC-004",)),
    Miniature(WrapsPadding, ("ATTN-CACHE-APPEND-004",)),
    Miniature(SharesTheTail, ("ATTN-CACHE-FORK-001",)),
)
