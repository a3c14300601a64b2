"""KVCache, a stack of layers over a list of sequences: the operations on all of them at once.

Axes: ``B`` sequences, ``K`` key/value heads, ``D`` key head size, ``E`` value head size, ``L`` layers.

A layout says where tokens go; everything else is the same for all of them. Every operation checks first, lets the
layout move bytes where nobody can see them yet, and puts new counters in place last: a failed call leaves the cache as
it was.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from attnkit.cache.counters import Counters
from attnkit.cache.files import write_image
from attnkit.cache.image import captured
from attnkit.cache.layer import CacheLayer
from attnkit.cache.layout import Array, Layout, Rows
from attnkit.cache.locking import locked
from attnkit.cache.offloading import Offloaded, join, offload
from attnkit.cache.stepping import Step, begin
from attnkit.checks import host_integers, layer_number, row_number, row_numbers
from attnkit.errors import DTypeError, ShapeError
from attnkit.pages import IntArray


class Snapshot(NamedTuple):
    """What ``KVCache.snapshot`` gives: the state of a cache at that moment, for its ``restore`` alone."""

    counters: Counters
    held: Any


class KVCache(Layout):
    """Keys and values of past tokens, for all layers and sequences.

    ``cache[layer]`` gives a ``CacheLayer``. The batch is a list of sequences: ``admit`` and ``fork`` add one at the
    end, ``release`` takes one out and those behind it move up. Counters are host integers and are handed out as copies.
    Several threads may use one cache: its operations wait for each other.
    """

    # Layers and counters.

    def __len__(self) -> int:
        return self.config.num_layers

    def __getitem__(self, layer: int) -> CacheLayer:
        """Give a layer; negative numbers count from the last.

        Raises
        ------
        IndexError
            If there is no such layer.
        DTypeError
            If it is no integer.
        """
        return CacheLayer(self, layer_number(layer, len(self)))

    def __iter__(self) -> Iterator[CacheLayer]:
        return (CacheLayer(self, number) for number in range(len(self)))

    @property
    def next_position(self) -> IntArray:
        """Position of the next token, ``[B]``: tokens appended minus forgotten, the minimum over layers."""
        return np.asarray(self.counters.next.min(axis=0))

    @property
    def seen(self) -> IntArray:
        """Another name of ``next_position``."""
        return self.next_position

    @property
    def stored(self) -> IntArray:
        """Tokens held now, ``[B]``, the minimum over layers."""
        return np.asarray(self.counters.stored.min(axis=0))

    @property
    def nbytes(self) -> int:
        """Bytes allocated for keys and values."""
        return sum(pages.nbytes for pages in self.pages)

    # Forgetting.

    @locked
    def truncate(self, length: int | Array) -> None:
        """Keep the positions below ``length`` (an integer, or ``[B]``) in every layer and forget the rest for good.

        Also evens out a stack that a failed forward pass left uneven.

        Raises
        ------
        ShapeError
            If a layer has fewer, or a ring has given up tokens that the next query would see.
        """
        kept = host_integers("length", length, self.batch_size)
        self._check_forget("length", kept, kept)
        self._keep("length", kept)

    @locked
    def drop(self, count: int | Array) -> None:
        """Forget the last ``count`` tokens (an integer, or ``[B]``), counted from ``next_position``.

        Raises
        ------
        ShapeError
            As in ``truncate``.
        """
        dropped = host_integers("count", count, self.batch_size)
        kept = self.next_position - dropped
        self._check_forget("count", dropped, kept)
        self._keep("count", kept)

    @locked
    def reset(self) -> None:
        """Forget everything and go back to the storage of an empty cache; the sequences stay, empty."""
        self.clear()
        self._commit(Counters.empty(len(self), self.batch_size))

    # Steps that can be captured.

    @locked
    def begin_step(self, tokens: int = 1, *, lengths: Array | int | None = None) -> Step:
        """Find room for the next tokens of every sequence, and move the counters on: the work itself can be captured.

        ``step[layer].append`` and ``step[layer].attend`` then do that work, for every layer. A backend that replays
        captured work, such as a CUDA graph, reads all that changes from step to step where this writes it. While the
        same step is given what was captured in it can be replayed in place of these calls.

        A step whose tokens are not stored in every layer leaves slots that hold anything: take it back with ``drop``.

        Parameters
        ----------
        tokens
            New tokens ``T`` of a sequence.
        lengths
            How many of them each sequence takes, ``[B]`` integers or one; the rest is padding.

        Raises
        ------
        ShapeError, DTypeError
            If they do not fit, or layers hold unequally many tokens.
        CacheCapacityError
            If a sequence would exceed the capacity. In each case the cache stays as it was.
        """
        count = int(host_integers("tokens", tokens, 1)[0])
        if count < 1:
            raise ShapeError(f"tokens must be >= 1, got {count}")
        return begin(self, count, lengths)

    # The list of sequences.

    @locked
    def reorder(self, indices: Array) -> None:
        """Make sequence ``b`` a copy of what was sequence ``indices[b]``; copies may diverge at once.

        Parameters
        ----------
        indices
            Integers ``[B]`` from 0 to ``B - 1``; repetitions duplicate a sequence.

        Raises
        ------
        ShapeError, DTypeError
            If they do not fit.
        """
        source = row_numbers("indices", indices, self.batch_size)
        if len(source) != self.batch_size:
            raise ShapeError(f"indices must be [B] = [{self.batch_size}], got {len(source)}; select takes any number")
        self._arrange(source)

    @locked
    def select(self, indices: Array) -> None:
        """Keep the sequences ``indices``, any number of them and in that order; repetitions duplicate one.

        Raises
        ------
        ShapeError, DTypeError
            If they are no integers from 0 to ``B - 1``.
        """
        self._arrange(row_numbers("indices", indices, self.batch_size))

    @locked
    def repeat(self, count: int) -> None:
        """Make ``count`` of every sequence, copies next to each other; 0 leaves none.

        Raises
        ------
        ShapeError, DTypeError
            If ``count`` is no integer >= 0.
        """
        times = int(host_integers("count", count, 1)[0])
        if times < 0:
            raise ShapeError(f"count must be >= 0, got {times}")
        self._arrange([row for row in range(self.batch_size) for _ in range(times)])

    @locked
    def fork(self, sequence: int) -> int:
        """Add a copy of a sequence at the end, and give its number; both may diverge at once.

        Raises
        ------
        ShapeError, DTypeError
            If there is no such sequence.
        """
        row = row_number("sequence", sequence, self.batch_size)
        self._arrange([*range(self.batch_size), row])
        return self.batch_size - 1

    @locked
    def admit(self, tokens: Sequence[int] | None = None) -> int:
        """Add an empty sequence at the end, and give its number.

        Parameters
        ----------
        tokens
            The token ids that are going to be appended. A paged cache that holds a beginning of them starts the
            sequence with it, by whole pages and never with all of ``tokens``: go on from ``next_position``.
        """
        del tokens  # only pages are shared
        self._arrange([*range(self.batch_size), None])
        return self.batch_size - 1

    @locked
    def release(self, sequence: int) -> None:
        """Take a sequence out; those behind it move up by one, as in a list.

        Raises
        ------
        ShapeError, DTypeError
            If there is no such sequence.
        """
        row = row_number("sequence", sequence, self.batch_size)
        self._arrange([other for other in range(self.batch_size) if other != row])

    def match_prefix(self, tokens: Sequence[int]) -> int:
        """Give how many of the first ``tokens`` a new sequence could start with; only a paged cache finds any."""
        del tokens
        return 0

    def remember(self, sequence: int, tokens: Sequence[int]) -> int:
        """Tell which token ids a sequence holds from its beginning; gives how many of them later prompts can find."""
        del sequence, tokens
        return 0

    # Going back.

    @locked
    def snapshot(self) -> Snapshot:
        """Keep the present state; ``restore`` brings it back, whatever was done since, and as often as wanted."""
        return Snapshot(self.counters, self.hold())

    @locked
    def restore(self, snapshot: Snapshot) -> None:
        """Go back to a state that ``snapshot`` of this cache gave: sequences, counters and all that was stored.

        Raises
        ------
        DTypeError
            If it is no snapshot.
        """
        if not isinstance(snapshot, Snapshot):
            raise DTypeError(f"snapshot must come from snapshot(), got {type(snapshot).__name__}")
        self.put_back(snapshot.held)
        self._commit(snapshot.counters)

    # Leaving and coming back.

    @locked
    def save(self, path: str | os.PathLike[str]) -> None:
        """Write all that the cache holds to a safetensors file, which ``attnkit.load_cache`` reads.

        Codes are stored as they are, tokens that were forgotten are not, and pages that sequences share are stored
        once; what ``remember`` was told is left out. The file takes the place of an old one whole: a process that is
        killed at any moment leaves the one or the other.

        Raises
        ------
        OSError
            If it cannot be written; the old file is as it was.
        """
        write_image(path, captured(self, range(self.batch_size)))

    @locked
    def offload(self, sequence: int, path: str | os.PathLike[str] | None = None) -> Offloaded:
        """Take a sequence out, as ``release`` does, and keep what it holds in host memory, or in a file.

        Raises
        ------
        ShapeError, DTypeError
            If there is no such sequence.
        OSError
            If the file cannot be written. In each case the sequence stays.
        """
        row = row_number("sequence", sequence, self.batch_size)
        offloaded = offload(self, row, path)
        self.release(row)
        return offloaded

    @locked
    def resume(self, offloaded: Offloaded) -> int:
        """Add an offloaded sequence at the end, and give its number; it may be from another cache of the same shape.

        It may be resumed more than once. Where this cache stores tokens as that one did they are moved bit for bit, on
        any backend; else they are converted, as by ``attnkit.load_cache``. Pages that it shared are its own now.

        Raises
        ------
        DTypeError
            If it is nothing that ``offload`` gave.
        ShapeError, CacheCapacityError
            If it does not fit into this cache.
        FileNotFoundError, CacheFileError
            If its file is gone, or is not what was written. In each case the cache stays as it was.
        """
        if not isinstance(offloaded, Offloaded):
            raise DTypeError(f"offloaded must come from offload(), got {type(offloaded).__name__}")
        with offloaded.image() as image:
            join(self, image)
        return self.batch_size - 1

    @locked
    def check_invariants(self) -> None:
        """Raise ``RuntimeError``, telling what is wrong, if the bookkeeping contradicts itself. For tests."""
        counters = self.counters
        if (counters.gone < 0).any() or (counters.stored < 0).any():
            raise RuntimeError(f"counters: gone {counters.gone.tolist()} of next {counters.next.tolist()}")
        for layer in self:
            slots = layer.table().slots
            live = slots[slots >= 0]
            if live.size and live.max() >= self.pages[layer.number].slots:
                raise RuntimeError(f"layer {layer.number}: slot {live.max()} lies outside its pages")
        self.check_rows()

    def _commit(self, counters: Counters) -> None:
        self.counters = counters
        self.moved()

    def _arrange(self, source: Rows) -> None:
        counters = self.counters.arranged(source)
        self.arrange(source)
        self._commit(counters)

    def _keep(self, name: str, kept: IntArray) -> None:
        counters = self.counters.truncated(kept, self.gone_within(name, kept))
        self._commit(counters)
        self.trim()

    def _check_forget(self, name: str, numbers: IntArray, kept: IntArray) -> None:
        held = self.next_position
        if (numbers < 0).any() or (kept < 0).any() or (kept > held).any():
            raise ShapeError(f"{name} must lie in 0..next_position, which is {held.tolist()}, got {numbers.tolist()}")
