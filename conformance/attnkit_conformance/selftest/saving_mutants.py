"""Caches that lose something on the way out or back: into a file, out of it, to the host and from there."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np

import attnkit as ak
from attnkit.cache import PagedCache
from attnkit.cache.offloading import Offloaded
from attnkit_conformance.harness.local import Harness, Thing
from attnkit_conformance.selftest.faults import harnessed
from attnkit_conformance.selftest.faulty_caches import cache_fault as fault
from attnkit_conformance.selftest.faulty_caches import counting

Path = str | os.PathLike[str]
_DIGITS = slice(35, 99)
"""Where a file holds the 64 digits of its hash."""


class RaggedUnsaved(ak.KVCache):
    """Saves how many tokens there are, and not which of the next queries are padding."""

    def save(self, path: Path) -> None:
        with counting(self, replace(self.counters, ragged=(None,) * len(self))):
            super().save(path)


class FirstSequencesSaved(ak.KVCache):
    """Saves as many sequences as it began with."""

    def save(self, path: Path) -> None:
        whole = self.snapshot()
        self.select(list(range(min(self.config.batch_size, self.batch_size))))
        super().save(path)
        self.restore(whole)


class ConvertedOnTheWay(ak.KVCache):
    """Saves tokens by way of float16."""

    def save(self, path: Path) -> None:
        whole = self.snapshot()
        for pages in self.pages:
            for plane in pages.planes:
                plane[...] = plane.astype(np.float16)
        super().save(path)
        self.restore(whole)


class TailLost(ak.KVCache):
    """Takes all of a sequence along but its last token."""

    def offload(self, sequence: int, path: Path | None = None) -> Offloaded:
        kept = self.next_position
        if 0 <= sequence < len(kept):
            kept[sequence] -= min(kept[sequence], 1)
            with suppress(ak.ShapeError):  # a ring may have to keep it
                self.truncate(kept)
        return super().offload(sequence, path)


class PagesKept(PagedCache):
    """Copies a sequence to the host, and holds its pages as well."""

    def offload(self, sequence: int, path: Path | None = None) -> Offloaded:
        held = self.snapshot() if 0 <= sequence < self.batch_size else None
        self.__dict__.setdefault("kept", []).append(held)
        return super().offload(sequence, path)


class ResumedInFront(ak.KVCache):
    """Brings a sequence back to where it was, at the front, and says that it were at the end."""

    def resume(self, offloaded: Offloaded) -> int:
        number = super().resume(offloaded)
        self._arrange([number, *range(number)])
        return number


class HeldPositions(Harness):
    """Lets a ring that comes from a file count the tokens that it holds for those that it was given."""

    def load_cache(self, file: Thing, config: Mapping[str, Any] | None = None) -> Thing:
        cache = super().load_cache(file, config)
        counters = cache.counters
        cache._commit(replace(counters, next=counters.stored, gone=counters.gone * 0))
        return cache


class AsItWas(Harness):
    """Makes the cache that was saved, whatever other kind is asked for."""

    def load_cache(self, file: Thing, config: Mapping[str, Any] | None = None) -> Thing:
        return super().load_cache(file)


class Unverified(Harness):
    """Takes the hash in a file for right, whatever the file holds."""

    def load_cache(self, file: Thing, config: Mapping[str, Any] | None = None) -> Thing:
        content = bytearray(file.path.read_bytes())
        content[_DIGITS] = b"0" * 64
        content[_DIGITS] = hashlib.sha256(content).hexdigest().encode()
        file.path.write_bytes(content)
        return super().load_cache(file, config)


SAVING_MUTANTS = [
    fault("ragged_lengths_not_saved", "TestSaving::test_what_was_saved_comes_back", RaggedUnsaved),
    fault("first_sequences_saved", "TestSaving::test_what_was_saved_comes_back", FirstSequencesSaved),
    fault("saved_through_half", "TestSaving::test_what_was_saved_comes_back", ConvertedOnTheWay),
    harnessed("loaded_ring_counts_what_it_holds", "TestSaving::test_what_was_saved_comes_back", HeldPositions),
    harnessed("loaded_as_it_was", "TestSaving::test_into_another_kind_of_cache", AsItWas),
    harnessed("damaged_file_loaded", "TestSaving::test_damaged_files_are_refused", Unverified),
    fault("offload_loses_the_tail", "TestOffloading::test_away_and_back", TailLost),
    fault("offload_keeps_pages", "TestOffloading::test_away_and_back", PagesKept),
    fault("resumed_in_front", "TestOffloading::test_away_and_back", ResumedInFront),
]
