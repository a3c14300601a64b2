"""Faults that only show in company: what works alone and is lost beside something else."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import attnkit as ak
from attnkit_conformance.selftest.faults import fault
from attnkit_conformance.selftest.plain import Array, Plain


def alibi_for_bias(self: Plain, operands: ak.Operands, request: ak.AttentionRequest) -> Any:
    """Put ALiBi in the place of a bias."""
    return 0 if operands.alibi is not None else Plain.bias(self, operands, request)


def no_sinks_with_documents(self: Plain, operands: ak.Operands, request: ak.AttentionRequest) -> Array | None:
    return None if operands.documents else Plain.sinks(self, operands, request)


def no_cap_in_grouped_decoding(self: Plain, scores: Array, request: ak.AttentionRequest) -> Array:
    """Forget the soft-cap in the kernel that packs the heads of a group into the rows of a tile."""
    return scores if request.group > 1 and request.query_length == 1 else Plain.cap(self, scores, request)


class OffsetsForLengths(Plain):
    """Knows offsets and lengths, one of them at a time."""

    def positions(self, operands: ak.Operands) -> tuple[Array, Array]:
        if operands.kv_lengths is not None and operands.query_offset is not None:
            operands = operands._replace(query_offset=None)
        return super().positions(operands)


PRESENT: dict[str, Any] = {
    "causal": lambda mask: mask.causal,
    "window": lambda mask: mask.left is not None or mask.right is not None,
    "prefix": lambda mask: mask.prefix is not None,
    "chunked": lambda mask: mask.chunks,
    "documents": lambda mask: mask.documents,
    "dense": lambda mask: mask.dense,
}
ABSENT: dict[str, dict[str, Any]] = {
    "causal": {"causal": False},
    "window": {"left": None, "right": None},
    "prefix": {"prefix": None},
    "chunked": {"chunks": ()},
    "documents": {},
    "dense": {},
}


def losing(lost: str, beside: str) -> Any:
    """Forget one kind of mask where another one is there."""

    def visible(self: Plain, operands: ak.Operands, request: ak.AttentionRequest) -> Array:
        if PRESENT[lost](request.mask) and PRESENT[beside](request.mask):
            request = request._replace(mask=request.mask._replace(**ABSENT[lost]))
            operands = operands._replace(
                documents=() if lost == "documents" else operands.documents,
                dense=() if lost == "dense" else operands.dense,
            )
        return Plain.visible(self, operands, request)

    return visible


def scale_of_value_in_groups(self: Plain, request: ak.AttentionRequest) -> float:
    """Take the default scale from the value where there are groups."""
    default = request.scale == request.head_dim**-0.5 and request.group > 1
    return request.value_dim**-0.5 if default else request.scale


COMPANY = [
    fault("alibi_replaces_bias", "TestCombinations", bias=alibi_for_bias),
    fault("sinks_lost_with_documents", "TestCombinations", sinks=no_sinks_with_documents),
    fault("softcap_lost_in_grouped_decoding", "TestCombinations", cap=no_cap_in_grouped_decoding),
    fault("offsets_lost_with_lengths", "TestCombinations", OffsetsForLengths),
    fault("value_scale_in_groups", "TestCombinations", scale=scale_of_value_in_groups),
]
MASKS = [
    fault(f"{lost}_lost_with_{beside}", "TestAttendance", visible=losing(lost, beside))
    for lost, beside in permutations(PRESENT, 2)
    if {lost, beside} != {"causal", "prefix"}  # which may not be joined
]

COMBINATION_MUTANTS = [*COMPANY, *MASKS]
