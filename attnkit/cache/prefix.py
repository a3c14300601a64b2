"""PrefixIndex, which pages hold which tokens, so that a prompt finds the pages of its beginning.

A tree: the children of a page are the pages that were filled right after it. An entry is reached only through the
entries of all tokens before it, and leaves the index together with what follows it; so a page number that is entered
again for another text never leads to what once followed it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from operator import index
from typing import Any

import numpy as np

from attnkit.errors import DTypeError, ShapeError
from attnkit.pages import IntArray

_TOKEN = np.dtype("<i8")


def hash_tokens(tokens: bytes) -> int:
    """Give 64 bits that are the same in every process."""
    return int.from_bytes(blake2b(tokens, digest_size=8).digest(), "little")


@dataclass(slots=True, eq=False)
class _Entry:
    """A full page: what it holds, and what follows it, by hash."""

    page: int
    tokens: bytes
    key: int
    parent: _Entry | None
    children: dict[int, list[_Entry]] = field(default_factory=dict)

    def child(self, tokens: bytes, key: int) -> _Entry | None:
        """Give the entry that follows with these tokens; equal hashes are not enough."""
        return next((child for child in self.children.get(key, ()) if child.tokens == tokens), None)

    def attach(self, entry: _Entry) -> None:
        """Let an entry follow."""
        self.children.setdefault(entry.key, []).append(entry)

    def detach(self, entry: _Entry) -> None:
        """Let an entry follow no longer."""
        bucket = self.children[entry.key]
        bucket.remove(entry)
        if not bucket:
            del self.children[entry.key]

    def followers(self) -> Iterator[_Entry]:
        """Give the children."""
        for bucket in self.children.values():
            yield from bucket


class PrefixIndex:
    """Full pages by the tokens that they and all pages before them hold; a hash finds candidates, the tokens decide.

    Parameters
    ----------
    page_size
        Tokens in a page.
    hashed
        Gives an integer for the bytes of a page's tokens. Equal hashes cost time and never join two texts.
    """

    def __init__(self, page_size: int, hashed: Callable[[bytes], int] = hash_tokens) -> None:
        if page_size < 1:
            raise ShapeError(f"page_size must be 1 or more, got {page_size}")
        self.page_size = page_size
        self._hashed = hashed
        self._root = _Entry(-1, b"", 0, None)
        self._entries: dict[int, _Entry] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, page: object) -> bool:
        """Tell whether a page can be matched."""
        return page in self._entries

    def add(self, tokens: Sequence[int], pages: Sequence[int]) -> None:
        """Enter the full pages of a sequence; a beginning that is known already keeps the pages it has.

        Takes time in proportion to all tokens, new or not: meant for the end of a prompt or a sequence, not each token.

        Parameters
        ----------
        tokens
            All tokens of the sequence from its start.
        pages
            The pages that they lie in, in order; what follows the last full one is not looked at.

        Raises
        ------
        ShapeError
            If the pages are too few, or one is entered for other tokens (``forget`` it before it changes).
        DTypeError
            If a token is no integer.
        """
        blocks = self._blocks(tokens)
        own = [index(page) for page in pages[: len(blocks)]]
        path = self._walk(blocks)
        self._check_pages(own, len(blocks), path)
        rest = zip(own[len(path) :], blocks[len(path) :], strict=True)
        new = [(page, block, self._hashed(block)) for page, block in rest]
        parent = path[-1] if path else self._root
        for page, block, key in new:
            entry = _Entry(page, block, key, parent)
            parent.attach(entry)
            self._entries[page] = entry
            parent = entry

    def match(self, tokens: Sequence[int]) -> list[int]:
        """Give the pages, in order, that hold the longest known beginning of ``tokens``; full pages only.

        Raises
        ------
        ShapeError, DTypeError
            If a token is no integer of 64 bits.
        """
        return [entry.page for entry in self._walk(self._blocks(tokens))]

    def forget(self, page: int) -> list[int]:
        """Drop a page whose content changes or goes, and all pages that were matched through it.

        Returns
        -------
        list of int
            The pages that left the index, ``page`` first; empty if it was not entered.
        """
        entry = self._entries.get(page)
        if entry is None or entry.parent is None:
            return []
        entry.parent.detach(entry)
        gone = _subtree(entry)
        for each in gone:
            del self._entries[each.page]
        return [each.page for each in gone]

    def renumber(self, homes: IntArray) -> None:
        """Call page ``p`` by the number ``homes[p]`` from now on."""
        for entry in self._entries.values():
            entry.page = int(homes[entry.page])
        self._entries = {entry.page: entry for entry in self._entries.values()}

    def check(self) -> None:
        """Make sure that every entry is reached once, from the entry that its text goes on from.

        Raises
        ------
        RuntimeError
            If one is not; the message names its page.
        """
        reached = _subtree(self._root)[1:]
        if len(reached) != len(self._entries) or {entry.page: entry for entry in reached} != self._entries:
            tree = sorted(entry.page for entry in reached)
            raise RuntimeError(f"the index lists pages {sorted(self._entries)}, its tree holds {tree} or other entries")
        for entry in reached:
            siblings = () if entry.parent is None else entry.parent.children.get(entry.key, ())
            alike = [sibling.page for sibling in siblings if sibling.tokens == entry.tokens]
            if alike != [entry.page]:
                raise RuntimeError(f"page {entry.page} is entered among {alike} for one text")
            if entry.key != self._hashed(entry.tokens) or len(entry.tokens) != self.page_size * _TOKEN.itemsize:
                raise RuntimeError(f"page {entry.page} is entered under a hash or a size that is not its own")
        for entry in (self._root, *reached):
            if not all(entry.children.values()):
                raise RuntimeError(f"page {entry.page} is said to be followed by what has left the index")

    def _walk(self, blocks: list[bytes]) -> list[_Entry]:
        """Give the entries of the longest known beginning."""
        path = [self._root]
        for block in blocks:
            entry = path[-1].child(block, self._hashed(block))
            if entry is None:
                break
            path.append(entry)
        return path[1:]

    def _blocks(self, tokens: Sequence[int]) -> list[bytes]:
        """Give the tokens of each full page as bytes."""
        size = self.page_size * _TOKEN.itemsize
        stored = _token_bytes(tokens)
        return [stored[start : start + size] for start in range(0, len(stored) // size * size, size)]

    def _check_pages(self, pages: list[int], needed: int, path: list[_Entry]) -> None:
        if len(pages) < needed:
            raise ShapeError(f"pages must name the {needed} full pages of tokens, got {len(pages)}")
        if len(set(pages)) < len(pages):
            raise ShapeError(f"pages must all differ, got {pages}")
        if min(pages, default=0) < 0:
            raise ShapeError(f"pages must be 0 or more, got {min(pages)}")
        known: list[_Entry | None] = [*path, *[None] * (needed - len(path))]
        for page, entry in zip(pages, known, strict=True):
            if self._entries.get(page, entry) is not entry:
                raise ShapeError(f"page {page} is entered for other tokens; forget it before it is written again")


def _subtree(entry: _Entry) -> list[_Entry]:
    """Give an entry and all that follows it, parents first."""
    found = [entry]
    for each in found:
        found.extend(each.followers())
    return found


def _token_bytes(tokens: Any) -> bytes:
    numbers = tokens.tolist() if isinstance(tokens, np.ndarray) else tokens
    try:
        return np.fromiter((index(number) for number in numbers), _TOKEN).tobytes()
    except TypeError as error:
        raise DTypeError(f"tokens must be integers, got {type(tokens).__name__}: {error}") from error
    except OverflowError as error:
        raise ShapeError(f"tokens must lie in -2**63..2**63 - 1: {error}") from error
