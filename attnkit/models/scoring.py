"""Negative log-likelihood and perplexity of a text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from attnkit.cache.base import KVCache
from attnkit.errors import ShapeError
from attnkit.models.llama import Array, Llama

_ROWS = 128  # rows of logits held at once: 50 MB in float64 for a vocabulary of 49152


@dataclass(frozen=True, slots=True)
class Score:
    """How well a model predicts a text.

    Attributes
    ----------
    nll
        Mean negative log-likelihood of a token given those before it, in nats.
    tokens
        How many tokens were predicted: all but the first.
    """

    nll: float
    tokens: int

    @property
    def perplexity(self) -> float:
        """The exponential of ``nll``; infinite where that overflows."""
        return math.exp(self.nll) if self.nll < 700 else math.inf


def score(model: Llama, token_ids: Sequence[int], *, chunk: int | None = None, cache: KVCache | None = None) -> Score:
    """Score token ids.

    Parameters
    ----------
    model
        The model.
    token_ids
        ``[T]``, at least two and at most the model's context.
    chunk
        Feed so many tokens at a time through a KV cache, which does not change the score; ``None`` = as many as the
        cache takes, or all at once where there is none.
    cache
        An empty cache of one sequence to score through, of any layout and codec, so that the score tells what they
        cost; default: a contiguous one where there is a ``chunk``, else none.

    Raises
    ------
    ShapeError
        If there are too few or too many tokens, ``chunk < 1``, or the cache is not empty.
    CacheCapacityError
        If the cache does not take ``chunk`` tokens at once, or all of them.
    """
    ids = np.asarray(token_ids)
    if chunk is not None and chunk < 1:
        raise ShapeError(f"chunk must be >= 1, got {chunk}")
    if ids.ndim != 1 or len(ids) < 2:
        raise ShapeError(f"token_ids must be [T] with at least 2 tokens, got {list(ids.shape)}")
    if len(ids) > model.config.max_positions:
        raise ShapeError(f"token_ids has {len(ids)} tokens; the context of the model is {model.config.max_positions}")
    if cache is not None and cache.next_position.tolist() != [0]:
        raise ShapeError(f"cache must hold one empty sequence, next_position is {cache.next_position.tolist()}")
    inputs, targets = ids[:-1], ids[1:]
    if cache is None and chunk is not None:
        cache = model.make_cache(max_length=len(inputs))
    size = chunk or (cache is not None and cache.config.max_append) or len(inputs)
    total = 0.0
    for start in range(0, len(inputs), size):
        piece = slice(start, start + size)
        total += _surprise(model, model.hidden(inputs[piece], cache), targets[piece])
    return Score(total / len(targets), len(targets))


def _surprise(model: Llama, hidden: Array, targets: np.ndarray[Any, Any]) -> float:
    """Sum the negative log-likelihoods of targets ``[T]`` given hidden vectors ``[T, n]``."""
    blocks = [slice(start, start + _ROWS) for start in range(0, len(targets), _ROWS)]
    return sum(_block_surprise(model.to_numpy(model.logits(hidden[rows])), targets[rows]) for rows in blocks)


def _block_surprise(logits: np.ndarray[Any, Any], targets: np.ndarray[Any, Any]) -> float:
    scores = logits.astype(np.float64)
    scores -= scores.max(axis=-1, keepdims=True)
    chosen = scores[np.arange(len(targets)), targets]
    return float((np.log(np.exp(scores).sum(axis=-1)) - chosen).sum())
