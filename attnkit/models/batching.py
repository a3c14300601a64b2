"""ContinuousBatch: texts of different lengths in one batch, which they join and leave while others go on.

Axes: ``B`` running texts, ``T`` tokens of the longest piece of a step, ``V`` vocabulary.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from attnkit.cache.base import KVCache
from attnkit.cache.paged import PagedCache
from attnkit.errors import CacheCapacityError, ShapeError
from attnkit.models.generation import Chooser, greedy
from attnkit.models.llama import Array, Llama
from attnkit.models.requests import Event, Request
from attnkit.models.room import check_room, page_limit, stored_in_all
from attnkit.pages import IntArray


@dataclass(slots=True)
class _Text:
    """A running text: its tokens so far, how many of them the cache holds, and how many it can come to hold."""

    request: Request
    tokens: list[int]
    held: int
    most: int


class ContinuousBatch:
    """Texts that are generated together.

    A step computes one token of every running text, or a piece of its prompt, in one forward pass; which texts run
    together does not change what they are. Requests wait, first come first served, for a row and, in a pool of limited
    size, for the pages of their longest possible text, so that what runs never fails for lack of room. Beginnings of
    prompts that a paged cache remembers are shared. A step that fails leaves cache and texts as they were. One thread
    at a time may use it.

    Parameters
    ----------
    model
        What ``load_model`` gives.
    cache
        A cache of that model, of any layout and codec, whose sequences are empty; it is the batch's from now on.
    max_rows
        Most texts that run at once.
    max_piece
        Most tokens of one prompt in a step, so that a long prompt does not keep the others waiting.

    Raises
    ------
    ShapeError
        If the cache holds tokens, or a limit is below 1.
    """

    def __init__(self, model: Llama, cache: KVCache, *, max_rows: int = 8, max_piece: int = 64) -> None:
        for name, limit in (("max_rows", max_rows), ("max_piece", max_piece)):
            if limit < 1:
                raise ShapeError(f"{name} must be >= 1, got {limit}")
        if cache.next_position.any():
            raise ShapeError(
                f"cache must be empty, its sequences hold {cache.next_position.tolist()} tokens; reset() it"
            )
        cache.select([])
        self.cache = cache
        self._model = model
        self._max_rows = max_rows
        self._max_piece = min(max_piece, cache.config.max_append or max_piece)
        self._waiting: deque[Request] = deque()
        self._texts: list[_Text] = []

    def __len__(self) -> int:
        """Give the number of requests that run or wait."""
        return len(self._texts) + len(self._waiting)

    @property
    def running(self) -> list[Request]:
        """The requests whose texts are in the cache, in its order."""
        return [text.request for text in self._texts]

    @property
    def waiting(self) -> list[Request]:
        """The requests that have no row yet, in their order."""
        return list(self._waiting)

    def submit(
        self, prompt_ids: Sequence[int], *, max_tokens: int, stop_ids: Iterable[int] = (), choose: Chooser = greedy
    ) -> Request:
        """Ask for the continuation of a prompt; it joins at a later step.

        Parameters
        ----------
        prompt_ids
            ``[T]`` token ids, at least one.
        max_tokens
            Most tokens to give, >= 1.
        stop_ids
            Tokens that end the text, and are not given.
        choose
            Takes the next token from logits ``[1, V]``; by default the most probable one.

        Raises
        ------
        ShapeError
            If an argument is out of range, or the text can exceed the model's context.
        CacheCapacityError
            If the text can exceed what the cache holds when nothing else runs.
        """
        check_room(self._model, self.cache, len(prompt_ids), max_tokens)
        self._model.check_ids(prompt_ids)
        request = Request(tuple(map(int, prompt_ids)), max_tokens, frozenset(stop_ids), choose)
        self._waiting.append(request)
        return request

    def cancel(self, request: Request) -> None:
        """Forget a request, whether it runs or waits; one that has ended is forgotten already."""
        if request in self._waiting:
            self._waiting.remove(request)
        self._leave([text for text in self._texts if text.request is request])

    def step(self) -> list[Event]:
        """Let waiting requests join, compute one piece of every running text, and let those that end leave.

        Returns
        -------
        For every text that came to a new token or to its end, what happened, in the order of the rows.

        Raises
        ------
        CacheCapacityError
            If nothing runs and the next request still finds no room, because others hold pages of a shared pool.
        """
        self._join()
        if not self._texts:
            return []
        pieces = [text.tokens[text.held : text.held + self._max_piece] for text in self._texts]
        try:
            logits = self._forward(pieces)
            chosen = [
                int(text.request.choose(row)) if text.held + len(piece) == len(text.tokens) else None
                for text, piece, row in zip(self._texts, pieces, logits, strict=True)
            ]
        except BaseException:
            self.cache.truncate(np.array([text.held for text in self._texts], np.int64))
            raise
        return self._advance(pieces, chosen)

    def _forward(self, pieces: list[list[int]]) -> Array:
        """Append pieces of different lengths, and give the logits after each, ``[B, 1, V]``."""
        lengths: IntArray = np.array([len(piece) for piece in pieces], np.int64)
        ids = np.zeros((len(pieces), lengths.max()), np.int64)
        for row, piece in zip(ids, pieces, strict=True):
            row[: len(piece)] = piece
        return self._model.forward(ids, self.cache, lengths=lengths)

    def _advance(self, pieces: list[list[int]], chosen: list[int | None]) -> list[Event]:
        events = []
        for number, (text, piece, token) in enumerate(zip(self._texts, pieces, chosen, strict=True)):
            text.held += len(piece)
            if token is None:
                continue
            event = _event(text, token)
            if event.ended or len(text.tokens) == len(text.request.prompt):
                self.cache.remember(number, text.tokens)  # for prompts that begin alike
            if event.token is not None:
                text.tokens.append(event.token)
            events.append(event)
        ended = {event.request for event in events if event.ended}
        self._leave([text for text in self._texts if text.request in ended])
        return events

    def _join(self) -> None:
        while self._waiting and len(self._texts) < self._max_rows:
            request = self._waiting[0]
            row = self.cache.admit(request.prompt)
            text = _Text(
                request,
                list(request.prompt),
                int(self.cache.next_position[row]),
                stored_in_all(len(request.prompt), request.max_tokens),
            )
            if not self._has_room([*self._texts, text]):
                self.cache.release(row)
                break
            self._texts.append(text)
            self._waiting.popleft()
        if self._waiting and not self._texts:
            needed = stored_in_all(len(self._waiting[0].prompt), self._waiting[0].max_tokens)
            raise CacheCapacityError(
                f"a text of up to {needed} stored tokens finds no room though nothing runs, since others hold pages of "
                "the pool; release some of them, or cancel the request"
            )

    def _has_room(self, texts: list[_Text]) -> bool:
        """Tell whether all texts can grow as long as they may, each row of the cache being one of them."""
        if not isinstance(self.cache, PagedCache) or page_limit(self.cache.pool) is None:
            return True
        size, rows = self.cache.pool.page_size, self.cache.rows
        missing = sum(-(-text.most // size) - len(row) for text, row in zip(texts, rows, strict=True))
        return missing <= self.cache.pool.free

    def _leave(self, texts: list[_Text]) -> None:
        if texts:
            gone = {text.request for text in texts}
            staying = [number for number, text in enumerate(self._texts) if text.request not in gone]
            self.cache.select(staying)
            self._texts = [self._texts[number] for number in staying]


def _event(text: _Text, token: int) -> Event:
    if token in text.request.stop_ids:
        return Event(text.request, None, "stop")
    last = len(text.tokens) + 1 == len(text.request.prompt) + text.request.max_tokens
    return Event(text.request, token, "length" if last else None)
