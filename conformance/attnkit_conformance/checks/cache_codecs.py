"""Codecs: what is read is near what was given, stays what it was, and is what is attended to (C6, C9).

Axes: ``B`` sequences, ``H`` query heads, ``K`` key/value heads, ``T`` query length, ``n`` stored tokens, ``D`` key head
size, ``E`` value head size.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from attnkit.codec import attention_bound
from attnkit_conformance.cache_case import CacheCase
from attnkit_conformance.cache_layouts import Paged
from attnkit_conformance.cache_model import History
from attnkit_conformance.cache_rows import Tokens, coded
from attnkit_conformance.cache_truth import stored_tolerance
from attnkit_conformance.cases import Array, plain
from attnkit_conformance.checking import Checks, over
from attnkit_conformance.checks.cache_grid import cache_case
from attnkit_conformance.compare import assert_equal, assert_within
from attnkit_conformance.structures import CAUSALLY
from attnkit_conformance.subject import Subject


def _coded(codecs: tuple[str, str], **fields: object) -> CacheCase:
    return cache_case("coded", 12, **{"codecs": codecs, "chunk": 2, **fields})


CODED = [
    _coded(("int8", "int8")),
    _coded(("int4", "int4"), layout=Paged(4)),
    _coded(("fp8", "fp8"), layout=Paged(4)),
    _coded(("int8/8", "int4/4"), layers=2),
]
MORE_CODED = [
    cache_case("more-coded", 12, codecs=codecs, chunk=2, **fields)
    for codecs, fields in (
        (("fp8/4", "native"), {"heads": 4}),
        (("native", "int4/8"), {"value_dim": 8, "layout": Paged(5)}),
        (("int8", "fp8"), {"dtype": "bfloat16", "pinned": ("dtype",)}),
        (("int4", "int8"), {"dtype": "float16", "pinned": ("dtype",), "layout": Paged(4)}),
        (("int8", "int8"), {"dtype": "float64", "pinned": ("dtype",)}),
    )
]
EVERY = [*CODED, *MORE_CODED]


class TestCodecs(Checks):
    """C9: reading back is decoding what was encoded once, and attention is over what is read."""

    @over(EVERY)
    def test_within_the_bound(self, backend: Subject, case: CacheCase) -> None:
        """Every feature lies within the stated bound of what was given, for numbers of any size."""
        history = History(backend, case)
        for tokens in _odd_tokens(history):
            for layer in history.layers:
                history.append(tokens, layer=layer)
            history.check()

    @over(EVERY)
    def test_one_huge_token_disturbs_no_other(self, backend: Subject, case: CacheCase) -> None:
        """Scales are those of each token and head: before, beside and after a token of 1000 all others are as near."""
        history = History(backend, case)
        for place in (0, 2, 5):
            for layer in history.layers:
                key, value = history.tokens(6)
                key[0, 0, place], value[-1, -1, place] = key[0, 0, place] * 1000, value[-1, -1, place] * 1000
                history.append((key, value), layer=layer)
            history.check()
            history.attend()

    @over(EVERY)
    def test_nothing_is_encoded_twice(self, backend: Subject, case: CacheCase) -> None:
        """What was read once is read the same for ever: after copies, cuts, growth, going back, and other appends."""
        history = History(backend, case)
        history.extend(7)
        history.check()
        moment = history.snapshot()
        for change in (
            partial(history.fork, 0),
            partial(history.extend, 1),
            partial(history.repeat, 2),
            partial(history.reorder, np.arange(6)[::-1].copy()),
            partial(history.truncate, 5),
            partial(history.extend, 70),
            partial(history.select, [3, 0]),
            partial(history.drop, 60),
            partial(history.release, 1),
            partial(history.restore, moment),
            partial(history.extend, 2),
        ):
            change()
            history.check()
        history.attend()

    @over(EVERY)
    def test_a_cut_counts_what_it_holds(self, backend: Subject, case: CacheCase) -> None:
        """C6: what is counted, read and attended to after a cut are the same tokens, wherever it falls."""
        history = History(backend, case)
        history.extend(9)
        for kept, more in ((7, 0), (7, 1), (4, 3), (3, 1), (1, 9)):
            history.truncate(kept)
            history.check()
            assert_equal(_read_length(history), np.array(kept), what="tokens that are read")
            history.extend(more, value=np.nan)
            history.truncate(kept)
            history.attend()
            history.extend(more)
            history.check()
            history.attend()

    @over(EVERY)
    def test_attention_within_the_stated_bound(self, backend: Subject, case: CacheCase) -> None:
        """The output is as near to attention over the tokens as they were given as their own bounds say."""
        history = History(backend, case)
        history.extend(12)
        history.check()
        query = history.queries(3)
        for options in (CAUSALLY, {}, {"scale": 0.9}):
            answer, near = history.ask(query, options), history.truth(query, options)
            exact = history.truth(query, options, read=False)
            places = history.lists.places(0)
            own = stored_tolerance(near, backend.arithmetic(case.dtype), places).output
            key, value = (history.lists.padded(0, half, read=False) for half in range(2))
            key_bound, value_bound = (_bound(case, half, tokens) for half, tokens in enumerate((key, value)))
            scale = options.get("scale", case.head_dim**-0.5)
            bound = attention_bound(plain(query), key_bound, value_bound, value, scale, weights=exact.weights)
            assert_within(answer.output, exact.output, own + bound, what="output over what was given")


def _odd_tokens(history: History) -> Iterator[Tokens]:
    """Draw tokens of many sizes, some of them equal in all features, zero, or with one feature that counts."""
    top = 1e4 if history.case.stored_dtype == "float16" else 1e30
    for size in (1.0, top, 1 / top):
        key, value = history.tokens(4)
        yield (plain(key) * size).astype(key.dtype), (plain(value) * size).astype(value.dtype)
    key, value = history.tokens(4)
    for array in (key, value):
        array[:, :, 0], array[:, :, 1], array[:, :, 2] = 0, 3, array[:, :, 2, :1]
        array[:, :, 3, 1:] = 0
    yield key, value


def _bound(case: CacheCase, half: int, tokens: Array) -> Array:
    return coded(tokens, case.codec(half), case.stored_dtype)[1]


def _read_length(history: History) -> Array:
    return np.array(history.subject.numpy(history.cache[0].read()[0]).shape[2])
