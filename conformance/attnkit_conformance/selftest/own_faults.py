"""Caches of a backend's own that are wrong in ways that have been seen: each the correct one with a method replaced.

They are targets too: ``attnkit_conformance.selftest.own_faults:CropsTooMuch`` names one on a command line.
"""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import attnkit as ak
from attnkit_conformance.selftest.own_cache import OwnCache, OwnCaches
from attnkit_conformance.selftest.own_rows import Planes, Row
from attnkit_conformance.selftest.plain import Array


class CropsTooMuchRow(Row):
    """Throws away the page in which a cut falls, where it stores codes, and counts what was asked for."""

    def cut(self, count: int) -> None:
        """Of 12 tokens in pages of 7 keep 7, and say that it were 9."""
        if len(self.pages[0]) > 2 and count < self.count:
            ends = accumulate(page[0].shape[1] for page in self.pages)
            self.pages = [page for page, end in zip(self.pages, ends, strict=True) if end <= count]
        super().cut(count)


class WrapsPaddingRow(Row):
    """Writes padding to slot -1, which is the last one there is."""

    def take(self, planes: Planes, count: int) -> None:
        """Store every token that was given, the first ``count`` of them where they belong."""
        slots = self.slots
        for token in range(planes[0].shape[1]):
            page, place = slots[self.count + token if token < count else -1]
            for plane, new in zip(page, planes, strict=True):
                plane[:, place] = new[:, token]
        self.count += count


class SharesTheTailRow(Row):
    """Copies the pages that are full, and lets a copy write into the page that is not."""

    def copy(self) -> Row:
        """Give a row that shares the page of the next token."""
        other, ends = super().copy(), accumulate(page[0].shape[1] for page in self.pages)
        other.pages = [
            copied if end <= self.count else page
            for page, copied, end in zip(self.pages, other.pages, ends, strict=True)
        ]
        return other


class AdvancesRow(Row):
    """Counts new tokens, then finds that there is no room for them."""

    def take(self, planes: Planes, count: int) -> None:
        """Count, then store."""
        room = len(self.slots) - self.count
        if count > room:
            self.count += count
            raise ak.CacheCapacityError(f"append needs room for {count} tokens, there is room for {room}")
        super().take(planes, count)


class CropsTooMuchCache(OwnCache):
    """Holds fewer tokens than it says, once codes are cut."""

    row = CropsTooMuchRow


class WrapsPaddingCache(OwnCache):
    """Loses the last token of a full sequence to the padding of another one's."""

    row = WrapsPaddingRow


class SharesTheTailCache(OwnCache):
    """Lets forks write over each other."""

    row = SharesTheTailRow


class AdvancesCache(OwnCache):
    """Is left with 6 tokens of 4, once an append has failed."""

    row = AdvancesRow

    def reserve(self, needed: Array) -> None:
        """Leave a fixed cache to find out later."""
        if self.config.max_length is None:
            super().reserve(needed)


class OverCropsCache(OwnCache):
    """Takes a number off its counters without a look at what they hold."""

    def drop(self, count: Any) -> None:
        """Count down, to -2 where 3 tokens are held and 5 are dropped."""
        self.cut(self.stored - count)


class RepeatsNothingCache(OwnCache):
    """Takes a call for each operation, and has not got round to all of them."""

    def repeat(self, count: int) -> None:
        """Do nothing, and say nothing."""


class CropsTooMuch(OwnCaches):
    """A quantised cache whose crop reports 9 tokens and holds 7."""

    name, kind = "crops-too-much", CropsTooMuchCache


class WrapsPadding(OwnCaches):
    """A cache that wraps the padding of a ragged append."""

    name, kind = "wraps-padding", WrapsPaddingCache


class SharesTheTail(OwnCaches):
    """A cache whose forks share a page."""

    name, kind = "shares-the-tail", SharesTheTailCache


class Advances(OwnCaches):
    """A cache whose length is advanced by an append that fails."""

    name, kind = "advances", AdvancesCache


class OverCrops(OwnCaches):
    """A cache that an over-long crop leaves with -2 tokens."""

    name, kind = "over-crops", OverCropsCache


class RepeatsNothing(OwnCaches):
    """A cache that repeats no sequence when it is asked to."""

    name, kind = "repeats-nothing", RepeatsNothingCache
