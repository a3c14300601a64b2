"""Speculative decoding: a draft proposes tokens, one pass checks them all, and the cache forgets the wrong ones.

The text is the greedy one whatever the draft proposes, and a good draft saves passes
(https://arxiv.org/abs/2211.17192, with a draft that gives one token and no distribution).

Axes: ``T`` tokens checked together, ``V`` vocabulary.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, takewhile

import numpy as np

from attnkit.arrays import namespace
from attnkit.cache.base import KVCache
from attnkit.errors import CacheCapacityError, ShapeError
from attnkit.models.generation import cache_for, greedy, prefill, stops_of
from attnkit.models.llama import Llama
from attnkit.models.room import check_room
from attnkit.models.tokenizer import Tokenizer

Draft = Callable[[Sequence[int]], Sequence[int]]
"""Takes all tokens of a text so far, and gives those that may come next, any number of them."""


@dataclass(frozen=True, slots=True)
class PromptLookup:
    """A draft that costs nothing: what followed the last time that the text said the same few words.

    Attributes
    ----------
    shortest, longest
        How many tokens at the end of the text are looked for in it: the longest match is taken, and none below the
        shortest, since what one token is followed by is often wrong.
    length
        Most tokens to propose.

    Raises
    ------
    ShapeError
        If not ``1 <= shortest <= longest`` and ``1 <= length``.
    """

    shortest: int = 2
    longest: int = 3
    length: int = 8

    def __post_init__(self) -> None:
        if not 1 <= self.shortest <= self.longest:
            raise ShapeError(f"shortest must lie in 1..longest = 1..{self.longest}, got {self.shortest}")
        if self.length < 1:
            raise ShapeError(f"length must be >= 1, got {self.length}")

    def __call__(self, tokens: Sequence[int]) -> Sequence[int]:
        """Give what followed the latest earlier place that ends like ``tokens``; nothing if there is none."""
        ids = np.asarray(tokens, np.int64)
        for size in range(min(self.longest, len(ids) - 1), self.shortest - 1, -1):
            windows = np.lib.stride_tricks.sliding_window_view(ids[:-1], size)
            found = np.flatnonzero((windows == ids[-size:]).all(axis=1))
            if found.size:
                start = int(found[-1]) + size
                return [int(token) for token in ids[start : start + self.length]]
        return []


@dataclass(slots=True)
class SpeculationStats:
    """What drafts were worth: tokens proposed and accepted, new tokens and the passes and seconds they took."""

    prompt_tokens: int = 0
    drafted: int = 0
    accepted: int = 0
    new_tokens: int = 0
    passes: int = 0
    seconds: float = 0.0


class Speculation(Iterator[int]):
    """New token ids, computed as they are asked for, several at a time; ``stats`` grows with them."""

    def __init__(
        self,
        model: Llama,
        cache: KVCache,
        prompt: Sequence[int],
        draft: Draft,
        max_draft: int,
        max_tokens: int,
        stops: frozenset[int],
    ) -> None:
        self.stats = SpeculationStats(prompt_tokens=len(prompt))
        self.cache = cache
        self._model = model
        self._draft = draft
        self._max_draft = max_draft
        self._stops = stops
        self._tokens = self._run(list(prompt), max_tokens)

    def __next__(self) -> int:
        return next(self._tokens)

    def _run(self, tokens: list[int], max_tokens: int) -> Iterator[int]:
        end = len(tokens) + max_tokens
        new = [greedy(prefill(self._model, tokens, self.cache))]
        while True:
            going_on = list(takewhile(lambda token: token not in self._stops, new))
            for token in going_on:
                self.stats.new_tokens += 1
                yield token
            tokens += going_on
            if len(going_on) < len(new) or len(tokens) == end:
                return
            new = self._step(tokens, end - len(tokens))

    def _step(self, tokens: list[int], left: int) -> list[int]:
        """Give the next tokens, at least one and at most ``left``; the cache then holds all but the last of them."""
        start = time.perf_counter()
        draft = self._proposed(tokens, min(self._max_draft, left - 1))
        logits = self._model.forward([tokens[-1], *draft], self.cache, all_logits=True)
        best = self._model.to_numpy(namespace(logits).argmax(logits, axis=-1)).tolist()
        right = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(draft, best, strict=False)))
        self.cache.drop(len(draft) - right)
        self.stats.drafted += len(draft)
        self.stats.accepted += right
        self.stats.passes += 1
        self.stats.seconds += time.perf_counter() - start
        return [int(token) for token in best[: right + 1]]

    def _proposed(self, tokens: list[int], most: int) -> list[int]:
        """Give the draft, up to a stop token: what would come after it is no part of the text."""
        draft = takewhile(lambda token: token not in self._stops, self._draft(tuple(tokens)))
        return list(islice(draft, most))


def speculate(
    model: Llama,
    tokenizer: Tokenizer,
    prompt_ids: Sequence[int],
    *,
    max_tokens: int,
    draft: Draft | None = None,
    max_draft: int = 8,
    stop_ids: Iterable[int] | None = None,
    cache: KVCache | None = None,
) -> Speculation:
    """Continue a prompt with the most probable tokens, as ``generate`` does at temperature 0, in fewer passes.

    Parameters
    ----------
    model, tokenizer, prompt_ids, max_tokens, stop_ids, cache
        As in ``generate``.
    draft
        Proposes what may come next; default: ``PromptLookup()``.
    max_draft
        Most proposed tokens to check in one pass, >= 1; more are not looked at.

    Returns
    -------
    An iterator of token ids with ``stats``.

    Raises
    ------
    ShapeError
        As in ``generate``, or if ``max_draft < 1``.
    CacheCapacityError
        As in ``generate``, or if the cache does not take a draft and the token before it in one append.
    """
    prompt = list(prompt_ids)
    check_room(model, cache, len(prompt), max_tokens)
    if max_draft < 1:
        raise ShapeError(f"max_draft must be >= 1, got {max_draft}")
    cache = cache_for(model, cache, len(prompt), max_tokens)
    most = cache.config.max_append
    if most is not None and max_draft + 1 > most:
        raise CacheCapacityError(
            f"max_draft = {max_draft} tokens are appended with the one before them, the ring takes max_append = {most} "
            f"at a time; make max_draft at most {most - 1}, or the cache with a larger max_append"
        )
    stops = stops_of(tokenizer, stop_ids)
    return Speculation(model, cache, prompt, draft or PromptLookup(), max_draft, max_tokens, stops)
