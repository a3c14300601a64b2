"""MultiHeadAttention against the textbook: projections, heads, rotary positions and caches around attention."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

import attnkit as ak

CAUSAL = ak.Mask.causal()


# The textbook, one matrix at a time


def softmax(scores):
    exps = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return exps / exps.sum(axis=-1, keepdims=True)


def single_head(query, key, value, causal):
    """``S = Q K^T / sqrt(d)``, masked; ``[T, d]``."""
    scores = query @ key.T / np.sqrt(query.shape[-1])
    if causal:
        scores = np.where(np.tri(*scores.shape, dtype=bool), scores, -np.inf)
    return softmax(scores) @ value


def textbook(x, wq, wk, wv, wo, heads, kv_heads=None, causal=True, context=None, biases=(0, 0, 0, 0)):
    kv_heads, source = kv_heads or heads, x if context is None else context
    query, key, value = x @ wq + biases[0], source @ wk + biases[1], source @ wv + biases[2]
    query = query.reshape(len(x), heads, -1)
    key, value = (array.reshape(len(source), kv_heads, -1) for array in (key, value))
    groups = [h // (heads // kv_heads) for h in range(heads)]
    outputs = [single_head(query[:, h], key[:, g], value[:, g], causal) for h, g in enumerate(groups)]
    return np.concatenate(outputs, axis=-1) @ wo + biases[3]


@pytest.fixture
def seed():
    """The example that everyone can redo: d = 8, two heads, five tokens."""
    rng = np.random.default_rng(0)
    weights = [rng.normal(0, 0.3, (8, 8)) for _ in range(4)]
    return rng.normal(size=(5, 8)), weights


@pytest.fixture
def layer(seed):
    _, weights = seed

    def layer(backend=None, **changes):
        return ak.MultiHeadAttention(config(**changes), *weights, backend=backend)

    return layer


def config(**changes):
    return ak.AttentionConfig(**{"num_heads": 2, "head_dim": 4, "mask": CAUSAL, **changes})


def close(found, expected, atol=1e-12):
    np.testing.assert_allclose(found, expected, rtol=0, atol=atol)


@pytest.mark.parametrize("backend", [None, "numpy", "numpy:dense", "numpy:tiled"])
@pytest.mark.parametrize("causal", [True, False])
def test_the_textbook(seed, layer, backend, causal) -> None:
    x, weights = seed
    output = layer(backend, mask=CAUSAL if causal else None)(x)
    assert output.shape == (5, 8)
    assert output.dtype == np.float64
    close(output, textbook(x, *weights, heads=2, causal=causal))


def test_the_last_token_does_not_reach_the_first_row(seed, layer) -> None:
    x, _ = seed
    changed = x.copy()
    changed[-1] += 1.0
    before, after = layer()(x), layer()(changed)
    assert (before[0] == after[0]).all()
    close(before[:-1], after[:-1])
    assert not np.allclose(before[-1], after[-1])


@pytest.mark.parametrize("backend", [None, "numpy:dense", "numpy:tiled", "numpy:decode"])
def test_token_by_token_through_a_cache(seed, layer, backend) -> None:
    x, weights = seed
    cache = ak.make_cache(ak.KVCacheConfig(num_kv_heads=2, head_dim=4, dtype="float64"), backend=backend)
    steps = [layer()(x[t : t + 1], cache=cache[0]) for t in range(5)]
    close(np.concatenate(steps), textbook(x, *weights, heads=2))
    assert cache.stored.tolist() == [5]


@pytest.mark.parametrize("cuts", [(0, 5), (0, 2, 5), (0, 3, 4, 5), (0, 0, 1, 5, 5)])
@pytest.mark.parametrize("rope", [None, ak.RopeConfig(theta=10.0)])
@pytest.mark.parametrize("max_length", [None, 5])
def test_any_chunking_through_a_cache_is_one_shot(seed, layer, cuts, rope, max_length) -> None:
    x, _ = seed
    sizes = ak.KVCacheConfig(num_kv_heads=2, head_dim=4, dtype="float64", max_length=max_length)
    cache, mha = ak.make_cache(sizes), layer(rope=rope)
    steps = [mha(x[start:stop], cache=cache[0]) for start, stop in pairwise(cuts)]
    close(np.concatenate(steps), mha(x))


def test_a_batch_is_its_sequences(draw, layer) -> None:
    x = draw(3, 5, 8)
    output = layer()(x)
    assert output.shape == (3, 5, 8)
    for found, alone in zip(output, x, strict=True):
        close(found, layer()(alone))


def test_no_tokens_and_no_sequences(layer) -> None:
    assert layer()(np.zeros((0, 8))).shape == (0, 8)
    assert layer()(np.zeros((0, 5, 8))).shape == (0, 5, 8)


@pytest.fixture
def grouped(draw):
    """Four query heads on two key/value heads, with sizes that are all different."""
    wq, wk, wv, wo = draw(6, 4 * 3), draw(6, 2 * 3), draw(6, 2 * 5), draw(4 * 5, 7)
    biases = draw(12), draw(6), draw(10), draw(7)
    named = dict(zip(("bq", "bk", "bv", "bo"), biases, strict=True))
    sizes = config(num_heads=4, num_kv_heads=2, head_dim=3, value_dim=5)
    return ak.MultiHeadAttention(sizes, wq, wk, wv, wo, **named), (wq, wk, wv, wo), biases


def test_grouped_heads_and_biases(draw, grouped) -> None:
    layer, weights, biases = grouped
    x = draw(5, 6)
    close(layer(x), textbook(x, *weights, heads=4, kv_heads=2, biases=biases))
    assert layer(x).shape == (5, 7)


@pytest.mark.parametrize("name", ["bq", "bk", "bv", "bo"])
def test_each_bias_alone(seed, draw, name) -> None:
    x, weights = seed
    bias = draw(8)
    biases = [bias if name == other else 0 for other in ("bq", "bk", "bv", "bo")]
    close(ak.MultiHeadAttention(config(), *weights, **{name: bias})(x), textbook(x, *weights, heads=2, biases=biases))


@pytest.mark.parametrize("tokens", [3, 9])
def test_cross_attention(draw, tokens) -> None:
    weights = draw(8, 8), draw(6, 8), draw(6, 8), draw(8, 8)
    layer = ak.MultiHeadAttention(config(mask=None), *weights)
    x, context = draw(2, 5, 8), draw(2, tokens, 6)
    output = layer(x, context)
    for sequence in range(2):
        expected = textbook(x[sequence], *weights, heads=2, causal=False, context=context[sequence])
        close(output[sequence], expected)
        close(layer(x[sequence], context[sequence]), expected)


def test_cross_attention_with_lengths(draw) -> None:
    weights = draw(8, 8), draw(6, 8), draw(6, 8), draw(8, 8)
    layer = ak.MultiHeadAttention(config(mask=None), *weights)
    x, context = draw(2, 5, 8), draw(2, 4, 6)
    output = layer(x, context, query_lengths=[5, 2], kv_lengths=[1, 3])
    for sequence, (rows, keys) in enumerate([(5, 1), (2, 3)]):
        close(output[sequence, :rows], layer(x[sequence, :rows], context[sequence, :keys]))
    assert (output[1, 2:] == 0).all()


@pytest.mark.parametrize("rope", [None, ak.RopeConfig()])
def test_ragged_lengths_without_a_cache(draw, layer, rope) -> None:
    x, mha = draw(3, 5, 8), layer(rope=rope)
    x[1, 2:] = np.nan  # padding is never read
    output = mha(x, query_lengths=[5, 2, 0])
    for sequence, tokens in enumerate([5, 2, 0]):
        close(output[sequence, :tokens], mha(np.nan_to_num(x[sequence, :tokens])))
        assert (output[sequence, tokens:] == 0).all()


@pytest.mark.parametrize("rope", [None, ak.RopeConfig()])
def test_ragged_lengths_through_a_cache(draw, layer, rope) -> None:
    x, mha = draw(3, 7, 8), layer(rope=rope)
    cache = ak.make_cache(ak.KVCacheConfig(batch_size=3, num_kv_heads=2, head_dim=4, dtype="float64"))
    first = mha(x[:, :4], cache=cache[0], query_lengths=[4, 2, 0])
    then = np.stack([x[sequence, start : start + 3] for sequence, start in enumerate([4, 2, 0])])
    second = mha(then, cache=cache[0])
    for sequence, tokens in enumerate([4, 2, 0]):
        whole = mha(x[sequence, : tokens + 3])
        close(first[sequence, :tokens], whole[:tokens])
        close(second[sequence], whole[tokens:])
    assert cache.stored.tolist() == [7, 5, 3]


class TestEveryCache:
    """Layouts and codecs, with rotary positions and a batch that changes."""

    layouts = {
        "contiguous": {},
        "fixed": {"max_length": 16},
        "paged": {"layout": "paged", "page_size": 4},
        "pages of one": {"layout": "paged", "page_size": 1},
    }
    rings = {
        "ring": {"layout": "ring", "window": 3, "max_append": 4},
        "pinned": {"layout": "ring", "window": 3, "max_append": 4, "pinned": 2},
    }

    @staticmethod
    def cache(batch=1, **fields):
        return ak.make_cache(ak.KVCacheConfig(batch_size=batch, num_kv_heads=2, head_dim=4, dtype="float64", **fields))

    @pytest.mark.parametrize("rope", [None, ak.RopeConfig(theta=10.0)])
    @pytest.mark.parametrize("cuts", [(0, 12), (0, 4, 5, 8, 12), tuple(range(13))])
    @pytest.mark.parametrize("fields", layouts.values(), ids=layouts)
    def test_native_storage_is_one_shot(self, draw, layer, fields, cuts, rope) -> None:
        x, mha, cache = draw(12, 8), layer(rope=rope), self.cache(**fields)
        steps = [mha(x[start:stop], cache=cache[0]) for start, stop in pairwise(cuts)]
        close(np.concatenate(steps), mha(x))

    @pytest.mark.parametrize("cuts", [(0, 4, 8, 12), (0, 1, 4, 5, 8, 12), tuple(range(13))])
    @pytest.mark.parametrize("fields", rings.values(), ids=rings)
    def test_a_ring_goes_on_counting(self, draw, layer, fields, cuts) -> None:
        """The last three tokens at their own positions, and the pinned ones at theirs."""
        pinned, rope = fields.get("pinned", 0), ak.RopeConfig(theta=10.0)
        x, cache = draw(12, 8), self.cache(**fields)
        mha = layer(rope=rope, mask=CAUSAL & ak.Mask.window(3))
        steps = [mha(x[start:stop], cache=cache[0]) for start, stop in pairwise(cuts)]
        causal, near = np.tri(12, dtype=bool), ~np.tri(12, k=-3, dtype=bool)
        shown = causal & (near | (np.arange(12) < pinned))
        close(np.concatenate(steps), layer(rope=rope, mask=ak.Mask.dense(shown))(x))
        assert cache.next_position.tolist() == [12]
        assert cache.stored[0] < 12

    @pytest.mark.parametrize("codec", ["int8", "int4", "int4/2", "fp8"])
    @pytest.mark.parametrize("fields", [*layouts.values(), *rings.values()], ids=[*layouts, *rings])
    def test_codecs_are_attention_over_what_is_read_back(self, draw, seed, fields, codec) -> None:
        x, (wq, wk, wv, wo) = draw(7, 8), seed[1]
        mha = ak.MultiHeadAttention(config(), wq, wk, wv, wo)
        cache = self.cache(codec=codec, **fields)
        for start, stop in ((0, 4), (4, 6), (6, 7)):
            output = mha(x[start:stop], cache=cache[0])
        key, value = cache[0].read()
        query = np.moveaxis((x[6:] @ wq).reshape(1, 2, 4), 1, 0)
        expected = ak.attention(query, key[0], value[0])
        close(output, np.moveaxis(expected, 0, 1).reshape(1, 8) @ wo)
        exact = np.moveaxis((x @ wk).reshape(7, 2, 4), 1, 0)[:, -key.shape[2] :]
        assert 0 < abs(key[0][:, -1] - exact[:, -1]).max() < 0.5

    @pytest.mark.parametrize("fields", layouts.values(), ids=layouts)
    def test_sequences_join_fork_and_leave(self, draw, layer, fields) -> None:
        """The batch of ``x`` follows that of the cache, each sequence at its own position."""
        x, mha, cache = draw(4, 9, 8), layer(rope=ak.RopeConfig(theta=10.0)), self.cache(batch=2, **fields)
        whole = mha(x)
        close(mha(x[:2, :3], cache=cache[0]), whole[:2, :3])
        cache.admit()
        found = mha(x[:3, [[3, 4], [3, 4], [0, 1]]][[0, 1, 2], [0, 1, 2]], cache=cache[0], query_lengths=[2, 1, 2])
        close(found[0], whole[0, 3:5])
        close(found[1, :1], whole[1, 3:4])
        close(found[2], whole[2, :2])
        cache.release(0)
        cache.fork(0)
        other = np.stack([x[1, 4], x[2, 2], x[3, 0]])[:, None]
        found = mha(other, cache=cache[0])
        close(found[0, 0], whole[1, 4])
        close(found[1, 0], whole[2, 2])
        close(found[2, 0], mha(np.concatenate([x[1, :4], x[3, :1]]))[4])
        assert cache.next_position.tolist() == [5, 3, 5]

    def test_no_sequences(self, layer) -> None:
        cache = self.cache(batch=0, layout="paged")
        assert layer(rope=ak.RopeConfig())(np.zeros((0, 2, 8)), cache=cache[0]).shape == (0, 2, 8)

    @pytest.mark.parametrize("rope", [None, ak.RopeConfig()])
    def test_a_batch_that_does_not_fit(self, layer, rope) -> None:
        cache = self.cache(batch=3)
        words = r"B = 3.* got \[1, 2, 2, 4\]" if rope is None else r"3 sequences of the cache.* got \[1, 2, 8\]"
        with pytest.raises(ak.ShapeError, match=words):
            layer(rope=rope)(np.zeros((2, 8)), cache=cache[0])
        assert cache.stored.tolist() == [0, 0, 0]

    def test_a_ring_that_is_asked_too_much(self, layer) -> None:
        cache = self.cache(**self.rings["ring"])
        with pytest.raises(ak.CacheCapacityError, match="max_append = 4"):
            layer()(np.zeros((5, 8)), cache=cache[0])

    def test_a_layer_of_a_backends_own_cache(self, seed, layer) -> None:
        x, inner = seed[0], self.cache()[0]

        class Own:
            next_position = inner.next_position
            append, attend = inner.append, inner.attend

        close(layer()(x, cache=Own()), layer()(x))
        with pytest.raises(ak.DTypeError, match=r"cache must be one layer of a cache, cache\[layer\], got list"):
            layer()(x, cache=[])


class TestRope:
    """Rotary positions."""

    @pytest.mark.parametrize("style", ["half", "interleaved"])
    def test_against_complex_numbers(self, seed, style) -> None:
        x, (wq, wk, wv, wo) = seed
        rope = ak.RopeConfig(theta=100.0, style=style)

        def turn(heads):
            first, second = (slice(0, 2), slice(2, 4)) if style == "half" else (slice(0, 4, 2), slice(1, 4, 2))
            z = heads[..., first] + 1j * heads[..., second]
            z = z * np.exp(1j * np.arange(len(heads))[:, None, None] * 100.0 ** (-np.arange(2) / 2))
            turned = np.empty_like(heads)
            turned[..., first], turned[..., second] = z.real, z.imag
            return turned

        query, key, value = ((x @ weight).reshape(5, 2, 4) for weight in (wq, wk, wv))
        query, key = turn(query), turn(key)
        heads = [single_head(query[:, h], key[:, h], value[:, h], causal=True) for h in range(2)]
        found = ak.MultiHeadAttention(config(rope=rope), wq, wk, wv, wo)(x)
        close(found, np.concatenate(heads, axis=-1) @ wo)

    def test_distances_alone_matter(self, seed, layer) -> None:
        x, _ = seed
        mha = layer(rope=ak.RopeConfig())
        close(mha(x, positions=np.arange(5) + 100), mha(x), atol=1e-10)
        assert not np.allclose(mha(x), layer()(x))

    def test_positions_of_each_sequence(self, draw, layer) -> None:
        x, mha = draw(2, 3, 8), layer(rope=ak.RopeConfig())
        positions = np.array([[0, 1, 2], [5, 9, 9]])
        output = mha(x, positions=positions)
        for sequence in range(2):
            close(output[sequence], mha(x[sequence], positions=positions[sequence]))

    def test_a_cache_goes_on_counting(self, seed, layer) -> None:
        x, _ = seed
        mha = layer(rope=ak.RopeConfig(), mask=None)
        cache = ak.make_cache(ak.KVCacheConfig(num_kv_heads=2, head_dim=4, dtype="float64"))
        mha(x, cache=cache[0])
        cache.truncate(2)
        close(mha(x[2:3], cache=cache[0]), mha(x[:3])[2:])

    @pytest.mark.parametrize("positions", [[0], np.arange(4), np.zeros((2, 5), int), np.zeros((1, 1, 5), int), 0])
    def test_positions_that_do_not_fit(self, seed, layer, positions) -> None:
        with pytest.raises(ak.ShapeError, match=r"positions must be \[T\] = \[5\] or \[B, T\] = \[1, 5\]"):
            layer(rope=ak.RopeConfig())(seed[0], positions=positions)


@pytest.mark.parametrize(
    "changes", [{"scale": 0.0}, {"scale": -2.0}, {"softcap": 0.5}, {"mask": CAUSAL & ak.Mask.window(2)}], ids=str
)
def test_options_of_the_configuration_reach_attention(seed, layer, changes) -> None:
    x, (wq, wk, wv, wo) = seed
    query, key, value = (np.moveaxis((x @ weight).reshape(5, 2, 4), 1, 0) for weight in (wq, wk, wv))
    direct = ak.attention(query, key, value, **{"mask": CAUSAL, **changes})
    expected = np.moveaxis(direct, 0, 1).reshape(5, 8) @ wo
    close(layer(**changes)(x), expected)
    cache = ak.make_cache(ak.KVCacheConfig(num_kv_heads=2, head_dim=4, dtype="float64"))
    close(layer(**changes)(x, cache=cache[0]), expected)
    assert not np.allclose(expected, layer()(x))


def test_the_backend_is_the_one_that_was_asked_for(seed, layer) -> None:
    with ak.trace() as calls:
        layer("numpy:dense")(seed[0])
        layer("numpy:tiled")(seed[0])
    assert [call.path for call in calls] == ["dense", "tiled"]


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_the_type_is_kept(seed, dtype) -> None:
    x, weights = seed
    layer = ak.MultiHeadAttention(config(rope=ak.RopeConfig()), *(weight.astype(dtype) for weight in weights))
    assert layer(x.astype(dtype)).dtype == dtype


def test_arguments_are_left_alone(seed) -> None:
    x, weights = seed
    before = [array.copy() for array in (x, *weights)]
    for array in (x, *weights):
        array.flags.writeable = False
    ak.MultiHeadAttention(config(rope=ak.RopeConfig()), *weights)(x)
    assert all((now == then).all() for now, then in zip((x, *weights), before, strict=True))


W = np.zeros((8, 8))


@pytest.mark.parametrize(
    ("weights", "biases", "words"),
    [
        ((np.zeros((8, 9)), W, W, W), {}, r"wq must be \[M, H D\] with 8 on axis 1, got \[8, 9\]"),
        ((W, np.zeros((8, 4)), W, W), {}, r"wk must be \[M, K D\] with 8 on axis 1"),
        ((W, W, np.zeros((8, 16)), W), {}, r"wv must be \[M, K E\] with 8 on axis 1"),
        ((W, W, W, np.zeros((9, 8))), {}, r"wo must be \[H E, M\] with 8 on axis 0"),
        ((np.zeros(8), W, W, W), {}, r"wq must be .*got \[8\]"),
        ((W, W, np.zeros((9, 8)), W), {}, r"wk and wv must have the same M, got 8 and 9"),
        ((W, W, W, W), {"bq": np.zeros(7)}, r"bq must be \[8\], got \[7\]"),
        ((W, W, W, W), {"bk": np.zeros((1, 8))}, r"bk must be \[8\], got \[1, 8\]"),
        ((W, W, W, np.zeros((8, 3))), {"bo": np.zeros(8)}, r"bo must be \[3\], got \[8\]"),
    ],
)
def test_weights_that_do_not_fit(weights, biases, words) -> None:
    with pytest.raises(ak.ShapeError, match=words):
        ak.MultiHeadAttention(config(), *weights, **biases)


@pytest.mark.parametrize(
    ("x", "context", "words"),
    [
        (np.zeros(8), None, r"x must be \[T, M\] or \[B, T, M\] with M = 8, got \[8\]"),
        (np.zeros((1, 1, 5, 8)), None, "x must be"),
        (np.zeros((5, 7)), None, "x must be"),
        (np.zeros((5, 8)), np.zeros((5, 7)), r"context must have x's rank and batch and M = 8, got \[5, 7\]"),
        (np.zeros((5, 8)), np.zeros((1, 5, 8)), "context must have x's rank"),
        (np.zeros((2, 5, 8)), np.zeros((3, 5, 8)), "context must have x's rank and batch"),
    ],
)
def test_inputs_that_do_not_fit(layer, x, context, words) -> None:
    with pytest.raises(ak.ShapeError, match=words):
        layer()(x, context)


def test_what_does_not_go_together(seed, layer) -> None:
    x, _ = seed
    cache = ak.make_cache(ak.KVCacheConfig(num_kv_heads=2, head_dim=4, dtype="float64"))
    with pytest.raises(ak.ShapeError, match=r"context \(cross-attention\) does not go with rope"):
        layer(rope=ak.RopeConfig())(x, x)
    with pytest.raises(ak.ShapeError, match="does not go with a cache"):
        layer()(x, x, cache=cache[0])
    with pytest.raises(ak.ShapeError, match="kv_lengths does not go with a cache"):
        layer()(x, cache=cache[0], kv_lengths=3)
    other = ak.make_cache(ak.KVCacheConfig(num_kv_heads=3, head_dim=4, dtype="float64"))
    with pytest.raises(ak.ShapeError, match=r"key, value must be .*K = 3"):
        layer()(x, cache=other[0])
    with pytest.raises(ak.ShapeError, match=r"query_lengths must lie in 0\.\.T = 0\.\.5, got \[6\]"):
        layer()(x, query_lengths=6)
    assert cache.stored.tolist() == [0]
