"""Ragged forward passes: sequences of different lengths in one call, with and without caches."""

from __future__ import annotations

import numpy as np
import pytest

import attnkit as ak
from attnkit.models import Llama, Weights

IDS = [5, 17, 200, 3, 3, 90, 41, 8, 77, 120, 6]
LAYOUTS = ["contiguous", "fixed", "ring", "pinned", "paged", "pages of one", "pool"]


def padded(pieces, padding=0):
    ids = np.full((len(pieces), max(map(len, pieces))), padding)
    for row, piece in zip(ids, pieces, strict=True):
        row[: len(piece)] = piece
    return ids, [len(piece) for piece in pieces]


def close(found, expected, bound=1e-9):
    np.testing.assert_allclose(found, expected, rtol=0, atol=bound * max(abs(np.asarray(expected)).max(), 1))


@pytest.mark.parametrize("all_logits", [False, True])
def test_without_a_cache_each_sequence_is_alone(tiny, all_logits):
    pieces = [IDS, IDS[:4], IDS[2:3]]
    ids, lengths = padded(pieces, padding=-5)  # padding is not looked at
    found = tiny.forward(ids, lengths=lengths, all_logits=all_logits)
    for row, piece in zip(found, pieces, strict=True):
        expected = tiny.forward(piece, all_logits=all_logits)
        close(row[: len(expected)], expected)
        assert (row[len(expected) :] == 0).all()
    close(tiny.hidden(ids, lengths=lengths)[1, :4], tiny.hidden(IDS[:4]))


@pytest.mark.parametrize("codec", ["native", "int8"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_through_a_cache_each_sequence_takes_its_own_number(tiny, texts, layout, codec):
    """Pieces of 0 to 4 tokens, and logits after each sequence's last."""
    fields = texts.layouts[layout] | {"codec": codec}
    starts = [[4, 0, 2], [1, 3, 0], [2, 4, 4], [4, 4, 1]]
    cache, alone = tiny.make_cache(batch_size=3, **fields), [tiny.make_cache(**fields) for _ in range(3)]
    done = np.zeros(3, int)
    for taken in starts:
        pieces = [IDS[start : start + count] for start, count in zip(done, taken, strict=True)]
        ids, lengths = padded(pieces)
        found = tiny.forward(ids, cache, lengths=lengths)
        assert found.shape == (3, 1, tiny.config.vocab_size)
        for row, piece, single in zip(found, pieces, alone, strict=True):
            close(row, tiny.forward(piece, single) if piece else np.zeros_like(row))
        done += taken
        assert cache.next_position.tolist() == done.tolist()
    cache.check_invariants()


def test_only_valid_tokens_are_multiplied(tiny, monkeypatch):
    rows = []
    whole = tiny._mlp
    monkeypatch.setattr(tiny, "_mlp", lambda x, block: rows.append(x.shape[0]) or whole(x, block))
    ids, lengths = padded([IDS, [3], [4]])
    tiny.forward(ids, tiny.make_cache(batch_size=3), lengths=lengths)
    assert rows == [13] * tiny.config.num_layers


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("backend", [info.name for info in ak.backends() if info.available])
def test_every_backend_and_element_type(lab, backend, dtype):
    config = lab.config()
    model = Llama(config, Weights.from_arrays(lab.arrays(config)), backend=backend, dtype=dtype)
    pieces = [IDS[:6], IDS[3:5], []]
    ids, lengths = padded(pieces)
    found = model.to_numpy(model.forward(ids, model.make_cache(batch_size=3), lengths=lengths)).astype(np.float64)
    bound = {"float16": 0.01, "bfloat16": 0.08, "float32": 1e-5}[dtype]
    for row, piece in zip(found[:2], pieces[:2], strict=True):
        close(row, model.to_numpy(model.forward(piece, model.make_cache())).astype(np.float64), bound)
    assert (found[2] == 0).all()


def test_one_number_and_full_lengths(tiny):
    close(tiny.forward(IDS, lengths=3), tiny.forward(IDS[:3]))
    close(tiny.forward([IDS], lengths=[len(IDS)]), tiny.forward([IDS]))
    cache = tiny.make_cache(batch_size=2)
    found = tiny.forward([IDS[:2]] * 2, cache, lengths=[0, 0])
    assert found.shape == (2, 1, tiny.config.vocab_size)
    assert (found == 0).all()
    assert cache.next_position.tolist() == [0, 0]


@pytest.mark.parametrize(
    ("lengths", "words"),
    [
        ([1, 3], r"lengths must lie in 0\.\.T = 0\.\.2, got \[1, 3\]"),
        ([1, -1], "lengths must lie in"),
        ([1], r"lengths must be an integer or \[B\] = \[2\]"),
    ],
)
def test_lengths_that_do_not_fit(tiny, lengths, words):
    with pytest.raises(ak.ShapeError, match=words):
        tiny.forward([[3, 4], [5, 6]], lengths=lengths)


def test_rows_of_different_lengths_are_to_be_padded(tiny):
    with pytest.raises(ak.ShapeError, match="pad them on the right and give lengths"):
        tiny.forward([[3, 4], [5]])


def test_the_context_counts_valid_tokens_alone(tiny):
    cache = tiny.make_cache(batch_size=2)
    tiny.forward([[3] * 120, [3] * 120], cache, lengths=[120, 2])
    tiny.forward([[3] * 8, [3] * 8], cache, lengths=[1, 8])
    with pytest.raises(ak.ShapeError, match="position 129; the model's context is 128"):
        tiny.forward([[3] * 8, [3] * 8], cache, lengths=[8, 1])
    assert cache.next_position.tolist() == [121, 10]


def test_a_ring_takes_no_more_than_its_append(tiny):
    cache = tiny.make_cache(layout="ring", window=8, max_append=4)
    tiny.forward(IDS[:3], cache)
    with pytest.raises(ak.CacheCapacityError, match="room for 5 tokens at a time, the ring takes max_append = 4"):
        tiny.forward(IDS[3:8], cache)
    assert cache.next_position.tolist() == [3]
    close(tiny.forward(IDS[3:7], cache), tiny.forward(IDS[:7]))


@pytest.mark.parametrize("pinned", [0, 2])
@pytest.mark.parametrize("cuts", [[1] * 11, [4, 4, 3], [2, 1, 4, 3, 1]])
def test_a_ring_is_a_windowed_model_however_it_is_cut(tiny, pinned, cuts):
    """Each token sees the four last ones, itself included, and the pinned ones."""
    cache = tiny.make_cache(layout="ring", window=4, max_append=4, pinned=pinned)
    start, found = 0, []
    for count in cuts:
        found.append(tiny.forward(IDS[start : start + count], cache, all_logits=True))
        start += count
    causal, near = np.tri(11, dtype=bool), ~np.tri(11, k=-4, dtype=bool)
    shown = causal & (near | (np.arange(11) < pinned))
    expected = windowed(tiny, shown)
    close(np.concatenate(found), expected)
    assert not np.allclose(expected, tiny.forward(IDS, all_logits=True))


def windowed(model, shown):
    """Give the logits of the model with a dense mask, by way of a cache that hides nothing itself."""

    class Dense:
        def __init__(self, layer):
            self.layer = layer

        def append(self, key, value, lengths):
            self.layer.append(key, value)

        def attend(self, query, mask):
            return self.layer.attend(query, mask=ak.Mask.dense(shown))

    class Cache:
        inner = model.make_cache()
        config, next_position = inner.config, inner.next_position

        def __getitem__(self, layer):
            return Dense(self.inner[layer])

    return model.forward(IDS, Cache(), all_logits=True)


@pytest.mark.parametrize(
    "fields",
    [{"layout": "rings"}, {"window": 4}, {"layout": "ring"}, {"codec": "int3"}, {"codec": "int4/5"}, {"pages": 3}],
)
def test_cache_fields_that_do_not_fit(tiny, fields):
    with pytest.raises(ValueError, match=r"(?i)rings|window|int3|int4/5|pages"):
        tiny.make_cache(**fields)


def test_caches_are_made_for_the_model(tiny):
    cache = tiny.make_cache(batch_size=3, layout="paged", page_size=8, codec="int8", dtype="float32")
    config = cache.config
    assert (config.num_layers, config.num_kv_heads, config.head_dim) == (2, 2, 16)
    assert (config.layout, config.page_size, config.dtype, str(config.key_codec)) == ("paged", 8, "float32", "int8")
    other = tiny.make_cache(layout="paged", page_size=8, codec="int8", dtype="float32", pool=cache.pool)
    assert other.pool is cache.pool
