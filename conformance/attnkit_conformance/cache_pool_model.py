"""PoolModel: the pages of a pool of fixed size, and which sequences and snapshots hold them.

A sequence of ``n`` tokens holds as many pages as they need. Copies and snapshots share pages until one of them writes:
then it takes another one. What nobody holds is free.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain, count

from attnkit_conformance.cache_layouts import Paged

Pages = tuple[int, ...]


@dataclass
class PoolModel:
    """Who holds what.

    Attributes
    ----------
    layout
        Of the cache.
    size
        Pages in all.
    rows
        The pages of each sequence.
    snapshots
        Those of sequences that were kept.
    """

    layout: Paged
    size: int
    rows: list[Pages]
    snapshots: list[list[Pages]] = field(default_factory=list)
    _numbers: count[int] = field(default_factory=count)

    @property
    def free(self) -> int:
        """Pages that nobody holds."""
        return self.size - len(self._holders(self.rows))

    def without_snapshots(self) -> PoolModel:
        """Give the pages of the same sequences in another pool, which no snapshot holds."""
        return PoolModel(self.layout, self.size, list(self.rows), [], self._numbers)

    def needed(self, starts: Sequence[int], taken: Sequence[int]) -> range:
        """Give how many pages must be free for some tokens more; the first number may do, with the last it must."""
        rows, fresh = self._extended(starts, taken)
        least = len(self._holders(rows)) - len(self._holders(self.rows))
        return range(least, fresh + 1)

    def take(self, starts: Sequence[int], taken: Sequence[int]) -> None:
        """Let every sequence take some tokens."""
        self.rows = self._extended(starts, taken)[0]

    def cut(self, counts: Sequence[int]) -> None:
        """Let every sequence keep what its tokens need."""
        self.rows = [row[: self.layout.pages(n)] for row, n in zip(self.rows, counts, strict=True)]

    def arrange(self, source: Sequence[int | None]) -> None:
        """Let row ``i`` be what was row ``source[i]``."""
        self.rows = [() if row is None else self.rows[row] for row in source]

    def _extended(self, starts: Sequence[int], taken: Sequence[int]) -> tuple[list[Pages], int]:
        """Give the rows after an append, and the pages that it takes where every writer copies what it shares."""
        holders, rows, fresh = self._holders(self.rows), [], 0
        for row, start, more in zip(self.rows, starts, taken, strict=True):
            pages = list(row)
            for place in range(start // self.layout.page_size, self.layout.pages(start + more) if more else 0):
                if place < len(pages) and holders[pages[place]] == 1:
                    continue
                pages[place : place + 1] = [next(self._numbers)]
                fresh += 1
            rows.append(tuple(pages))
        return rows, fresh

    def _holders(self, rows: Sequence[Pages]) -> Counter[int]:
        return Counter(chain.from_iterable(chain(rows, *self.snapshots)))
