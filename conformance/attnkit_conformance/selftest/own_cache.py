"""A backend with a cache of its own, as a third party would write it: plain NumPy, and nothing of attnkit's caches.

A sequence of a layer lies in pages of seven tokens, which a fork copies. The cache grows, or is fixed; it stores tokens
as they are, or as 8-bit codes. Nothing but what ``Backend.make_cache`` asks for is here.

Axes: ``B`` sequences, ``H`` query heads, ``K`` key/value heads, ``T`` new tokens, ``n`` stored tokens, ``D`` key head
size, ``E`` value head size, ``F`` features of a plane, ``L`` layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

import attnkit as ak
from attnkit_conformance.selftest.own_layer import NAME, OwnLayer
from attnkit_conformance.selftest.own_rows import Ragged, Row, numbers
from attnkit_conformance.selftest.plain import EVERYTHING, Array, Plain


class OwnCache:
    """A stack of layers over a list of sequences."""

    row: ClassVar[type[Row]] = Row

    def __init__(self, config: ak.KVCacheConfig, choice: Any) -> None:
        self.config, self.choice = config, choice
        self.size = config.max_length or 0
        self.rows = [[self.new_row() for _ in range(config.batch_size)] for _ in range(config.num_layers)]
        self.ragged: list[Ragged | None] = [None] * config.num_layers

    def __getitem__(self, layer: int) -> OwnLayer:
        return OwnLayer(self, range(self.config.num_layers)[layer])

    @property
    def batch_size(self) -> int:
        """Sequences."""
        return len(self.rows[0])

    @property
    def stored(self) -> Array:
        """Tokens of each sequence that all layers hold, ``[B]``."""
        return np.min([self[layer].stored for layer in range(self.config.num_layers)], axis=0)

    next_position = seen = stored

    @property
    def nbytes(self) -> int:
        """Bytes allocated."""
        return sum(row.nbytes for rows in self.rows for row in rows)

    # Room

    def new_row(self) -> Row:
        """Give an empty sequence with as much room as every other one."""
        row = self.row(self.config)
        row.grow(self.size)
        return row

    def reserve(self, needed: Array) -> None:
        """Find room for ``needed [B]`` tokens, in all layers."""
        most = int(needed.max(initial=0))
        if most <= self.size:
            return
        if self.config.max_length is not None:
            raise ak.CacheCapacityError(
                f"append needs room for {most} tokens, the cache holds {self.size}; truncate it"
            )
        self.size = self.config.capacity_for(most)
        for row in (row for rows in self.rows for row in rows):
            row.grow(self.size)

    def checked(self, key: Array, value: Array, lengths: Any) -> Array:
        """Check what is to be appended; give how many tokens each sequence takes, ``[B]``."""
        batch, config = self.batch_size, self.config
        head = (batch, config.num_kv_heads, key.shape[2])
        if key.shape != (*head, config.head_dim) or value.shape != (*head, config.value_dim):
            raise ak.ShapeError(f"key, value must begin with {head}, got {key.shape} and {value.shape}")
        for name, array in (("key", key), ("value", value)):
            if array.dtype.name not in EVERYTHING.dtypes:
                raise ak.DTypeError(f"{name} must be of a float type, got {array.dtype}")
        return numbers("lengths", key.shape[2] if lengths is None else lengths, batch, key.shape[2])

    # Forgetting

    def truncate(self, length: Any) -> None:
        """Keep the first ``length`` tokens (one number, or ``[B]``)."""
        self.cut(numbers("length", length, self.batch_size, self.stored))

    def drop(self, count: Any) -> None:
        """Forget the last ``count`` tokens."""
        self.cut(self.stored - numbers("count", count, self.batch_size, self.stored))

    def cut(self, kept: Array) -> None:
        """Keep ``kept [B]`` tokens in every layer."""
        for rows in self.rows:
            for row, count in zip(rows, kept.tolist(), strict=True):
                row.cut(count)
        self.ragged = [None] * len(self.rows)

    def reset(self) -> None:
        """Forget everything, and the room for it."""
        self.size = self.config.max_length or 0
        self.arrange([None] * self.batch_size)
        self.ragged = [None] * len(self.rows)

    # The list of sequences

    def arrange(self, source: Sequence[int | None]) -> None:
        """Let row ``i`` be a copy of what was row ``source[i]``; ``None``: an empty one."""
        self.rows = [[self.new_row() if b is None else rows[b].copy() for b in source] for rows in self.rows]
        self.ragged = [None if ragged is None else ragged.arranged(source) for ragged in self.ragged]

    def reorder(self, indices: Any) -> None:
        """Make sequence ``b`` a copy of what was sequence ``indices[b]``."""
        self.arrange(numbers("indices", np.asarray(indices), self.batch_size, self.batch_size - 1).tolist())

    def select(self, indices: Any) -> None:
        """Keep the sequences ``indices``, in that order."""
        chosen = np.asarray(indices, None if len(indices) else np.int64)
        self.arrange(numbers("indices", chosen, len(chosen), self.batch_size - 1).tolist())

    def repeat(self, count: int) -> None:
        """Make ``count`` of every sequence, next to each other."""
        if count < 0:
            raise ak.ShapeError(f"count must be 0 or more, got {count}")
        self.arrange([b for b in range(self.batch_size) for _ in range(count)])

    def fork(self, sequence: int) -> int:
        """Add a copy of a sequence."""
        self.arrange([*range(self.batch_size), *self.one(sequence)])
        return self.batch_size - 1

    def admit(self, tokens: Any = None) -> int:
        """Add an empty sequence; nothing is known of any tokens."""
        del tokens
        self.arrange([*range(self.batch_size), None])
        return self.batch_size - 1

    def release(self, sequence: int) -> None:
        """Take a sequence out."""
        (gone,) = self.one(sequence)
        self.arrange([b for b in range(self.batch_size) if b != gone])

    def one(self, sequence: int) -> list[int]:
        """Give the number of a sequence, in a list, that there is."""
        found: list[int] = numbers("sequence", np.asarray([sequence]), 1, self.batch_size - 1).tolist()
        return found

    def remember(self, sequence: int, tokens: Any) -> int:
        """Remember no tokens: no page is ever shared."""
        del sequence, tokens
        return 0

    def match_prefix(self, tokens: Any) -> int:
        """Know no beginning."""
        del tokens
        return 0

    # Going away and coming back

    def snapshot(self) -> Any:
        """Keep a copy of everything."""
        return deepcopy((self.rows, self.ragged, self.size))

    def restore(self, snapshot: Any) -> None:
        """Go back to a copy."""
        self.rows, self.ragged, self.size = deepcopy(snapshot)

    def begin_step(self, tokens: int = 1, *, lengths: Any = None) -> Any:
        """Refuse: nothing of it could be captured."""
        del tokens, lengths
        reason = ak.Reason("begin_step", "cache", "one of attnkit's", "the backend's own")
        raise ak.UnsupportedError("the cache has no steps:", {NAME: (reason,)})

    def save(self, path: Any) -> None:
        """Refuse: what it would write, only it could read."""
        del path
        reason = ak.Reason("save", "cache", "one of attnkit's", "the backend's own")
        raise ak.UnsupportedError("the cache has no files:", {NAME: (reason,)})

    def offload(self, sequence: int, path: Any = None) -> Any:
        """Take a sequence out: give its rows, or the file that they are in."""
        (gone,) = self.one(sequence)
        rows = [layer[gone] for layer in self.rows]
        if path is not None:
            with Path(path).open("wb") as file:
                np.savez(file, *(plane for row in rows for plane in row.tokens()))
        self.release(gone)
        return rows if path is None else Path(path)

    def resume(self, offloaded: Any) -> int:
        """Add a sequence that was offloaded."""
        if isinstance(offloaded, Path):
            with np.load(offloaded) as file:
                planes = [file[f"arr_{number}"] for number in range(len(file.files))]
            each = len(planes) // len(self.rows)
            offloaded = [Row(self.config, planes[each * n : each * (n + 1)]) for n in range(len(self.rows))]
        self.reserve(np.array([row.count for row in offloaded]))
        number = self.admit()
        for rows, row in zip(self.rows, offloaded, strict=True):
            rows[number].take(row.tokens(), row.count)
        return number


class OwnCaches(Plain):
    """The correct backend, with a cache of its own."""

    name = NAME
    declared = replace(
        EVERYTHING, kv_dtype=False, layouts=frozenset({"contiguous"}), codecs=frozenset({"native", "int8"})
    )
    kind: ClassVar[type[OwnCache]] = OwnCache

    def make_cache(self, config: ak.KVCacheConfig, choice: Any) -> Any:
        """Give a cache of its own."""
        return self.kind(config, choice)
