"""Generation of several texts together, on a ``ContinuousBatch``."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from attnkit.cache.base import KVCache
from attnkit.models.batching import ContinuousBatch
from attnkit.models.generation import check_temperature, chooser, stops_of
from attnkit.models.llama import Llama
from attnkit.models.requests import Request
from attnkit.models.tokenizer import Tokenizer


@dataclass(slots=True)
class BatchStats:
    """Tokens, seconds and steps of all texts together."""

    prompt_tokens: int = 0
    new_tokens: int = 0
    steps: int = 0
    seconds: float = 0.0
    cache_bytes: int = 0

    @property
    def rate(self) -> float:
        """New tokens per second, prompts included in the time; NaN before the first step."""
        return self.new_tokens / self.seconds if self.seconds else math.nan


class BatchGeneration(Iterator[tuple[int, list[int]]]):
    """Finished texts, ``(number of the prompt, new token ids)``, in the order in which they end; ``stats`` grows."""

    def __init__(self, batch: ContinuousBatch, requests: Sequence[Request]) -> None:
        self.stats = BatchStats(prompt_tokens=sum(len(request.prompt) for request in requests))
        self._batch = batch
        self._texts: dict[Request, list[int]] = {request: [] for request in requests}
        self._finished = self._run()

    def __next__(self) -> tuple[int, list[int]]:
        return next(self._finished)

    @property
    def cache(self) -> KVCache:
        """The cache of the batch."""
        return self._batch.cache

    def _run(self) -> Iterator[tuple[int, list[int]]]:
        numbers = {request: number for number, request in enumerate(self._texts)}
        while self._batch:
            for request in self._step():
                yield numbers[request], self._texts[request]

    def _step(self) -> list[Request]:
        """Go one step on, and give the requests that ended."""
        start = time.perf_counter()
        events = self._batch.step()
        self.stats.seconds += time.perf_counter() - start
        self.stats.steps += 1
        self.stats.cache_bytes = self.cache.nbytes
        for event in events:
            if event.token is not None:
                self._texts[event.request].append(event.token)
                self.stats.new_tokens += 1
        return [event.request for event in events if event.ended]


def generate_batch(
    model: Llama,
    tokenizer: Tokenizer,
    prompts: Iterable[Sequence[int]],
    *,
    max_tokens: int,
    temperature: float = 0.0,
    seed: int = 0,
    stop_ids: Iterable[int] | None = None,
    cache: KVCache | None = None,
    max_rows: int = 8,
    max_piece: int = 64,
) -> BatchGeneration:
    """Continue several prompts together; each comes out as ``generate`` continues it alone, up to rounding.

    Parameters
    ----------
    model, tokenizer
        What ``load_model`` gives.
    prompts
        Token ids of each prompt, at least one.
    max_tokens, temperature, seed, stop_ids
        As in ``generate``, for each prompt.
    cache
        As in ``ContinuousBatch``; default: a contiguous one that grows.
    max_rows, max_piece
        As in ``ContinuousBatch``.

    Returns
    -------
    An iterator of ``(number of the prompt, new token ids)`` with ``stats``; prompts are numbered from 0.

    Raises
    ------
    ShapeError, CacheCapacityError
        As in ``ContinuousBatch`` and its ``submit``; then nothing is generated.
    """
    check_temperature(temperature)
    stops = stops_of(tokenizer, stop_ids)
    cache = model.make_cache(batch_size=0) if cache is None else cache
    batch = ContinuousBatch(model, cache, max_rows=max_rows, max_piece=max_piece)
    requests = [
        batch.submit(prompt, max_tokens=max_tokens, stop_ids=stops, choose=chooser(model, temperature, seed))
        for prompt in prompts
    ]
    return BatchGeneration(batch, requests)
