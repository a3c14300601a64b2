"""What a KV cache must be equal to: plain lists of what each sequence was given, kept beside the cache.

Axes: ``B`` batch, ``H`` query heads, ``K`` key/value heads, ``T`` new tokens, ``n`` stored tokens, ``D`` query/key head
size, ``E`` value head size.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

import attnkit as ak
from attnkit import reference
from attnkit_conformance.cases import Array, Case
from attnkit_conformance.compare import assert_equal, assert_like, assert_within
from attnkit_conformance.oracle import tolerance_of, truth_of
from attnkit_conformance.structures import CAUSALLY
from attnkit_conformance.subject import Answer, Subject

Tokens = tuple[Array, Array]


@dataclass(frozen=True, kw_only=True, eq=False)
class CacheCase(Case):
    """A case whose keys and values go through a cache: ``queries = keys`` tokens of each sequence.

    Attributes
    ----------
    layers
        Layers of the stack.
    max_length
        Capacity, or 0 for a growing cache.
    chunk
        How many tokens come, and how many queries are asked, at a time; 0 = it varies.
    ragged
        Sequences take different numbers of tokens, which takes ``lengths``.
    stored
        Element type of the cache, if it is not that of the queries.
    """

    layers: int = 1
    max_length: int = 0
    chunk: int = 0
    ragged: bool = False
    stored: str = ""

    def __str__(self) -> str:
        kind = f"fixed{self.max_length}" if self.max_length else "growing"
        return f"{super().__str__()}-{kind}{self.stored}{'-ragged' if self.ragged else ''}-by{self.chunk or 'any'}"

    @property
    def rows(self) -> int:
        """How many queries to ask at a time."""
        return self.chunk or 3

    @property
    def stored_dtype(self) -> str:
        """Element type of the cache."""
        return self.stored or self.dtype

    def undeclared(self, capabilities: ak.Capabilities) -> tuple[str, ...]:
        """Give the fields that say no; a cache of an undeclared type is refused before anything else is known."""
        missing = super().undeclared(capabilities)
        refused = "dtypes" in missing or self.stored_dtype not in capabilities.dtypes
        return ("dtypes",) if refused else missing

    def features(self) -> Iterator[str]:
        """Give the fields that are simply yes or no, as the case needs them."""
        yield from super().features()
        if self.ragged:
            yield "lengths"
        if self.stored_dtype != self.dtype:
            yield "kv_dtype"

    def config(self) -> dict[str, Any]:
        """Give the fields of the configuration of the cache."""
        return {
            "num_layers": self.layers,
            "batch_size": self.batch,
            "num_kv_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "value_dim": self.width,
            "max_length": self.max_length or None,
            "dtype": self.stored_dtype,
        }

    def call(self, subject: Subject) -> Answer:
        """Append, then attend; a refusal must leave the cache as it was (A18, C3)."""
        history = History(subject, self)
        try:
            history.append(*self._first(history))
            return history.ask(history.queries(), self.options)
        except ak.UnsupportedError:
            history.check()
            raise

    def _first(self, history: History) -> tuple[Tokens, Array | None]:
        """Give what to append: all tokens, or a few of which each sequence takes a number of its own."""
        if self.ragged:
            return history.tokens(self.rows), np.arange(self.batch)
        return history.tokens(self.keys), None


class History:
    """A cache, and beside it what it must hold: for each layer and sequence, the plain concatenation."""

    def __init__(self, subject: Subject, case: CacheCase) -> None:
        self.subject = subject
        self.case = case
        self.cache = subject.make_cache(case.config())
        self.rng = case.rng("history")
        self.held: list[list[Tokens]] = []
        self._ragged: dict[int, tuple[int, Array]] = {}
        self.forget_all()

    @property
    def layers(self) -> range:
        """Numbers of the layers."""
        return range(self.case.layers)

    def lengths(self, layer: int = 0) -> Array:
        """Give how many tokens each sequence of a layer must hold, ``[B]``."""
        return np.array([key.shape[1] for key, _ in self.held[layer]])

    def least(self) -> Array:
        """Give how many tokens of each sequence every layer holds, ``[B]``."""
        return np.asarray(np.min([self.lengths(layer) for layer in self.layers], axis=0))

    def tokens(self, count: int) -> Tokens:
        """Draw new keys and values ``[B, K, count, D]`` and ``[B, K, count, E]``."""
        head, dtype = (self.case.batch, self.case.kv_heads, count), self.case.stored_dtype
        return self._draw(dtype, *head, self.case.head_dim), self._draw(dtype, *head, self.case.width)

    def queries(self, count: int | None = None) -> Array:
        """Draw queries ``[B, H, count, D]``."""
        case = self.case
        return self._draw(case.dtype, case.batch, case.heads, count or case.rows, case.head_dim)

    def append(self, tokens: Tokens, lengths: Array | None = None, *, layer: int = 0) -> list[Any]:
        """Append to both; gives the arrays that the cache was given. No tokens leave all as it was, lengths too."""
        given = [self.subject.array(array) for array in tokens]
        self.cache[layer].append(*given, lengths=lengths)
        count, batch = tokens[0].shape[2], self.case.batch
        taken = np.full(batch, count) if lengths is None else np.asarray(lengths)
        for b, (key, value) in enumerate(self.held[layer]):
            new_key, new_value = (array[b, :, : taken[b]] for array in tokens)
            self.held[layer][b] = np.concatenate([key, new_key], axis=1), np.concatenate([value, new_value], axis=1)
        if count:
            self._ragged.pop(layer, None)
            if lengths is not None:
                self._ragged[layer] = (count, taken)
        return given

    def extend(self, count: int, *, value: float | None = None) -> None:
        """Append ``count`` tokens to every layer, of numbers of their own or all of one ``value``."""
        for layer in self.layers:
            tokens = self.tokens(count)
            for array in tokens if value is not None else ():
                array[...] = value
            self.append(tokens, layer=layer)

    def truncate(self, lengths: Array | int) -> None:
        """Truncate both."""
        self.cache.truncate(lengths)
        self._keep(np.broadcast_to(lengths, (self.case.batch,)))

    def drop(self, count: Array | int) -> None:
        """Drop the last tokens of both, counted from what every layer holds."""
        least = self.least()
        self.cache.drop(count)
        self._keep(least - count)

    def reset(self) -> None:
        """Reset both."""
        self.cache.reset()
        self.forget_all()

    def reorder(self, indices: Array) -> None:
        """Reorder both, with the lengths that the next queries take."""
        self.cache.reorder(indices)
        self.held = [[layer[index] for index in indices] for layer in self.held]
        self._ragged = {layer: (count, taken[indices]) for layer, (count, taken) in self._ragged.items()}

    def forget_all(self) -> None:
        """Let nothing be held."""
        key, value = self.tokens(0)
        self.held = [list(zip(key, value, strict=True)) for _ in self.layers]
        self._ragged.clear()

    def ask(self, query: Array, options: Mapping[str, Any] = CAUSALLY, *, layer: int = 0, lse: bool = True) -> Answer:
        """Attend over the cache with NumPy queries; with the log-sum-exp too, where it is wanted and declared."""
        subject, arguments = self.subject, self.subject.options(options)
        wanted = lse and subject.capabilities.lse
        output, *rest = map(subject.numpy, self.cache[layer].attend(subject.array(query), arguments, lse=wanted))
        return Answer(output, rest[0] if rest else None)

    def attend(self, count: int | None = None, options: Mapping[str, Any] = CAUSALLY) -> None:
        """Attend over every layer with new queries; check against the oracle on the plain concatenation."""
        for layer in self.layers:
            query = self.queries(count)
            answer, truth = self.ask(query, options, layer=layer), self._truth(query, options, layer)
            bound = tolerance_of(truth, self.subject.numerics(self.case.dtype))
            where = f"layer {layer}, which holds {self.lengths(layer).tolist()}"
            assert_like(answer.output, truth.output.shape, self.case.dtype, what=f"output of {where}")
            assert_within(answer.output, truth.output, bound.output, what=f"output of {where}")
            if answer.lse is not None:
                assert_within(answer.lse, truth.lse, bound.lse, what=f"lse of {where}")

    def check(self) -> None:
        """Compare everything else that can be observed: counters, and what ``read`` gives, bit for bit."""
        for number in self.layers:
            layer, lengths = self.cache[number], self.lengths(number)
            for name in ("stored", "next_position"):
                assert_equal(layer.counted(name), lengths, what=f"{name} of layer {number}")
            capacity = layer.counted("capacity")
            if (capacity < lengths).any():
                raise AssertionError(f"layer {number} holds {lengths.tolist()}, over its capacity {capacity}")
            for name, array, expected in zip(("key", "value"), layer.read(), self._padded(number), strict=True):
                read = self.subject.numpy(array)
                assert_like(read, expected.shape, self.case.stored_dtype, what=f"{name} read from layer {number}")
                if expected.size:
                    assert_equal(read, expected, what=f"{name} read from layer {number}")
        assert_equal(self.cache.counted("stored"), self.least(), what="stored of the stack")

    def assert_same(self, output: Array, expected: Array, *, what: str) -> None:
        """Check that attending gave the same bits as before, where the backend declares to be deterministic."""
        if self.subject.capabilities.deterministic:
            assert_equal(output, expected, what=what)

    def _draw(self, dtype: str, *shape: int) -> Array:
        return self.rng.standard_normal(shape).astype(np.dtype(dtype))

    def _keep(self, lengths: Array) -> None:
        self.held = [
            [(key[:, :n], value[:, :n]) for (key, value), n in zip(layer, lengths, strict=True)] for layer in self.held
        ]
        self._ragged.clear()

    def _truth(self, query: Array, options: Mapping[str, Any], layer: int) -> reference.Truth:
        key, value = self._padded(layer)
        count, taken = self._ragged.get(layer, (-1, None))
        if count == query.shape[2]:
            options = {**options, "query_lengths": taken}
        return truth_of(query, key, value, {**options, "kv_lengths": self.lengths(layer)})

    def _padded(self, layer: int) -> Tokens:
        """Give what a layer must hold as ``[B, K, n, D]`` and ``[B, K, n, E]``, zeros after a shorter sequence."""
        longest = int(self.lengths(layer).max())
        key, value = (
            np.stack([np.pad(array, ((0, 0), (0, longest - array.shape[1]), (0, 0))) for array in arrays])
            for arrays in zip(*self.held[layer], strict=True)
        )
        return key, value
