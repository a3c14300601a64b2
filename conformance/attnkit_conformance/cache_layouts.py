"""Layouts of caches as the suite asks for them, and what each of them gives up and refuses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final


@dataclass(frozen=True)
class Layout:
    """Every sequence is one piece, and gives up nothing by itself: a contiguous cache."""

    def __str__(self) -> str:
        return self.name

    @property
    def name(self) -> str:
        """What the configuration calls it."""
        return "contiguous"

    @property
    def fields(self) -> Mapping[str, Any]:
        """The fields of the configuration that it alone has."""
        return {}

    @property
    def longest_append(self) -> int | None:
        """Most tokens of one append; ``None`` = any number."""
        return None

    @property
    def first(self) -> int:
        """Tokens at the beginning of a sequence that stay for ever, whatever comes after them."""
        return 0

    def gone_after(self, gone: int, count: int, taken: int) -> int:
        """Give how many tokens a sequence has given up once it took some more, at position ``count``."""
        del count, taken
        return gone

    def gone_within(self, gone: int, kept: int) -> int | None:
        """Give how many it has given up of its first ``kept`` positions; ``None`` where it cannot go back so far."""
        del kept
        return gone


CONTIGUOUS: Final = Layout()


@dataclass(frozen=True)
class Ring(Layout):
    """The last tokens alone, and the first few.

    Attributes
    ----------
    window
        Before every append a sequence keeps its last ``window - 1`` tokens.
    max_append
        Most tokens of one append.
    pinned
        Tokens at its beginning that it never gives up.
    """

    window: int
    max_append: int = 8
    pinned: int = 0

    def __str__(self) -> str:
        return f"ring{self.window}a{self.max_append}" + (f"p{self.pinned}" if self.pinned else "")

    @property
    def name(self) -> str:
        """What the configuration calls it."""
        return "ring"

    @property
    def fields(self) -> Mapping[str, Any]:
        """The fields of the configuration that it alone has."""
        return {"window": self.window, "max_append": self.max_append, "pinned": self.pinned}

    @property
    def longest_append(self) -> int | None:
        """Most tokens of one append."""
        return self.max_append

    @property
    def first(self) -> int:
        """Tokens at the beginning of a sequence that stay for ever."""
        return self.pinned

    def gone_after(self, gone: int, count: int, taken: int) -> int:
        """Give up all but the last ``window - 1`` tokens, and the pinned ones, when something is appended."""
        return max(gone, count - self.pinned - (self.window - 1)) if taken else gone

    def gone_within(self, gone: int, kept: int) -> int | None:
        """Go back as long as the next query finds all that it sees, or to pinned tokens alone."""
        if kept <= self.pinned or not gone:
            return 0
        return gone if kept - self.pinned - gone >= self.window - 1 else None


@dataclass(frozen=True)
class Paged(Layout):
    """Pages of a pool.

    Attributes
    ----------
    page_size
        Tokens in a page.
    num_pages
        Pages in the pool, or 0 for as many as ``max_length`` asks for, or as are needed.
    """

    page_size: int
    num_pages: int = 0

    def __str__(self) -> str:
        return f"paged{self.page_size}" + (f"x{self.num_pages}" if self.num_pages else "")

    @property
    def name(self) -> str:
        """What the configuration calls it."""
        return "paged"

    @property
    def fields(self) -> Mapping[str, Any]:
        """The fields of the configuration that it alone has."""
        return {"page_size": self.page_size, "num_pages": self.num_pages or None}

    def pages(self, tokens: int) -> int:
        """Give how many pages some tokens take."""
        return -(-tokens // self.page_size)
