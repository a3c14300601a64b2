"""Prefix sharing that is wrong on purpose: which pages a prompt finds, and what becomes of them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import numpy as np

import attnkit as ak
from attnkit.cache import PagedCache
from attnkit.cache.frames import Frames
from attnkit.cache.prefix import PrefixIndex
from attnkit_conformance.selftest.faulty_caches import cache_fault as fault
from attnkit_conformance.selftest.page_mutants import pooled


class HashAlone(PrefixIndex):
    """Knows a page by Python's hash of its tokens, which is the same for -1 and -2, and does not look at them again."""

    def _blocks(self, tokens: Sequence[int]) -> list[bytes]:
        hashes = (hash(tuple(np.frombuffer(block, "<i8").tolist())) for block in super()._blocks(tokens))
        return [np.full(self.page_size, number, "<i8").tobytes() for number in hashes]


class Anywhere(PrefixIndex):
    """Finds a page by its own tokens, whatever stood before them."""

    def match(self, tokens: Sequence[int]) -> list[int]:
        known = {entry.tokens: entry.page for entry in self._entries.values()}
        pages = [known.get(block) for block in self._blocks(tokens)]
        return [page for page in pages if page is not None][: pages.index(None) if None in pages else None]


class PartOfAPage(PrefixIndex):
    """Finds a page of which a prompt holds only the first tokens."""

    def match(self, tokens: Sequence[int]) -> list[int]:
        pages, rest = super().match(tokens), np.asarray(tokens, "<i8")
        rest = rest[len(pages) * self.page_size :]
        held = self._entries[pages[-1]].children if pages else self._root.children
        longer = [entry.page for found in held.values() for entry in found if entry.tokens.startswith(rest.tobytes())]
        return [*pages, *longer[:1]] if 0 < len(rest) < self.page_size else pages


class WholePrompt(PagedCache):
    """Starts a sequence with all of its prompt, so that nothing is left to compute with."""

    def admit(self, tokens: Sequence[int] | None = None) -> int:
        return super().admit(tokens if tokens is None else [*tokens, 0])


class NewestFirst(Frames):
    """Evicts what was used last."""

    def _evict(self, number: int) -> None:
        self._kept = OrderedDict(reversed(self._kept.items()))
        super()._evict(number)
        self._kept = OrderedDict(reversed(self._kept.items()))


class EvictsNewest(ak.PagePool):
    """Gives the page away that a prompt is likeliest to ask for."""

    def __init__(self, config: ak.KVCacheConfig, *, backend: Any) -> None:
        super().__init__(config, backend=backend)
        self.frames = NewestFirst(self.frames.count)
        self.frames.keep, self.frames.on_evict = self.prefix.__contains__, self.forget


class EvictsInSilence(ak.PagePool):
    """Gives pages away and goes on finding them."""

    def __init__(self, config: ak.KVCacheConfig, *, backend: Any) -> None:
        super().__init__(config, backend=backend)
        self.frames.on_evict = lambda page: None


class NeverForgets(ak.PagePool):
    """Goes on finding a page that has been written over."""

    def forget(self, page: int) -> None:
        pass


class WritesWhatIsFound(ak.PagePool):
    """Takes a page that prompts can find for one of its own, and writes into it."""

    def __init__(self, config: ak.KVCacheConfig, *, backend: Any) -> None:
        super().__init__(config, backend=backend)
        holders = self.frames.holders
        self.frames.holders = lambda page: 1 if page in self.prefix else holders(page)  # type: ignore[method-assign]


def indexed(index: type[PrefixIndex]) -> type[PagedCache]:
    """Give a cache whose prompts are found by a faulty index."""

    class Pool(ak.PagePool):
        def __init__(self, config: ak.KVCacheConfig, *, backend: Any) -> None:
            super().__init__(config, backend=backend)
            self.prefix = index(self.page_size)
            self.frames.keep = self.prefix.__contains__

    return pooled(Pool)


PREFIX_MUTANTS = [
    fault("prefix_by_hash_alone", "TestPrefixes::test_equal_tokens_alone_are_shared", indexed(HashAlone)),
    fault("prefix_after_other_tokens", "TestPrefixes::test_equal_tokens_alone_are_shared", indexed(Anywhere)),
    fault("prefix_of_part_of_a_page", "TestPrefixes::test_equal_tokens_alone_are_shared", indexed(PartOfAPage)),
    fault("prefix_of_the_whole_prompt", "TestPrefixes::test_a_shared_page_is_never_written", WholePrompt),
    fault("newest_page_evicted", "TestPrefixes::test_room_goes_to_those_who_write", pooled(EvictsNewest)),
    fault("evicted_page_found", "TestPrefixes::test_room_goes_to_those_who_write", pooled(EvictsInSilence)),
    fault("overwritten_prefix_found", "TestPrefixes::test_a_shared_page_is_never_written", pooled(NeverForgets)),
    fault("shared_prefix_written", "TestPrefixes::test_a_shared_page_is_never_written", pooled(WritesWhatIsFound)),
]
