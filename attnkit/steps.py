"""What a step of a cache is in host integers, and where a backend keeps that for work which is captured and replayed.

Axes: ``B`` sequences, ``T`` new tokens, ``S`` keys that there is room for.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, NamedTuple

from attnkit.pages import IntArray, SlotTable

Array = Any


class StepTables(NamedTuple):
    """A step in host integers.

    Attributes
    ----------
    slots
        Of the new tokens, ``[B, T]``; negative: padding, which is not stored.
    table
        Slots of all tokens that a layer holds, the new ones included; the same for every layer.
    page_size
        Every sequence lies in pages of so many slots, the first of which starts with its first token.
    room
        Tokens ``S`` that the key axis of captured work has; ``None`` = the layout has no page table that could last.
    positions
        Of the new tokens, ``[B, T]``.
    counts
        Valid new tokens, ``[B]``.
    key_offset
        Position of the first token that is held, ``[B]``; ``None`` where that is 0 for ever.
    ragged
        Whether ``counts`` may be less than ``T``.
    """

    slots: IntArray
    table: SlotTable
    page_size: int
    room: int | None
    positions: IntArray
    counts: IntArray
    key_offset: IntArray | None
    ragged: bool

    @property
    def kind(self) -> Hashable:
        """What captured work depends on beside storage."""
        return self.slots.shape, self.page_size, self.room, self.key_offset is None, self.ragged


class StepMirrors(NamedTuple):
    """The same where captured work reads it: arrays of a backend that last while their contents change.

    Attributes
    ----------
    slots
        What ``Backend.write`` takes in the place of host integers.
    table
        What ``Backend.attend_pages`` takes in the place of a ``SlotTable``.
    kv_lengths, query_lengths, key_offset
        Operands of the calls, ``[B]`` each; ``None`` where the calls have none.
    positions
        Of the new tokens, ``[B, T]``.
    """

    slots: Any
    table: Any
    kv_lengths: Array
    query_lengths: Array | None
    key_offset: Array | None
    positions: Array
