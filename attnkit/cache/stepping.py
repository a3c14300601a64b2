"""Step: the next tokens of all sequences, their places decided before the work, so that the work can be captured.

A captured CUDA graph replays launches and no host code. ``KVCache.begin_step`` does what the host has to: it checks,
finds room, and moves the counters on. What changes from one step to the next it then writes into arrays that last, the
*mirrors*, where the backend has them; appending and attending inside the step read these and nothing else.

Axes: ``B`` sequences, ``H`` query heads, ``K`` key/value heads, ``T`` new tokens, ``S`` keys that there is room for,
``D`` key head size, ``E`` value head size.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from attnkit.arrays import library_of
from attnkit.backend import AttentionOutput
from attnkit.cache.attending import attend_layer, attend_mirrored, check_tokens, stored_table
from attnkit.cache.counters import Counters, Ragged
from attnkit.cache.locking import locked
from attnkit.call import Options
from attnkit.checks import host_lengths, layer_number
from attnkit.conversion import convert
from attnkit.errors import ShapeError
from attnkit.masks import Mask
from attnkit.pages import IntArray
from attnkit.steps import StepMirrors, StepTables

if TYPE_CHECKING:
    from attnkit.cache.layout import Layout

Array = Any


@dataclass(eq=False, slots=True, weakref_slot=True)
class Step:
    """The step that a cache is in; ``step[layer]`` stands in for ``cache[layer]``.

    Whoever captured work in a step holds it: ``begin_step`` gives that very step again whenever the work can be
    replayed, which is while batch, tokens, storage and room are what they were. It is over with the next change of the
    cache, until then.

    Attributes
    ----------
    tables
        The step in host integers.
    mirrors
        Where the backend keeps them for captured work; ``None`` = it does not, and work inside the step is as outside.
    """

    _cache: Layout
    tables: StepTables
    mirrors: StepMirrors | None
    _planes: tuple[Array, ...]  # captured work has their addresses
    _counters: Counters | None = None

    def __len__(self) -> int:
        return self._cache.config.num_layers

    def __getitem__(self, layer: int) -> StepLayer:
        """Give a layer; as ``cache[layer]``."""
        return StepLayer(self, layer_number(layer, len(self)))

    def __iter__(self) -> Iterator[StepLayer]:
        return (StepLayer(self, number) for number in range(len(self)))

    @property
    def tokens(self) -> int:
        """New tokens, ``T``."""
        return int(self.tables.slots.shape[1])

    @property
    def positions(self) -> Array:
        """Positions of the new tokens, ``[B, T]`` integers: the mirror, or host integers where there is none."""
        return self.tables.positions if self.mirrors is None else self.mirrors.positions

    @property
    def is_over(self) -> bool:
        """Whether the cache has changed since."""
        return self._cache.counters is not self._counters


@dataclass(slots=True, unsafe_hash=True)  # neither field ever changes
class StepLayer:
    """One layer of a cache inside a step."""

    step: Step
    number: int

    @property
    def lock(self) -> AbstractContextManager[Any]:
        """The lock of the cache."""
        return self.step._cache.lock

    @property
    def next_position(self) -> IntArray:
        """Position of the first new token, ``[B]``."""
        return np.array(self.step.tables.positions[:, 0])

    @locked
    def append(self, key: Array, value: Array, *, lengths: Array | int | None = None) -> None:
        """Store the new tokens ``[B, K, T, D]`` and ``[B, K, T, E]``; counters have moved on before.

        ``lengths`` need not be told again; they must be those that the step began with.

        Raises
        ------
        ShapeError, DTypeError
            If an argument does not fit, or the step is over.
        """
        cache, tables = self._current(), self.step.tables
        check_tokens(cache, key, value)
        self._check_count("key, value", key.shape[2])
        if lengths is not None and not np.array_equal(
            host_lengths("lengths", lengths, cache.batch_size, self.step.tokens, "T"), tables.counts
        ):
            raise ShapeError(f"lengths must be those of begin_step, {tables.counts.tolist()}; leave them out")
        pages, mirrors = cache.pages[self.number], self.step.mirrors
        slots = tables.slots if mirrors is None else mirrors.slots
        key, value = (convert(array, library_of(pages.planes[0])) for array in (key, value))
        pages.key.write(cache.backend, slots, key)
        pages.value.write(cache.backend, slots, value)

    @locked
    def attend(
        self,
        query: Array,
        *,
        mask: Mask | None = None,
        scale: float | None = None,
        softcap: float | None = None,
        alibi: Array | None = None,
        sinks: Array | None = None,
    ) -> Array:
        """Compute attention of the new queries over everything the layer holds, the new tokens included.

        Parameters
        ----------
        query
            ``[B, H, T, D]``.
        mask
            Positional kinds alone: arrays have a key axis, whose length captured work does not know.
        scale, softcap, alibi, sinks
            As in ``attnkit.attention``.

        Returns
        -------
        ``[B, H, T, E]`` in the query's dtype.

        Raises
        ------
        ShapeError, DTypeError, UnsupportedError
            As in ``attnkit.attention``; ``ShapeError`` too if the step is over.
        """
        return self._attended(query, Options(mask, scale, softcap, None, alibi, sinks), lse=False).output

    @locked
    def attend_with_lse(
        self,
        query: Array,
        *,
        mask: Mask | None = None,
        scale: float | None = None,
        softcap: float | None = None,
        alibi: Array | None = None,
        sinks: Array | None = None,
    ) -> AttentionOutput:
        """Compute what ``attend`` does, and the log-sum-exp ``[B, H, T]``."""
        return self._attended(query, Options(mask, scale, softcap, None, alibi, sinks), lse=True)

    def _attended(self, query: Array, options: Options, *, lse: bool) -> AttentionOutput:
        cache, step = self._current(), self.step
        if len(query.shape) == 4:
            self._check_count("query", query.shape[2])
        if isinstance(options.mask, Mask) and (options.mask.document_ids or options.mask.dense_arrays):
            raise ShapeError(
                "mask must be of positional kinds inside a step, whose key axis has no fixed length; "
                "call cache[layer].attend for documents and dense masks"
            )
        if step.mirrors is None:
            return attend_layer(cache, self.number, query, options, lse=lse)
        return attend_mirrored(cache, self.number, step.tables, step.mirrors, query, options, lse)

    def _current(self) -> Layout:
        if self.step.is_over:
            raise ShapeError("the step is over, since the cache has changed; call begin_step again")
        return self.step._cache

    def _check_count(self, name: str, tokens: int) -> None:
        if tokens != self.step.tokens:
            raise ShapeError(f"{name} must have T = {self.step.tokens}, as the step began with, got {tokens}")


def begin(cache: Layout, tokens: int, lengths: Array | int | None) -> Step:
    """Begin a step of a cache; see ``KVCache.begin_step``."""
    taken = np.full(cache.batch_size, tokens, np.int64)
    if lengths is not None:
        taken = host_lengths("lengths", lengths, cache.batch_size, tokens, "T")
    before = cache.counters
    _check_even(before)
    with cache.reserve(0, taken) as room:
        slots = np.full((cache.batch_size, tokens), -1, np.int64)
        slots[:, : room.table.longest] = room.table.slots
    ragged = Ragged(tokens, taken) if lengths is not None else None
    cache.counters = before.after_step(taken, cache.gone_after(0, taken), ragged)
    try:
        return _mirrored(cache, _tables(cache, slots, before.next[0], taken, ragged is not None))
    except BaseException:
        cache.counters = before
        cache.trim()
        raise


def _mirrored(cache: Layout, tables: StepTables) -> Step:
    """Give the step that was begun last of this kind and storage, or a new one."""
    planes = tuple(plane for pages in cache.pages for plane in pages.planes)
    step = cache.steps.get(tables.kind)
    if step is None or not all(one is other for one, other in zip(planes, step._planes, strict=True)):
        step = Step(cache, tables, None, planes)
    if tables.room is not None:
        step._counters = None  # over, until all is written
        step.mirrors = cache.backend.begin_step(cache.pages[0], tables, step.mirrors)
    step.tables, step._counters = tables, cache.counters
    cache.steps[tables.kind] = step
    return step


def _tables(cache: Layout, slots: IntArray, start: IntArray, taken: IntArray, ragged: bool) -> StepTables:
    table, grain = stored_table(cache, 0), cache.grain()
    return StepTables(
        slots=slots,
        table=table,
        page_size=1 if grain is None else grain.page_size,
        room=None if grain is None else grain.room,
        positions=start[:, None] + np.arange(slots.shape[1]),
        counts=taken,
        key_offset=cache.counters.gone[0] if cache.config.layout == "ring" else None,
        ragged=ragged,
    )


def _check_even(counters: Counters) -> None:
    """Raise an error where a failed forward pass left some layers with fewer tokens than others."""
    if (counters.next != counters.next[0]).any() or (counters.gone != counters.gone[0]).any():
        raise ShapeError(
            "every layer must hold equally many tokens before a step, their next positions are "
            f"{counters.next.tolist()}; truncate(next_position) evens them out"
        )
