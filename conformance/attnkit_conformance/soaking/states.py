"""What random use does to the state of a cache as a whole: going back, away and on.

Axes: ``B`` sequences.
"""

from __future__ import annotations

from typing import Any

import attnkit as ak
from attnkit_conformance.soaking.book import Away, Book, Moment
from attnkit_conformance.soaking.desk import Desk


class StateSteps(Desk):
    """Steps from one state to another one that was kept."""

    def _snapshot(self, book: Book) -> None:
        self.program.append(f"{book.name}_{len(self.program)} = {book.name}.snapshot()")
        book.moments.append(Moment(book.cache.snapshot(), book.state))
        del book.moments[:-3]

    def _restore(self, book: Book) -> None:
        number = int(self.rng.integers(len(book.moments)))
        self.program.append(f"{book.name}.restore(snapshot {number} of {len(book.moments)})")
        book.cache.restore(book.moments[number].snapshot)
        book.state = book.moments[number].state

    def _offload(self, book: Book) -> None:
        row, name = self._row(book), f"away{len(self.program)}"
        path = self.folder / name if self.rng.random() < 0.1 else None
        self.program.append(f"{name} = {book.name}.offload({row}{'' if path is None else ', path'})")
        alone = book.state.arranged([row])
        away = Away(name, book.cache.offload(row, path), alone.lines[0], alone.ragged)
        if away.offloaded.length != away.line.least:
            raise AssertionError(f"length is {away.offloaded.length}, must be {away.line.least}")
        self.away = [*self.away[-3:], away]
        book.state = book.state.arranged([other for other in range(book.state.batch) if other != row])

    def _resume(self, book: Book) -> None:
        away = self.away[int(self.rng.integers(len(self.away)))]
        line, pool = f"{book.name}.resume({away.name})", book.pool
        if pool is not None and not pool.grows and -(-away.line.most // pool.page_size) > pool.free:
            self._refused(book, ak.CacheCapacityError, line, lambda: book.cache.resume(away.offloaded))
            return
        self.program.append(line)
        self._is_last(book, book.cache.resume(away.offloaded))
        book.state = book.state.adding(away.line, away.ragged)

    def _save_and_load(self, book: Book) -> None:
        """Go on with what a file gives back, on any of the backends; snapshots were those of the old cache."""
        path, backend = self.folder / "saved", str(self.rng.choice(self.setting.backends))
        pool = book.pool if backend == book.cache.backend.name and len(self.books) > 1 else None
        self.program.append(f"{book.name}.save(path)")
        book.cache.save(path)
        line = f"{book.name} = ak.load_cache(path, backend={backend!r}{'' if pool is None else ', pool=pool'})"

        def load() -> Any:
            return ak.load_cache(path, backend=backend, pool=pool)

        if pool is not None and not pool.grows and len({page for row in book.cache.rows for page in row}) > pool.free:
            self._refused(book, ak.CacheCapacityError, line, load)
            return
        self.program.append(line)
        loaded, old = load(), book.cache
        book.moments.clear()
        old.select([])  # whenever it is collected, it holds no page any more
        book.cache = loaded
