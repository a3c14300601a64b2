"""Generation: prefill the prompt, then one token at a time, through the KV cache."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from attnkit.arrays import namespace
from attnkit.cache.base import KVCache
from attnkit.errors import ShapeError
from attnkit.models.llama import Array, Llama
from attnkit.models.room import check_room
from attnkit.models.tokenizer import Tokenizer

Chooser = Callable[[Array], int]


@dataclass(slots=True)
class GenerationStats:
    """Tokens and seconds of the two phases; the first new token is chosen from the prefill's logits."""

    prompt_tokens: int = 0
    prefill_seconds: float = 0.0
    decode_tokens: int = 0
    decode_seconds: float = 0.0
    cache_bytes: int = 0

    @property
    def prefill_rate(self) -> float:
        """Prompt tokens per second."""
        return self.prompt_tokens / self.prefill_seconds if self.prefill_seconds else math.nan

    @property
    def decode_rate(self) -> float:
        """Decode steps per second; NaN if no step was needed."""
        return self.decode_tokens / self.decode_seconds if self.decode_seconds else math.nan


class Generation(Iterator[int]):
    """New token ids, computed as they are asked for; ``stats`` grows with them."""

    def __init__(
        self,
        model: Llama,
        cache: KVCache,
        prompt: Sequence[int],
        choose: Chooser,
        max_tokens: int,
        stops: frozenset[int],
    ) -> None:
        self.stats = GenerationStats(prompt_tokens=len(prompt))
        self._model = model
        self._cache = cache
        self._tokens = self._run(prompt, choose, max_tokens, stops)

    def __next__(self) -> int:
        return next(self._tokens)

    @property
    def cache(self) -> KVCache:
        """Keys and values of the prompt and of all new tokens but the last."""
        return self._cache

    def _run(self, prompt: Sequence[int], choose: Chooser, max_tokens: int, stops: frozenset[int]) -> Iterator[int]:
        token = self._prefill(prompt, choose)
        for left in range(max_tokens - 1, -1, -1):
            if token in stops:
                return
            yield token
            if left:
                token = self._decode(token, choose)

    def _prefill(self, prompt: Sequence[int], choose: Chooser) -> int:
        start = time.perf_counter()
        token = choose(prefill(self._model, prompt, self._cache))
        self.stats.prefill_seconds = time.perf_counter() - start
        self.stats.cache_bytes = self._cache.nbytes
        return token

    def _decode(self, last: int, choose: Chooser) -> int:
        start = time.perf_counter()
        token = choose(self._model.forward([last], self._cache))
        self.stats.decode_seconds += time.perf_counter() - start
        self.stats.decode_tokens += 1
        self.stats.cache_bytes = self._cache.nbytes
        return token


def generate(
    model: Llama,
    tokenizer: Tokenizer,
    prompt_ids: Sequence[int],
    *,
    max_tokens: int,
    temperature: float = 0.0,
    seed: int = 0,
    stop_ids: Iterable[int] | None = None,
    cache: KVCache | None = None,
) -> Generation:
    """Continue a prompt.

    Parameters
    ----------
    model, tokenizer
        What ``load_model`` gives.
    prompt_ids
        ``[T]`` token ids, at least one.
    max_tokens
        Most tokens to give, >= 1.
    temperature
        0 takes the most probable token each time; otherwise tokens are drawn from ``softmax(logits / temperature)``.
    seed
        Seed of the draws: equal logits and seed give equal tokens.
    stop_ids
        Tokens that end the text, and are not given; the tokenizer's by default.
    cache
        Holds one sequence, of any layout; the tokens that it has are taken to be the first ones of the prompt. Default:
        a contiguous one.

    Returns
    -------
    An iterator of token ids with ``stats``.

    Raises
    ------
    ShapeError
        If an argument is out of range, or prompt and new tokens do not fit in the model's context.
    CacheCapacityError
        If they can never fit in the cache.
    """
    prompt = list(prompt_ids)
    check_temperature(temperature)
    check_room(model, cache, len(prompt), max_tokens)
    cache = cache_for(model, cache, len(prompt), max_tokens)
    return Generation(
        model, cache, prompt, chooser(model, temperature, seed), max_tokens, stops_of(tokenizer, stop_ids)
    )


def prefill(model: Llama, token_ids: Sequence[int], cache: KVCache) -> Array:
    """Append the rest of a prompt to a cache of one sequence, as many tokens at a time as it takes.

    Parameters
    ----------
    token_ids
        ``[T]``, of which the cache has the first ``next_position``, fewer than ``T``.

    Returns
    -------
    The logits after the last token, ``[1, V]``.
    """
    start, stop = int(cache.next_position[0]), len(token_ids)
    step = cache.config.max_append or stop
    last = stop - 1 - (stop - 1 - start) % step
    for first in range(start, last, step):
        model.hidden(token_ids[first : first + step], cache)
    return model.forward(token_ids[last:], cache)


def check_temperature(temperature: float) -> None:
    """Raise ``ShapeError`` unless a temperature is finite and not negative."""
    if not (math.isfinite(temperature) and temperature >= 0):
        raise ShapeError(f"temperature must be finite and >= 0, got {temperature}")


def chooser(model: Llama, temperature: float, seed: int) -> Chooser:
    """Give what chooses tokens at a temperature."""
    return greedy if temperature == 0 else sampler(model, temperature, seed)


def greedy(logits: Array) -> int:
    """Take the most probable token of the last row of logits ``[T, V]``, where they are; the lowest id of equals."""
    return int(namespace(logits).argmax(logits[-1]))


def sampler(model: Llama, temperature: float, seed: int) -> Chooser:
    """Draw a token from the last row of logits ``[T, V]``, in float64 so that the probabilities add up to 1."""
    generator = np.random.default_rng(seed)

    def choose(logits: Array) -> int:
        scores = model.to_numpy(logits[-1]).astype(np.float64) / temperature
        weights = np.exp(scores - scores.max())
        return int(generator.choice(weights.size, p=weights / weights.sum()))

    return choose


def stops_of(tokenizer: Tokenizer, stop_ids: Iterable[int] | None) -> frozenset[int]:
    """Give the tokens that end a text: those asked for, or the tokenizer's."""
    return frozenset(tokenizer.stop_ids if stop_ids is None else stop_ids)


def cache_for(model: Llama, cache: KVCache | None, prompt: int, max_tokens: int) -> KVCache:
    """Give the cache of a text: the one given, which must hold a beginning of its prompt, or one that just holds it.

    Raises
    ------
    ShapeError
        If it does not hold one sequence, or leaves no token of the prompt to compute with.
    """
    if cache is None:
        return model.make_cache(max_length=prompt + max_tokens)
    if cache.batch_size != 1:
        raise ShapeError(f"cache must hold one sequence, got {cache.batch_size}; generate_batch takes several prompts")
    held = int(cache.next_position[0])
    if held >= prompt:
        raise ShapeError(
            f"cache must hold a beginning of the prompt, at most {prompt - 1} of its {prompt} tokens, got {held}; "
            "truncate it, so that there is a token to compute with"
        )
    return cache
