"""What a call means, in words: for people who never saw Python."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from attnkit_conformance.cases import Case

_TERMS: Final = {
    "causal": "causal: a query at position p sees key position j where j <= p",
    "window": "window: p - left < j <= p + right; - is unlimited",
    "prefix": "prefix: j < n, or j <= p",
    "chunked": "chunked: floor(j / n) == floor(p / n)",
    "documents": "documents: the ids of query and key are equal",
    "dense": "dense: 1 = visible, broadcast to [B, H, T, S]",
}
_OPTIONS: Final = {
    "softcap": "the scaled product s becomes softcap * tanh(s / softcap), before anything is added",
    "bias": "bias is added to the scores, broadcast to [B, H, T, S]; -inf hides a key",
    "alibi": "slope * |query position - key position| is subtracted from the scores; slopes [H] or [B, H]",
    "sinks": "a sink [H] joins the softmax as one more key without a value",
    "kv_lengths": "keys from kv_lengths on do not exist, whatever lies there",
    "query_lengths": "rows from query_lengths on are padding: output 0, LSE -inf without a sink",
}


def semantics(case: Case, options: Mapping[str, Any]) -> tuple[str, ...]:
    """Say what a call means, a sentence a line."""
    lines = ["output = softmax(scale * query . key + what is added) . value, over the visible keys of each row"]
    if case.heads != case.kv_heads:
        lines.append(f"query head h reads key/value head h / {case.heads // case.kv_heads}, rounded down")
    mask = options.get("mask")
    if mask is not None:
        lines += ["a key is visible where every term of the mask says so"]
        lines += [_TERMS[kind] for kind in dict.fromkeys(term[0] for term in mask.terms)]
        lines += [_positions(options)]
    lines += [text for name, text in _OPTIONS.items() if name in options]
    lines.append("a row that sees no key has output 0, and LSE -inf unless it has a sink")
    return tuple(lines)


def _positions(options: Mapping[str, Any]) -> str:
    first = "query_offset" if "query_offset" in options else "key_offset + key count - query count"
    key = "key_offset" if "key_offset" in options else "0"
    return f"query i stands at position {first} + i, key j at position {key} + j; counts are the lengths where given"
