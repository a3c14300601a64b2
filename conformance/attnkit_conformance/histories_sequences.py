"""The steps of a history that are about whole sequences: copied, coming, going, going back.

Axes: ``B`` sequences.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

import attnkit as ak
from attnkit_conformance.cache_sequences import Away, Moment
from attnkit_conformance.histories_steps import Steps, shown
from attnkit_conformance.subject import codes_of

_MOST: Final = 4  # sequences
_MOMENTS: Final = 3
_FILES: Final = 2


class SequenceRules(Steps):
    """Rules about the list of sequences."""

    def __init__(self) -> None:
        super().__init__()
        self._moments: list[Moment] = []
        self._away: list[Away] = []
        self._reopened = 0

    @precondition(lambda self: self.history.batch)
    @rule(data=st.data())
    def rearrange(self, data: st.DataObject) -> None:
        """C7: permute or duplicate sequences, keep some of them, or make two of each."""
        batch = self.history.batch
        match data.draw(st.sampled_from(("reorder", "select", *["repeat"] * (2 * batch <= _MOST)))):
            case "reorder":
                indices = np.array(self._rows(data, batch, batch))
                with self.step(f"cache.reorder({shown(indices)})"):
                    self.history.reorder(indices)
            case "select":
                rows = self._rows(data, 0, _MOST)
                with self.step(f"cache.select({shown(rows)})"):
                    self.history.select(rows)
            case _:
                with self.step("cache.repeat(2)"):
                    self.history.repeat(2)

    @precondition(lambda self: 0 < self.history.batch < _MOST)
    @rule(data=st.data())
    def fork(self, data: st.DataObject) -> None:
        """C8: add a copy of a sequence."""
        sequence = data.draw(st.integers(0, self.history.batch - 1))
        with self.step(f"cache.fork({sequence})"):
            self.history.fork(sequence)

    @precondition(lambda self: self.history.batch < _MOST and (self.case.ragged or not self.history.least().any()))
    @rule()
    def admit(self) -> None:
        """C8: add an empty sequence."""
        with self.step("cache.admit()"):
            self.history.admit()

    @precondition(lambda self: self.history.batch)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        """C8: take a sequence out."""
        sequence = data.draw(st.integers(0, self.history.batch - 1))
        with self.step(f"cache.release({sequence})"):
            self.history.release(sequence)

    @precondition(lambda self: self.history.batch and self.knows_texts)
    @rule(data=st.data())
    def remember(self, data: st.DataObject) -> None:
        """C8: tell what tokens a sequence holds; equal tokens here means equal keys and values."""
        sequence = data.draw(st.integers(0, self.history.batch - 1))
        tokens = self.history.lists.names(sequence)
        tokens = tokens[: data.draw(st.integers(0, len(tokens)))]
        with self.step(f"cache.remember({sequence}, {shown(tokens)})"):
            self.history.remember(sequence, tokens)

    @precondition(lambda self: self.history.batch < _MOST and self.case.ragged and self.history.lists.texts)
    @rule(data=st.data())
    def admit_known(self, data: st.DataObject) -> None:
        """C8: add a sequence that begins with what is known of a text, or of one that is not quite the same."""
        tokens = [*data.draw(st.sampled_from(self.history.lists.texts)).tokens, 0]
        changed = data.draw(st.integers(0, len(tokens) - 1))
        tokens[changed] = data.draw(st.sampled_from((tokens[changed], -1)))
        with self.step(f"cache.admit({shown(tokens)})"):
            self.history.admit(tokens)

    @property
    def knows_texts(self) -> bool:
        """Whether sequences may share what is known of a text, and it does not matter which pages that is in."""
        return self.case.layout.name == "paged" and self.history.lists.pool is None

    @precondition(lambda self: len(self._moments) < _MOMENTS)
    @rule()
    def snapshot(self) -> None:
        """C6: keep the present state."""
        with self.step(f"moment{len(self._moments)} = cache.snapshot()"):
            self._moments.append(self.history.snapshot())

    @precondition(lambda self: self._moments)
    @rule(data=st.data())
    def restore(self, data: st.DataObject) -> None:
        """C6: go back to a state."""
        number = data.draw(st.integers(0, len(self._moments) - 1))
        with self.step(f"cache.restore(moment{number})"):
            self.history.restore(self._moments[number])

    @precondition(lambda self: self.history.batch and len(self._away) < _MOMENTS)
    @rule(data=st.data())
    def offload(self, data: st.DataObject) -> None:
        """C8: let a sequence leave."""
        sequence, to_file = data.draw(st.integers(0, self.history.batch - 1)), data.draw(st.booleans())
        path = ", path" if to_file else ""
        with self.step(f"away{len(self._away)} = cache.offload({sequence}{path})"):
            self._away.append(self.history.offload(sequence, to_file=to_file))

    @precondition(
        lambda self: self._away and self.history.batch < _MOST and (self.case.ragged or not self.history.batch)
    )
    @rule(data=st.data())
    def resume(self, data: st.DataObject) -> None:
        """C8: let it come back; it may do so again."""
        number = data.draw(st.integers(0, len(self._away) - 1))
        with self.step(f"cache.resume(away{number})"):
            self.history.resume(self._away[number])

    @precondition(lambda self: self._reopened < _FILES)
    @rule()
    def reopen(self) -> None:
        """C11: go on with a cache that is made of a file; snapshots of the other one are of no use to it."""
        self._reopened += 1
        with self.step("cache.save(path); cache = ak.load_cache(path)"):
            try:
                self.history = self.history.reopened()
            except ak.UnsupportedError as error:
                if codes_of(error) != {"save"}:
                    raise
                return
            self._moments.clear()

    def _rows(self, data: st.DataObject, least: int, most: int) -> list[int]:
        number = st.integers(0, self.history.batch - 1)
        return data.draw(st.lists(number, min_size=least, max_size=most))
