"""Pinned tokens of a ring are seen outside of any window; everything else is that of one call (A3-A10, C9).

The oracle is asked about the whole text with dense masks and biases, in which the rule is written out anew.
"""

from __future__ import annotations

import numpy as np
import pytest

import attnkit as ak
from attnkit import reference
from attnkit.numerics import numerics_for

CAUSAL = ak.Mask.causal()
WINDOW, PINNED, MOST = 4, 3, 5
SLOPES = np.array([0.5, 0.25, 0.125, 2.0])
SINKS = np.array([0.5, -1.0, 3.0, 0.0])
RAGGED = [[3, 1, 5], [2, 0, 5], [4, 1, 5], [5, 0, 2], [3, 0, 4]]  # tokens of each append to each sequence


class Told:
    """A ring with pinned tokens, and the whole text that it was told."""

    def __init__(self, config, backend, draw):
        self.cache = ak.make_cache(config, backend=backend)
        self.draw = draw
        self.heads = config.num_kv_heads
        self.dtype = config.dtype
        self.texts = [
            [np.zeros((self.heads, 0, size), np.float32) for size in (config.head_dim, config.value_dim)]
            for _ in range(config.batch_size)
        ]

    def append(self, lengths):
        count, sizes = max(lengths), (self.cache.config.head_dim, self.cache.config.value_dim)
        arrays = [self.draw(len(lengths), self.heads, count, size, dtype=np.float32) for size in sizes]
        self.cache[0].append(*arrays, lengths=lengths)
        for row, (text, length) in enumerate(zip(self.texts, lengths, strict=True)):
            text[:] = [
                np.concatenate([old, array[row, :, :length]], 1) for old, array in zip(text, arrays, strict=True)
            ]
        return self

    def positions(self, row):
        """Give the positions of the tokens that are held."""
        count, stored = len(self.texts[row][0][0]), int(self.cache[0].stored[row])
        first = min(PINNED, stored)
        return np.array([*range(first), *range(count - (stored - first), count)], np.int64)

    def truth(self, query, see, *, bias=None, query_offset=None, query_lengths=None, dense=None, **options):
        """Ask the oracle for each sequence; ``see(p, j)`` tells what is visible at which positions.

        ``bias`` and ``dense`` are ``[B, H, T, n]`` over the held tokens.
        """
        outputs, lses = [], []
        for row, text in enumerate(self.texts):
            held, rows = self.positions(row), query.shape[2]
            valid = rows if query_lengths is None else query_lengths[row]
            start = text[0].shape[1] - valid if query_offset is None else query_offset[row]
            p, j = start + np.arange(rows)[:, None], held[None]
            shown = np.broadcast_to(see(p, j), (query.shape[1], rows, len(held)))
            shown = shown if dense is None else shown & dense[row, :, :, : len(held)]
            added = None if bias is None else bias(p, j, row)[None]
            key, value = (array[None][:, :, held].astype(np.dtype(self.dtype)) for array in text)
            truth = reference.attention(
                query[row : row + 1],
                key,
                value,
                mask=[("dense", shown[None])],
                bias=added,
                query_lengths=valid,
                **options,
            )
            outputs.append(truth.output)
            lses.append(truth.lse)
        return np.concatenate(outputs), np.concatenate(lses)


@pytest.fixture(params=["plain", "numpy"])
def told(request, shelf, draw):
    """Give a ring of three sequences: one has come round, one has fewer tokens than are pinned, one has more."""
    backend = request.getfixturevalue("plain") if request.param == "plain" else "numpy"

    def told(lengths=RAGGED, **changes):
        config = shelf.config(
            **{"layout": "ring", "window": WINDOW, "max_append": MOST, "pinned": PINNED, "num_layers": 1, **changes}
        )
        ring = Told(config, backend, draw)
        for each in lengths:
            ring.append(each)
        shelf.poison(ring.cache)
        return ring

    return told


def windowed(p, j, left=WINDOW, right=0):
    return ((j < PINNED) | (j > p - left)) & (j <= p + right)


def close(found, expected, atol=1e-12):
    for name, one, other in zip(("output", "lse"), found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=atol, err_msg=name)


OPTIONS = {
    "causal": ({"mask": CAUSAL}, lambda p, j: j <= p),
    "nothing": ({}, lambda p, j: j >= 0),
    "window": ({"mask": ak.Mask.window(WINDOW)}, windowed),
    "narrower": ({"mask": CAUSAL & ak.Mask.window(2)}, lambda p, j: windowed(p, j, 2)),
    "of one": ({"mask": ak.Mask.window(1)}, lambda p, j: windowed(p, j, 1)),
    "ahead": ({"mask": ak.Mask.window(2, 1)}, lambda p, j: windowed(p, j, 2, 1)),
    "left alone": ({"mask": ak.Mask.window(2, None)}, lambda p, j: (j < PINNED) | (j > p - 2)),
    "right alone": ({"mask": ak.Mask.window(None, 1)}, lambda p, j: j <= p + 1),
    "chunks": ({"mask": ak.Mask.window(WINDOW) & ak.Mask.chunked(5)}, lambda p, j: windowed(p, j) & (p // 5 == j // 5)),
    "a prefix": (
        {"mask": ak.Mask.window(WINDOW, 2) & ak.Mask.prefix(2)},
        lambda p, j: windowed(p, j, WINDOW, 2) & ((j < 2) | (j <= p)),
    ),
}


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("rows", [1, 3])
def test_pinned_tokens_are_seen_outside_of_windows(told, draw, name, rows) -> None:
    ring, (options, see) = told(), OPTIONS[name]
    assert ring.cache.stored.tolist() == [PINNED + WINDOW - 1 + 3, 2, PINNED + WINDOW - 1 + 4]
    query = draw(3, 4, rows, 4)
    ring.append([rows, 0, 1])
    lengths = [rows, min(rows, 1), 1]
    found = ring.cache[0].attend_with_lse(query, query_lengths=lengths, **options)
    close(found, ring.truth(query, see, query_lengths=lengths))
    assert (ring.cache[0].attend(query, query_lengths=lengths, **options) == found.output).all()


@pytest.mark.parametrize("mask", [None, ak.Mask.window(WINDOW)], ids=["all", "window"])
@pytest.mark.parametrize(
    "options",
    [
        {"scale": 0.3},
        {"softcap": 1.5},
        {"sinks": SINKS},
        {"sinks": SINKS, "softcap": 0.5, "scale": 2.0},
    ],
    ids=str,
)
def test_options_of_scores(told, draw, mask, options) -> None:
    ring, query = told(), draw(3, 4, 1, 4)
    found = ring.cache[0].attend_with_lse(query, mask=mask, **options)
    close(found, ring.truth(query, windowed if mask else (lambda p, j: j >= 0), **options))


def test_a_sink_counts_once_and_even_where_nothing_is_held(told, draw) -> None:
    ring, query = told([[0, 1, 4]] * 4), draw(3, 4, 1, 4)
    found = ring.cache[0].attend_with_lse(query, mask=ak.Mask.window(WINDOW), sinks=SINKS)
    close(found, ring.truth(query, windowed, sinks=SINKS))
    assert (found.output[0] == 0).all()
    np.testing.assert_allclose(found.lse[0, :, 0], SINKS)


@pytest.mark.parametrize("mask", [CAUSAL, CAUSAL & ak.Mask.window(WINDOW)], ids=["causal", "window"])
def test_alibi_measures_positions(told, draw, mask) -> None:
    ring, query = told(), draw(3, 4, 2, 4)
    see = windowed if mask.structure.left is not None else (lambda p, j: j <= p)
    found = ring.cache[0].attend_with_lse(query, mask=mask, alibi=SLOPES, query_lengths=[2, 1, 2])
    slopes = SLOPES[:, None, None]
    close(found, ring.truth(query, see, bias=lambda p, j, row: -slopes * np.abs(p - j), query_lengths=[2, 1, 2]))


@pytest.mark.parametrize("shape", [(3, 4, 2), (1, 1, 2), (4, 2), (2,), ()], ids=str)
def test_a_bias_is_cut_where_the_pinned_tokens_end(told, draw, shape) -> None:
    ring, query = told(), draw(3, 4, 2, 4)
    bias = draw(*shape, int(ring.cache.stored.max()))
    whole = np.broadcast_to(bias, (3, 4, 2, bias.shape[-1]))
    found = ring.cache[0].attend_with_lse(query, mask=ak.Mask.window(WINDOW), bias=bias, query_lengths=[2, 1, 2])
    close(
        found,
        ring.truth(query, windowed, bias=lambda p, j, row: whole[row, :, :, : j.size], query_lengths=[2, 1, 2]),
    )


def test_a_bias_that_broadcasts_over_keys(told, draw) -> None:
    ring, query, bias = told(), draw(3, 4, 2, 4), draw(4, 2, 1)
    found = ring.cache[0].attend_with_lse(query, mask=ak.Mask.window(WINDOW), bias=bias, query_lengths=[2, 1, 2])
    close(
        found,
        ring.truth(query, windowed, bias=lambda p, j, row: bias + np.zeros(j.size), query_lengths=[2, 1, 2]),
    )


@pytest.mark.parametrize("shape", [(3, 4, 2), (1, 2), (1,)], ids=str)
def test_a_dense_mask_is_cut_there_too(told, draw, shape) -> None:
    ring, query = told(), draw(3, 4, 2, 4)
    dense = draw(*shape, int(ring.cache.stored.max())) > -0.5
    whole = np.broadcast_to(dense, (3, 4, 2, dense.shape[-1]))
    found = ring.cache[0].attend_with_lse(
        query, mask=ak.Mask.window(WINDOW) & ak.Mask.dense(dense), query_lengths=[2, 1, 2]
    )
    close(found, ring.truth(query, windowed, dense=whole, query_lengths=[2, 1, 2]))


@pytest.mark.parametrize("batched", [False, True])
def test_documents_are_cut_there_too(told, draw, batched) -> None:
    ring, query, rng = told(), draw(3, 4, 2, 4), np.random.default_rng(1)
    longest = int(ring.cache.stored.max())
    ids_q, ids_k = rng.integers(0, 2, (3, 2)), rng.integers(0, 2, (3, longest))
    ids_q, ids_k = (ids_q, ids_k) if batched else (ids_q[0], ids_k[0])
    same = np.broadcast_to(ids_q[..., :, None] == ids_k[..., None, :], (3, 2, longest))
    found = ring.cache[0].attend_with_lse(
        query, mask=ak.Mask.window(WINDOW) & ak.Mask.documents(ids_q, ids_k), query_lengths=[2, 1, 2]
    )
    dense = np.broadcast_to(same[:, None], (3, 4, 2, longest))
    close(found, ring.truth(query, windowed, dense=dense, query_lengths=[2, 1, 2]))


@pytest.mark.parametrize("count", range(PINNED + WINDOW + 1))
def test_every_option_at_every_length(told, draw, count) -> None:
    """Also where there are fewer tokens than are pinned, one, or none."""
    ring, query = told([[1] * 3] * count), draw(3, 4, 1, 4)
    longest, rng = int(ring.cache.stored.max()), np.random.default_rng(count)
    ids = rng.integers(0, 2, longest)
    bias, dense = draw(4, 1, longest), rng.random((4, 1, longest)) < 0.7
    mask = ak.Mask.window(WINDOW) & ak.Mask.documents([0], ids) & ak.Mask.dense(dense)
    found = ring.cache[0].attend_with_lse(query, mask=mask, bias=bias, sinks=SINKS)
    whole = np.broadcast_to(dense & (ids == 0), (3, 4, 1, longest))
    close(found, ring.truth(query, windowed, dense=whole, bias=lambda p, j, row: bias, sinks=SINKS))


def test_offsets_say_where_queries_stand(told, draw) -> None:
    ring, query = told(), draw(3, 4, 2, 4)
    start = [15, 0, 18]
    found = ring.cache[0].attend_with_lse(query, mask=ak.Mask.window(WINDOW), query_offset=start)
    close(found, ring.truth(query, windowed, query_offset=start))
    one = ring.cache[0].attend_with_lse(query, mask=ak.Mask.window(WINDOW), query_offset=15)
    close(one, ring.truth(query, windowed, query_offset=[15] * 3))


def test_a_ragged_append_tells_the_lengths(told, draw) -> None:
    ring, query = told(), draw(3, 4, 3, 4)
    ring.append([3, 0, 2])
    found = ring.cache[0].attend_with_lse(query, mask=ak.Mask.window(WINDOW))
    close(found, ring.truth(query, windowed, query_lengths=[3, 0, 2]))
    assert (found.output[1] == 0).all()


@pytest.mark.parametrize("heads", [2, 4, 6])
def test_grouped_heads(told, draw, heads) -> None:
    ring, query = told(), draw(3, heads, 1, 4)
    close(
        ring.cache[0].attend_with_lse(query, mask=ak.Mask.window(WINDOW)),
        ring.truth(query, windowed),
    )


@pytest.mark.parametrize(("dtype", "stored"), [("float16", "float16"), ("float16", "float32"), ("float32", "float64")])
def test_what_is_merged_was_not_rounded_before(told, draw, dtype, stored) -> None:
    """Parts are attended in the accumulation type, so that the result is as good as that of one call."""
    ring, query = told(dtype=stored), draw(3, 4, 2, 4, dtype=np.dtype(dtype))
    found = ring.cache[0].attend_with_lse(query, mask=ak.Mask.window(WINDOW), query_lengths=[2, 1, 2])
    assert found.output.dtype.name == dtype
    assert found.lse.dtype.name == ("float64" if stored == "float64" else "float32")
    output, lse = ring.truth(query, windowed, query_lengths=[2, 1, 2])
    unit = numerics_for("strict-fp32" if dtype == "float32" else "fp32P-16", dtype).u_o
    assert (np.abs(found.output.astype(np.float64) - output) <= unit * np.abs(output) + 2e-6).all()
    np.testing.assert_allclose(found.lse, lse, atol=2e-6)


def test_codes_are_decoded(told, draw) -> None:
    ring, query = told(codec="int8", dtype="float32"), draw(3, 4, 1, 4, dtype=np.float32)
    key, value = ring.cache[0].read()
    for row, text in enumerate(ring.texts):
        held = ring.positions(row)
        for whole, array in zip(text, (key, value), strict=True):
            whole[:, held] = array[row, :, : held.size]
    close(
        ring.cache[0].attend_with_lse(query, mask=ak.Mask.window(WINDOW)),
        ring.truth(query, windowed),
        atol=2e-6,
    )


# Refusals


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"bias": np.zeros((1, 4))}, ak.ShapeError, "bias must"),
        ({"bias": np.zeros((1, PINNED))}, ak.ShapeError, "bias must"),
        ({"bias": np.zeros((5, 1, 10))}, ak.ShapeError, "bias must"),
        ({"mask": ak.Mask.dense(np.ones((1, 4), bool))}, ak.ShapeError, "mask"),
        ({"mask": ak.Mask.documents([0], [0] * 4)}, ak.ShapeError, "documents|ids"),
        ({"query_lengths": [2, 0, 0]}, ak.ShapeError, r"query_lengths must lie in 0\.\.T = 0\.\.1"),
        ({"query_lengths": [1, 0]}, ak.ShapeError, "query_lengths must"),
        ({"query_offset": [1, 0]}, ak.ShapeError, "query_offset must"),
        ({"query_offset": 0.5}, ak.DTypeError, "query_offset must"),
        ({"alibi": np.zeros(3)}, ak.ShapeError, "alibi must"),
        ({"sinks": np.zeros((2, 4))}, ak.ShapeError, "sinks must"),
        ({"scale": "x"}, ak.DTypeError, "scale must"),
        ({"mask": "causal"}, ak.DTypeError, "mask must"),
    ],
    ids=str,
)
def test_what_does_not_fit_the_whole_is_refused_as_such(told, draw, options, error, words) -> None:
    ring = told()
    before = [array.tobytes() for array in ring.cache[0].read()]
    with pytest.raises(error, match=words):
        ring.cache[0].attend(draw(3, 4, 1, 4), **{"mask": ak.Mask.window(WINDOW), **options})
    assert [array.tobytes() for array in ring.cache[0].read()] == before


@pytest.mark.parametrize(
    ("missing", "words"),
    [({"lse": False}, "lse"), ({"offsets": False}, "query_offset|offsets"), ({"lengths": False}, "kv_lengths|lengths")],
)
def test_what_a_backend_must_declare(nobody, kit, shelf, draw, missing, words) -> None:
    """The two parts and their merging need the log-sum-exp, offsets, and lengths where sequences differ."""
    backend = kit.backend(
        "poor", capabilities=lambda self: ak.Capabilities(dtypes=frozenset({"float64"}), **{**kit.yes, **missing})
    )
    config = shelf.config(layout="ring", window=WINDOW, max_append=MOST, pinned=PINNED, num_layers=1)
    cache = ak.make_cache(config, backend=backend)
    cache[0].append(draw(3, 2, 2, 4), draw(3, 2, 2, 3), lengths=[2, 2, 1])
    before = [array.tobytes() for array in cache[0].read()]
    with pytest.raises(ak.UnsupportedError, match=words):
        cache[0].attend(draw(3, 4, 1, 4), mask=ak.Mask.window(WINDOW))
    assert [array.tobytes() for array in cache[0].read()] == before
    assert cache[0].next_position.tolist() == [2, 2, 1]


def test_before_anything_is_given_up_no_merging_is_needed(nobody, kit, shelf, draw) -> None:
    backend = kit.backend(
        "poor",
        capabilities=lambda self: ak.Capabilities(
            dtypes=frozenset({"float64"}), **{**kit.yes, "lse": False, "offsets": False}
        ),
    )
    config = shelf.config(layout="ring", window=WINDOW, max_append=MOST, pinned=PINNED, num_layers=1)
    cache = ak.make_cache(config, backend=backend)
    for _ in range(2):
        cache[0].append(draw(3, 2, 3, 4), draw(3, 2, 3, 3))
    query = draw(3, 4, 1, 4)
    truth = reference.attention(query, *cache[0].read(), mask=CAUSAL)
    np.testing.assert_allclose(cache[0].attend(query, mask=CAUSAL), truth.output, atol=1e-12)
    for _ in range(2):
        cache[0].append(draw(3, 2, 3, 4), draw(3, 2, 3, 3))
    with pytest.raises(ak.UnsupportedError):
        cache[0].attend(query, mask=CAUSAL)
