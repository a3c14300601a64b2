"""The online softmax: a block of queries meets its keys part by part.

Axes: ``b`` sequences, ``k`` key/value heads, ``G`` query heads of one key/value head, ``n`` queries of a block, ``w``
keys of a tile, ``E`` value head size. Source: Milakov and Gimelshein, Online normalizer calculation for softmax (2018).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class Part(NamedTuple):
    """What a block found among some keys, relative to ``exp(top)`` of each row.

    ``output`` is ``[b, k, G, n, E]``, ``top`` and ``total`` are ``[b, k, G, n, 1]``; ``None`` is a total of 1. In a row
    that sees none of the keys ``total`` is 0 and ``top`` the least finite number, so that differences to it are never
    infinity minus infinity.
    """

    output: Tensor
    top: Tensor
    total: Tensor | None


def softmax(scores: Tensor, value: Tensor) -> Part:
    """Take in a tile: scores ``[b, k, G, n, w]``, overwritten, hidden ones ``-inf``; values ``[b, k, w, E]``."""
    top = scores.amax(-1, keepdim=True).clamp_(min=least(scores))
    weights = scores.sub_(top).exp_()
    output = torch.matmul(weights.flatten(2, 3), value).unflatten(2, scores.shape[2:4])
    return Part(output, top, weights.sum(-1, keepdim=True))


def join(one: Part | None, other: Part) -> Part:
    """Join what a block found among two sets of keys."""
    if one is None:
        return other
    top = torch.maximum(one.top, other.top)
    mine, theirs = (one.top - top).exp_(), (other.top - top).exp_()
    output = (one.output * mine).addcmul_(other.output, theirs)
    return Part(output, top, _times(one.total, mine) + _times(other.total, theirs))


def side_by_side(parts: Sequence[Part]) -> Part:
    """Put what several blocks found, of other sequences each, into one."""
    if len(parts) == 1:
        return parts[0]
    output, top, total = zip(*parts, strict=True)
    return Part(torch.cat(output), torch.cat(top), None if total[0] is None else torch.cat(total))


def finish(part: Part, sinks: Tensor | None) -> tuple[Tensor, Tensor]:
    """Give output ``[b, k, G, n, E]`` and LSE ``[b, k, G, n]``; ``sinks`` are ``[k, G, 1, 1]``."""
    if sinks is not None:
        top = torch.maximum(part.top, sinks)
        shrink = (part.top - top).exp_()
        part = Part(part.output * shrink, top, _times(part.total, shrink) + (sinks - top).exp_())
    if part.total is None:
        return part.output, part.top.squeeze(-1)
    lse = (part.top + part.total.log()).squeeze(-1)
    return part.output / part.total.masked_fill(part.total == 0, 1), lse


def _times(total: Tensor | None, factor: Tensor) -> Tensor:
    return factor if total is None else total * factor


def least(like: Tensor) -> float:
    """Give the least finite number of a tensor's dtype."""
    return float(torch.finfo(like.dtype).min)
