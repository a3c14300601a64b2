"""Desk: books of caches, the dice of a step, and what every step does with them.

Axes: ``B`` sequences.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from attnkit_conformance.soaking.book import Away, Book, Texts, check_pool, poison
from attnkit_conformance.soaking.setting import Setting
from attnkit_conformance.soaking.state import State
from attnkit_conformance.soaking.tokens import Tokens


class Desk:
    """Caches, and beside them what they must hold.

    Attributes
    ----------
    program
        What was done, as a straight line of calls.
    rng
        The dice of the present step.
    """

    def __init__(self, setting: Setting, folder: Path) -> None:
        self.setting = setting
        self.folder = folder
        self.tokens = Tokens(setting.config)
        self.texts = Texts()
        self.away: list[Away] = []
        self.program = list(setting.program)
        self.books = [Book(name, cache, self._empty(cache.batch_size)) for name, cache in setting.make().items()]
        self.rng = np.random.default_rng(0)

    def check(self) -> None:
        """Look at everything, and then poison what is dead."""
        for pool, books in self._pools():
            for book in books:
                book.check(self.tokens)
            if pool is not None:
                check_pool(pool, books)
            poison(books)

    def _refused(self, book: Book, kind: type[Exception], line: str, call: Callable[[], object]) -> None:
        """Check that a call raises an error and changes nothing; counters and tokens are looked at after each step."""
        self.program.append(f"{line}  # must raise {kind.__name__}")
        before = book.observed()
        try:
            call()
        except kind:
            after = book.observed()
            if after != before:
                raise AssertionError(f"a refused call changed {before} to {after}") from None
        else:
            raise AssertionError(f"{kind.__name__} must be raised")

    def _numbers(self, most: list[int]) -> list[int]:
        """Give a number for each sequence, from 0 to the most there may be."""
        return [int(self.rng.integers(number + 1)) for number in most]

    def _row(self, book: Book) -> int:
        return int(self.rng.integers(book.state.batch))

    def _text(self, book: Book) -> list[int]:
        """Give the text of a sequence, of one that is away or in a snapshot, or one that was told lately."""
        if self.texts.lately and self.rng.random() < 0.7:
            return self.texts.lately[int(self.rng.integers(len(self.texts.lately)))]
        lines = [*book.state.lines, *(away.line for away in self.away)]
        lines += [line for other in self.books for moment in other.moments for line in moment.state.lines]
        return self.texts.of(lines[int(self.rng.integers(len(lines)))])

    def _empty(self, batch: int) -> State:
        return State.empty(self.setting.config.num_layers, batch)

    def _is_last(self, book: Book, number: int) -> None:
        if number != book.cache.batch_size - 1:
            raise AssertionError(f"the number of the new sequence is {number}, of {book.cache.batch_size}")

    def _sharing(self, book: Book) -> list[Book]:
        return [other for other in self.books if other.pool is book.pool]

    def _pools(self) -> Iterator[tuple[Any, list[Book]]]:
        """Give the books that share storage: those of one pool, or each by itself."""
        found: list[list[Book]] = []
        for book in self.books:
            shared = next((books for books in found if book.pool is not None and books[0].pool is book.pool), None)
            if shared is None:
                found.append([book])
            else:
                shared.append(book)
        return ((books[0].pool, books) for books in found)
