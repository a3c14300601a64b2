"""What random use does to the list of sequences: forgetting, copying, coming and going.

Axes: ``B`` sequences.
"""

from __future__ import annotations

from collections.abc import Callable

import attnkit as ak
from attnkit_conformance.soaking.book import MOST_SEQUENCES, Book
from attnkit_conformance.soaking.desk import Desk


class SequenceSteps(Desk):
    """Steps on whole sequences."""

    def _truncate(self, book: Book) -> None:
        least = book.state.least
        kept = least if self.rng.random() < 0.3 else self._numbers(least)
        if self.rng.random() < 0.3:
            kept = [int(self.rng.integers(min(least) + 1))] * len(least)
        self._cut(book, f"{book.name}.truncate({kept})", kept, lambda: book.cache.truncate(kept))

    def _drop(self, book: Book) -> None:
        dropped = self._numbers([min(count, 4) for count in book.state.least])
        kept = [count - less for count, less in zip(book.state.least, dropped, strict=True)]
        self._cut(book, f"{book.name}.drop({dropped})", kept, lambda: book.cache.drop(dropped))

    def _cut(self, book: Book, line: str, kept: list[int], call: Callable[[], None]) -> None:
        state = book.state.cut(kept, book.layout)
        if state is None:
            self._refused(book, ak.ShapeError, line, call)
            return
        self.program.append(line)
        call()
        book.state = state

    def _reset(self, book: Book) -> None:
        self.program.append(f"{book.name}.reset()")
        book.cache.reset()
        book.state = self._empty(book.state.batch)

    def _reorder(self, book: Book) -> None:
        source = self.rng.integers(max(book.state.batch, 1), size=book.state.batch).tolist()
        self._arrange(book, f"{book.name}.reorder({source})", source, lambda: book.cache.reorder(source))

    def _select(self, book: Book) -> None:
        batch = book.state.batch
        source = self.rng.integers(batch, size=int(self.rng.integers(batch + 2))).tolist()
        self._arrange(book, f"{book.name}.select({source})", source, lambda: book.cache.select(source))

    def _repeat(self, book: Book) -> None:
        times = int(self.rng.integers(MOST_SEQUENCES // book.state.batch + 1))
        source = [row for row in range(book.state.batch) for _ in range(times)]
        self._arrange(book, f"{book.name}.repeat({times})", source, lambda: book.cache.repeat(times))

    def _release(self, book: Book) -> None:
        row = self._row(book)
        source = [other for other in range(book.state.batch) if other != row]
        self._arrange(book, f"{book.name}.release({row})", source, lambda: book.cache.release(row))

    def _fork(self, book: Book) -> None:
        row = self._row(book)
        source = [*range(book.state.batch), row]
        self._arrange(book, f"{book.name}.fork({row})", source, lambda: self._is_last(book, book.cache.fork(row)))

    def _arrange(self, book: Book, line: str, source: list[int], call: Callable[[], None]) -> None:
        self.program.append(line)
        call()
        book.state = book.state.arranged(source)

    def _admit(self, book: Book) -> None:
        self.program.append(f"{book.name}.admit()")
        self._is_last(book, book.cache.admit())
        book.state = book.state.adding(self._empty(1).lines[0])

    def _admit_known(self, book: Book) -> None:
        """Let a sequence join whose text begins as another one does or did."""
        text = self._text(book) + self.texts.new(int(self.rng.integers(3)))
        self.program.append(f"{book.name}.admit({text})")
        expected = book.cache.match_prefix(text[:-1])
        self._is_last(book, book.cache.admit(text))
        found = int(book.cache.next_position[-1])
        if found != expected or not self.texts.may_find(text[:found]):
            raise AssertionError(f"the sequence begins with {found} tokens, {expected} of them were found before")
        book.state = book.state.adding(self.texts.line(text[:found], len(book.cache)))

    def _remember(self, book: Book) -> None:
        row = self._row(book)
        text = self.texts.of(book.state.lines[row])
        text = text[: int(self.rng.integers(len(text) + 1))] if self.rng.random() < 0.3 else text
        self.program.append(f"{book.name}.remember({row}, {text})")
        found, size = book.cache.remember(row, text), book.config.page_size
        expected = 0 if size is None else len(text) // size * size
        if found != expected or book.cache.match_prefix(text) != expected:
            raise AssertionError(f"{found} of {len(text)} tokens can be found, must be {expected}")
        self.texts.tell(text, size or len(text) + 1)

    def _refused_cut(self, book: Book) -> None:
        """Keep or drop more than there is, or less than nothing."""
        numbers = self._numbers(book.state.least)
        row = self._row(book)
        numbers[row] = int(self.rng.choice([-1, book.state.least[row] + 1, book.state.least[row] + 50]))
        name = str(self.rng.choice(["truncate", "drop"]))
        line = f"{book.name}.{name}({numbers})"
        self._refused(book, ak.ShapeError, line, lambda: getattr(book.cache, name)(numbers))

    def _refused_sequence(self, book: Book) -> None:
        """Ask for a sequence that is not there."""
        row = int(self.rng.choice([-1, book.state.batch, book.state.batch + 7]))
        name = str(self.rng.choice(["fork", "release", "offload", "select", "reorder"]))
        argument = [row] * book.state.batch if name in ("select", "reorder") else row
        line = f"{book.name}.{name}({argument})"
        self._refused(book, ak.ShapeError, line, lambda: getattr(book.cache, name)(argument))
