"""History: a cache, and beside it the plain lists that it must be equal to.

Axes: ``B`` sequences, ``H`` query heads, ``K`` key/value heads, ``T`` new tokens, ``n`` stored tokens, ``D`` query/key
head size, ``E`` value head size.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

import attnkit as ak
from attnkit import reference
from attnkit_conformance.cache_case import CacheCase
from attnkit_conformance.cache_lists import Lists
from attnkit_conformance.cache_rows import Tokens, coded
from attnkit_conformance.cache_sequences import Sequences
from attnkit_conformance.cache_truth import stored_tolerance, stored_truth
from attnkit_conformance.caches import CacheUnderTest
from attnkit_conformance.cases import Array
from attnkit_conformance.compare import assert_equal, assert_like, assert_within
from attnkit_conformance.measuring import held
from attnkit_conformance.structures import CAUSALLY
from attnkit_conformance.subject import Answer, Subject


class History(Sequences):
    """A cache, and beside it what it must hold.

    Every operation is done to both. Where the layout must refuse it, that is checked instead, and that nothing changed;
    the answer is then ``False``.

    Parameters
    ----------
    subject, case
        Whose cache, and which.
    cache
        The cache, made already; by default a new one.
    """

    def __init__(self, subject: Subject, case: CacheCase, cache: CacheUnderTest | None = None) -> None:
        self.subject = subject
        self.case = case
        self.cache = subject.make_cache(case.config()) if cache is None else cache
        self.rng = case.rng("history")
        self.lists = Lists(case)
        self._held: CacheUnderTest | None = None

    @property
    def layers(self) -> range:
        """Numbers of the layers."""
        return range(self.case.layers)

    @property
    def batch(self) -> int:
        """Sequences."""
        return self.lists.batch

    def positions(self, layer: int = 0) -> Array:
        """Give the position of the next token of each sequence, ``[B]``."""
        return self.lists.positions(layer)

    def lengths(self, layer: int = 0) -> Array:
        """Give how many tokens each sequence of a layer must hold, ``[B]``."""
        return self.lists.places(layer).lengths

    def least(self) -> Array:
        """Give the positions that every layer has reached, ``[B]``."""
        return self.lists.least()

    @property
    def is_even(self) -> bool:
        """Whether all layers have reached the same positions."""
        return all(np.array_equal(self.positions(layer), self.least()) for layer in self.layers)

    def tokens(self, count: int, dtype: str = "") -> Tokens:
        """Draw new keys and values ``[B, K, count, D]`` and ``[B, K, count, E]``."""
        head, dtype = (self.batch, self.case.kv_heads, count), dtype or self.case.stored_dtype
        return self._draw(dtype, *head, self.case.head_dim), self._draw(dtype, *head, self.case.width)

    def queries(self, count: int | None = None) -> Array:
        """Draw queries ``[B, H, count, D]``."""
        case = self.case
        return self._draw(case.dtype, self.batch, case.heads, count or case.rows, case.head_dim)

    # Appending and attending

    def append(self, tokens: Tokens, lengths: Array | None = None, *, layer: int = 0) -> list[Any]:
        """Append to both; gives the arrays that the cache was given. No tokens leave all as it was, lengths too."""
        given = [self.subject.array(array) for array in tokens]
        taken = np.full(self.batch, tokens[0].shape[2]) if lengths is None else np.asarray(lengths)
        if self._done(
            ak.CacheCapacityError,
            lambda: self.cache[layer].append(*given, lengths=lengths),
            self.lists.may_take(layer, taken),
        ):
            self.lists.take(layer, tokens, taken, ragged=lengths is not None)
        return given

    def extend(self, count: int, *, value: float | None = None) -> None:
        """Append ``count`` tokens to every layer, of numbers of their own or all of one ``value``.

        As many at a time as the layout takes.
        """
        most = self.case.layout.longest_append or count
        for start in range(0, max(count, 1), max(most, 1)):
            for layer in self.layers:
                tokens = self.tokens(min(most, count - start))
                for array in tokens if value is not None else ():
                    array[...] = value
                self.append(tokens, layer=layer)

    def step(self, count: int, lengths: Array | None = None) -> None:
        """Append ``count`` tokens to every layer, and attend with as many queries, inside a step.

        It is held until the next one has begun, as by someone who captured work in it.
        """
        step = self._held = self.cache.begin_step(count, lengths)
        taken = np.full(self.batch, count) if lengths is None else lengths
        for layer in self.layers:
            tokens = self.tokens(count)
            step[layer].append(*map(self.subject.array, tokens))
            self.lists.take(layer, tokens, taken, ragged=lengths is not None)
        self.attend(count, self.case.options, inside=step)

    def ask(
        self,
        query: Array,
        options: Mapping[str, Any] = CAUSALLY,
        *,
        layer: int = 0,
        lse: bool = True,
        inside: CacheUnderTest | None = None,
    ) -> Answer:
        """Attend over the cache with NumPy queries; with the log-sum-exp too, where it is wanted and declared."""
        subject, arguments = self.subject, self.subject.options(options)
        wanted = lse and subject.capabilities.lse
        asked = (self.cache if inside is None else inside)[layer]
        output, *rest = map(subject.numpy, asked.attend(subject.array(query), arguments, lse=wanted))
        return Answer(output, rest[0] if rest else None)

    def attend(
        self,
        count: int | None = None,
        options: Mapping[str, Any] = CAUSALLY,
        *,
        inside: CacheUnderTest | None = None,
    ) -> None:
        """Attend over every layer with new queries; check against the oracle on the plain concatenation.

        Where tokens are not stored as they are, it is that of what reading gives. ``inside`` a step it stands in for
        the cache.
        """
        for layer in self.layers if self.batch else ():
            if not self.lists.known(layer).all():
                self._read(layer)
            query = self.queries(count)
            options = self._told(options, layer, query.shape[2])
            answer, truth = self.ask(query, options, layer=layer, inside=inside), self.truth(query, options, layer)
            numerics, places = self.subject.arithmetic(self.case.dtype), self.lists.places(layer)
            bound = stored_tolerance(truth, numerics, places)
            where = f"layer {layer}, which holds {places.lengths.tolist()}"
            assert_like(answer.output, truth.output.shape, self.case.dtype, what=f"output of {where}")
            assert_within(answer.output, truth.output, bound.output, what=f"output of {where}")
            if answer.lse is not None:
                assert_within(answer.lse, truth.lse, bound.lse, what=f"lse of {where}")

    def truth(self, query: Array, options: Mapping[str, Any], layer: int = 0, *, read: bool = True) -> reference.Truth:
        """Give what the oracle says of a query over a layer; ``read=False``: over the tokens as they were given."""
        ragged = self.lists.state.ragged[layer]
        if ragged is not None and ragged.tokens == query.shape[2] and "query_lengths" not in options:
            options = {**options, "query_lengths": ragged.taken}
        key, value = (self.lists.padded(layer, half, read=read) for half in range(2))
        return stored_truth(query, key, value, options, self.lists.places(layer))

    # Looking

    def check(self) -> None:
        """Compare everything else that can be observed: counters, and what ``read`` gives."""
        for number in self.layers:
            layer, lengths = self.cache[number], self.lengths(number)
            if self.batch:
                assert_equal(layer.counted("stored"), lengths, what=f"stored of layer {number}")
                assert_equal(
                    layer.counted("next_position"), self.positions(number), what=f"next_position of layer {number}"
                )
            capacity = layer.counted("capacity")
            if capacity.shape != lengths.shape or (capacity < lengths).any():
                raise AssertionError(f"layer {number} holds {lengths.tolist()}, over its capacity {capacity}")
            self._read(number)
        assert_equal(self.cache.counted("batch_size"), np.array(self.batch), what="batch_size")
        if self.batch:
            held_by_all = np.min([self.lengths(layer) for layer in self.layers], axis=0)
            assert_equal(self.cache.counted("stored"), held_by_all, what="stored of the stack")
            assert_equal(self.cache.counted("next_position"), self.least(), what="next_position of the stack")
        try:
            self.cache.check_invariants()
        except RuntimeError as error:
            raise AssertionError(f"the cache's own bookkeeping: {error}") from error

    def reopened(self, case: CacheCase | None = None) -> History:
        """Save the cache, and give the history of another one that is made of the file, of another case too."""
        wanted = self.case if case is None else case
        cache = self.cache.loaded(self.cache.save(), None if case is None else case.config())
        other = History(self.subject, wanted, cache)
        other.lists = self.lists.reopened(wanted)
        return other

    def refused(self, kind: type[Exception], call: Callable[[], object]) -> None:
        """Check that a call raises an error, and that afterwards everything is as it was."""
        try:
            call()
        except kind:
            held(f"raises {kind.__name__}")
            self.check()
        else:
            raise AssertionError(f"the call must raise {kind.__name__}, it gave a result")

    def fails(self, kind: type[Exception], call: Callable[[], object]) -> None:
        """Check the same, and that attending gives what it gave before."""
        query = self.queries()
        before = self.ask(query).output
        self.refused(kind, call)
        self.assert_same(self.ask(query).output, before, what="output after a call that failed")

    def assert_same(self, output: Array, expected: Array, *, what: str) -> None:
        """Check that attending gave the same bits as before, where the backend declares to be deterministic."""
        if self.subject.capabilities.deterministic:
            assert_equal(output, expected, what=what)

    def _read(self, number: int) -> None:
        """Check what reading a layer gives: bit for bit where it was read before, else within a bound."""
        known, read = self.lists.known(number), []
        for half, (name, array) in enumerate(zip(("key", "value"), self.cache[number].read(), strict=True)):
            what, seen = f"{name} read from layer {number}", self.subject.numpy(array)
            expected = self.lists.padded(number, half, read=True)
            assert_like(seen, expected.shape, self.case.stored_dtype, what=what)
            if expected.size and known.all():
                assert_equal(seen, expected, what=what)
            elif expected.size:
                given = self.lists.padded(number, half, read=False)
                near, bound = coded(given, self.case.codec(half), self.case.stored_dtype)
                old = known[:, None, :, None]
                assert_within(seen, np.where(old, expected, near), np.where(old, 0, bound), what=what)
            read.append(seen)
        if not known.all():
            self.lists.learn(number, (read[0], read[1]))

    def _told(self, options: Mapping[str, Any], layer: int, rows: int) -> Mapping[str, Any]:
        """Say how many queries there are where nothing else does."""
        ragged = self.lists.state.ragged[layer]
        unsaid = ragged is not None and ragged.tokens == rows and ragged.taken is None
        return {**options, "query_lengths": np.full(self.batch, rows)} if unsaid else options

    def _draw(self, dtype: str, *shape: int) -> Array:
        return self.rng.standard_normal(shape).astype(np.dtype(dtype))
