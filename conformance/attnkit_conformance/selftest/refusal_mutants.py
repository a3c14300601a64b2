"""Faults in what is refused: what is dropped or taken though it is not declared, and what is refused though it is."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

import attnkit as ak
from attnkit_conformance.selftest.faults import fault
from attnkit_conformance.selftest.plain import EVERYTHING, Array, Plain


def without(*codes: str) -> ak.Capabilities:
    lacking: dict[str, Any] = dict.fromkeys(codes, False)
    return replace(EVERYTHING, **lacking)


def silent(*codes: str) -> Any:
    """Refuse less than what is not declared."""

    def unsupported(self: Plain, request: ak.AttentionRequest, path: str | None = None) -> list[ak.Reason]:
        return [reason for reason in ak.Backend.unsupported(self, request, path) if reason.code not in codes]

    return unsupported


def refusing(code: str, used: Any) -> Any:
    """Refuse what is declared."""

    def unsupported(self: Plain, request: ak.AttentionRequest, path: str | None = None) -> list[ak.Reason]:
        reasons = ak.Backend.unsupported(self, request, path)
        return [*reasons, ak.Reason(code, code, "absent", "given")] if used(request) else reasons

    return unsupported


def empty_handed(self: Plain, request: ak.AttentionRequest, path: str | None = None) -> list[ak.Reason]:
    return [replace(reason, required="", actual="") for reason in ak.Backend.unsupported(self, request, path)]


def renamed(self: Plain, request: ak.AttentionRequest, path: str | None = None) -> list[ak.Reason]:
    return [replace(reason, code="unsupported") for reason in ak.Backend.unsupported(self, request, path)]


class SaysYesAndRefuses(Plain):
    """Says that it takes a soft-cap, which it neither declares nor takes."""

    declared = without("softcap")

    def unsupported(self, request: ak.AttentionRequest, path: str | None = None) -> list[ak.Reason]:
        return super().unsupported(request._replace(softcap=None), path)

    def attention(self, query: Array, key: Array, value: Array, operands: Any, request: Any) -> ak.AttentionOutput:
        reasons = super().unsupported(request)
        if reasons:
            raise ak.UnsupportedError("it does not take this call:", {self.name: tuple(reasons)})
        return super().attention(query, key, value, operands, request)


class GivesUp(Plain):
    """Gives up in the middle of a call."""

    declared = without("sinks")
    unsupported = silent("sinks")

    def sinks(self, operands: ak.Operands, request: ak.AttentionRequest) -> Array | None:
        if operands.sinks is not None:
            raise NotImplementedError("sinks")
        return None


def unwrapped(self: Plain, *arrays: Any) -> Any:
    return tuple(np.asarray(getattr(array, "_array", array)) for array in arrays)


def everything(self: Plain, p: Array, *others: Any) -> Array:
    return p == p


DROPPED: dict[str, dict[str, Any]] = {
    "window": {"window": everything},
    "prefix": {"prefix": everything},
    "chunked": {"chunked": everything},
    "documents": {"documents": lambda self, ids_q, ids_k: np.True_},
    "dense": {"dense": lambda self, array: np.True_},
    "bias": {"bias": lambda self, operands, request: 0},
    "alibi": {"alibi": lambda self, operands, request: 0},
    "softcap": {"cap": lambda self, scores, request: scores},
    "sinks": {"sinks": lambda self, operands, request: None},
    "lengths": {"valid": lambda self, lengths, size: np.ones((1, size), bool)},
    "offsets": {"positions": lambda self, operands: operands._replace(query_offset=None, key_offset=None).positions()},
}
REFUSAL_MUTANTS = [
    *(fault(f"undeclared_{code}_dropped", "TestApplied", declared=without(code), unsupported=silent(code), **members)
      for code, members in DROPPED.items()),
    fault("undeclared_dropped", "TestApplied", declared=without("alibi", "sinks"), unsupported=silent("alibi", "sinks"),
          alibi=lambda self, operands, request: 0, sinks=lambda self, operands, request: None),
    fault("undeclared_applied", "TestApplied", declared=without("softcap"), unsupported=silent("softcap")),
    fault("undeclared_gqa", "TestGroupedHeads", declared=without("gqa"), unsupported=silent("gqa")),
    fault("undeclared_dtype", "TestNumerics", declared=replace(EVERYTHING, dtypes=frozenset({"float32"})),
          unsupported=silent("dtypes")),
    fault("undeclared_head_dim", "TestNumerics::test_head_sizes", unsupported=silent("head_dims"),
          declared=replace(EVERYTHING, head_dims=ak.Sizes(8, 128, 8))),
    fault("undeclared_key_length", "TestOneHot", declared=replace(EVERYTHING, max_key_length=1024),
          unsupported=silent("max_key_length")),
    fault("undeclared_lse", "TestMerge", declared=without("lse"), unsupported=silent("lse")),
    fault("undeclared_lengths_in_a_cache", "TestCacheEquivalence::test_ragged_appends",
          declared=without("lengths"), unsupported=silent("lengths")),
    fault("undeclared_type_of_a_cache", "TestOwnership::test_queries_of_another_type",
          declared=without("kv_dtype"), unsupported=silent("kv_dtype")),
    fault("declared_refused", "TestApplied",
          unsupported=refusing("window", lambda request: request.mask.left is not None)),
    fault("declared_refused_as_a_path", "TestApplied",
          unsupported=refusing("path", lambda request: request.mask.chunks)),
    fault("declared_refused_together", "TestApplied",
          unsupported=refusing("dense", lambda request: request.mask.dense and request.mask.documents)),
    fault("declared_refused_in_rare_company", "TestAgreement",
          unsupported=refusing("sinks", lambda request: request.sinks and request.alibi and request.mask.chunks)),
    fault("refused_though_it_said_yes", "TestAgreement", SaysYesAndRefuses),
    fault("foreign_arrays_taken", "TestRefused", unsupported=silent("libraries"), read=unwrapped),
    fault("gradients_detached", "TestRefused", unsupported=silent("grad")),
    fault("refused_for_one_reason_of_many", "TestApplied", declared=without("alibi", "sinks", "window"),
          unsupported=lambda self, request, path=None: ak.Backend.unsupported(self, request, path)[:1]),
    fault("refused_by_another_error", "TestApplied", GivesUp),
    fault("refused_without_its_code", "TestApplied", declared=without("bias"), unsupported=renamed),
    fault("refused_without_data", "TestHarness::test_refusals_carry_data", declared=without("alibi", "bias"),
          unsupported=empty_handed),
    fault("core_undeclared", "TestMinimum", declared=replace(EVERYTHING, head_dims=ak.Sizes(320, 512, 64))),
    fault("short_keys_only", "TestMinimum", declared=replace(EVERYTHING, max_key_length=32)),
    fault("no_types_declared", "TestHarness::test_the_declaration_makes_sense",
          declared=replace(EVERYTHING, libraries=frozenset())),
    fault("poison_declared_masked", "TestHiddenKeys", declared=replace(EVERYTHING, poison="masked")),
]  # fmt: skip
