"""One layer: append, attend, read (C1-C5)."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import attnkit as ak
from attnkit import reference
from attnkit.numerics import numerics_for

CAUSAL = ak.Mask.causal()


def close(found, expected, atol=1e-12):
    np.testing.assert_allclose(found, expected, rtol=0, atol=atol)


def test_an_empty_layer(cache, queries) -> None:
    layer = cache[0]
    assert layer.next_position.tolist() == layer.stored.tolist() == [0, 0, 0]
    key, value = layer.read()
    assert (key.shape, value.shape) == ((3, 2, 0, 4), (3, 2, 0, 3))
    output, lse = layer.attend_with_lse(queries(2), mask=CAUSAL)
    assert (output == 0).all()
    assert (lse == -np.inf).all()


def test_append_then_read(cache, tokens) -> None:
    key, value = tokens(5)
    cache[0].append(key, value)
    assert cache[0].stored.tolist() == cache[0].next_position.tolist() == [5, 5, 5]
    assert cache[1].stored.tolist() == [0, 0, 0]
    read = cache[0].read()
    assert (read[0] == key).all()
    assert (read[1] == value).all()


@pytest.mark.parametrize("cut", [0, 1, 4, 7])
def test_two_appends_are_one(cache, tokens, queries, cut) -> None:
    key, value = tokens(7)
    cache[0].append(key[:, :, :cut], value[:, :, :cut])
    cache[0].append(key[:, :, cut:], value[:, :, cut:])
    cache[1].append(key, value)
    query = queries(2)
    assert all((a == b).all() for a, b in zip(cache[0].read(), cache[1].read(), strict=True))
    assert (cache[0].attend(query, mask=CAUSAL) == cache[1].attend(query, mask=CAUSAL)).all()


@pytest.mark.parametrize("chunks", [[7], [1] * 7, [4, 1, 2], [0, 3, 0, 4]])
def test_any_chunking_is_one_shot(cache, tokens, queries, chunks) -> None:
    key, value = tokens(7)
    query, outputs, start = queries(7), [], 0
    for count in chunks:
        part = slice(start, start + count)
        cache[0].append(key[:, :, part], value[:, :, part])
        outputs.append(cache[0].attend(query[:, :, part], mask=CAUSAL))
        start += count
    close(np.concatenate(outputs, axis=2), ak.attention(query, key, value, mask=CAUSAL, backend=cache.choice))


# Ragged appends


@pytest.mark.parametrize("lengths", [[4, 2, 0], [0, 0, 4], [1, 4, 3], np.array([4, 0, 1], np.int32), (2, 2, 3)])
def test_each_sequence_takes_its_own_number(cache, shelf, tokens, queries, lengths) -> None:
    lists = shelf.Lists(cache.config)
    for count, taken in ((2, None), (4, lengths), (3, None)):
        key, value = tokens(count)
        if taken is not None:
            for sequence, length in enumerate(taken):
                key[sequence, :, length:] = value[sequence, :, length:] = np.nan  # padding is skipped
        cache[0].append(key, value, lengths=taken)
        lists.append(0, key, value, taken)
        assert cache[0].stored.tolist() == lists.stored(0)
        assert all((a == b).all() for a, b in zip(cache[0].read(), lists.read(0), strict=True))
        query = queries(count)
        close(cache[0].attend(query, mask=CAUSAL), lists.attend(0, query, taken))


def test_one_length_for_all(cache, tokens) -> None:
    key, value = tokens(4)
    cache[0].append(key, value, lengths=3)
    assert cache[0].stored.tolist() == [3, 3, 3]
    assert (cache[0].read()[0] == key[:, :, :3]).all()


def test_attend_takes_the_lengths_of_the_append(cache, shelf, tokens, queries) -> None:
    lists = shelf.Lists(cache.config)
    key, value = tokens(4)
    cache[0].append(key, value, lengths=[4, 2, 0])
    lists.append(0, key, value, [4, 2, 0])
    query, single = queries(4), queries(1)
    close(cache[0].attend(query, mask=CAUSAL), lists.attend(0, query, [4, 2, 0]))
    close(cache[0].attend(single, mask=CAUSAL), lists.attend(0, single))  # another number of rows, not those
    close(cache[0].attend(query, mask=CAUSAL, query_lengths=[1, 2, 0]), lists.attend(0, query, [1, 2, 0]))
    whole = np.array([4, 4, 4])
    close(cache[0].attend(query, mask=CAUSAL, query_lengths=whole), lists.attend(0, query))


def test_the_lengths_of_an_append_are_kept_as_they_were(cache, tokens, queries) -> None:
    lengths = np.array([4, 2, 0])
    cache[0].append(*tokens(4), lengths=lengths)
    query = queries(4)
    before = cache[0].attend(query, mask=CAUSAL)
    lengths[:] = 1
    assert (cache[0].attend(query, mask=CAUSAL) == before).all()
    assert cache[0].stored.tolist() == [4, 2, 0]


def test_a_plain_append_ends_the_ragged_one(cache, shelf, tokens, queries) -> None:
    lists = shelf.Lists(cache.config)
    for lengths in ([2, 1, 0], None):
        key, value = tokens(2)
        cache[0].append(key, value, lengths=lengths)
        lists.append(0, key, value, lengths)
    query = queries(2)
    close(cache[0].attend(query, mask=CAUSAL), lists.attend(0, query))


@pytest.mark.parametrize("lengths", [None, 0, [0, 0, 0]])
def test_no_tokens_change_nothing(cache, shelf, tokens, lengths) -> None:
    for first in (None, [2, 1, 0]):
        cache[0].append(*tokens(2), lengths=first)
        before = shelf.observe(cache)
        cache[0].append(*tokens(0), lengths=lengths)
        assert shelf.observe(cache) == before


# Types


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("given", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64])
def test_values_are_converted_to_the_type_of_the_cache(shelf, backend, tokens, queries, dtype, given) -> None:
    cache = ak.make_cache(shelf.config(dtype=dtype), backend=backend)
    lists = shelf.Lists(cache.config)
    key, value = tokens(4, given)
    cache[0].append(key, value)
    lists.append(0, key, value)
    for found, expected in zip(cache[0].read(), lists.read(0), strict=True):
        assert found.dtype == expected.dtype == lists.dtype
        assert found.tobytes() == expected.tobytes()


@pytest.mark.parametrize("stored", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64])
def test_the_output_has_the_type_of_the_query(shelf, backend, tokens, queries, stored, dtype) -> None:
    cache = ak.make_cache(shelf.config(dtype=stored), backend=backend)
    cache[0].append(*tokens(4))
    query = queries(2, dtype)
    output, lse = cache[0].attend_with_lse(query, mask=CAUSAL)
    assert output.dtype == dtype
    assert lse.dtype == (np.float64 if "float64" in (stored, query.dtype.name) else np.float32)
    truth = reference.attention(query, *cache[0].read(), mask=CAUSAL)
    profile = {"float64": "float64", "float32": "strict-fp32"}.get(query.dtype.name, "fp32P-16")
    assert (np.abs(output - truth.output) <= truth.tolerance(numerics_for(profile, query.dtype.name)).output).all()


# Attending


@pytest.mark.parametrize("ragged", [None, [3, 5, 1]])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"mask": CAUSAL & ak.Mask.window(2), "scale": 0.2},
        {"mask": ak.Mask.prefix(2), "softcap": 1.5},
        {"mask": ak.Mask.chunked(3), "query_offset": [4, 1, 2]},
        {"mask": CAUSAL, "query_lengths": [2, 1, 0]},
        {"bias": np.linspace(-2, 2, 10).reshape(2, 5)},
        {"alibi": np.array([0.5, 0.25, 0.125, 0.0625]), "mask": CAUSAL},
        {"sinks": np.array([0.5, -1.0, 3.0, 0.0])},
        {"mask": ak.Mask.documents([0, 1], [0, 0, 1, 1, 1])},
        {"mask": ak.Mask.dense(np.tri(2, 5, 2, bool))},
    ],
    ids=str,
)
def test_attend_is_attention_over_what_is_stored(cache, tokens, queries, options, ragged) -> None:
    cache[0].append(*tokens(5), lengths=ragged)
    query = queries(2)
    output, lse = cache[0].attend_with_lse(query, **options)
    stored = [5, 5, 5] if ragged is None else ragged
    truth = ak.attention_with_lse(query, *cache[0].read(), kv_lengths=stored, **options, backend=cache.choice)
    close(output, truth.output)
    close(lse, truth.lse)
    assert (cache[0].attend(query, **options) == output).all()


def test_attending_never_writes(cache, shelf, tokens, queries) -> None:
    cache[0].append(*tokens(5), lengths=[5, 2, 4])
    before = shelf.stored_bytes(cache)
    for rows in (1, 5):
        query = queries(rows)
        query.flags.writeable = False
        cache[0].attend(query, mask=CAUSAL)
    assert shelf.stored_bytes(cache) == before


def test_parts_of_a_context_can_be_merged(cache, tokens, queries) -> None:
    key, value = tokens(6)
    query = queries(2)
    cache[0].append(key[:, :, :4], value[:, :, :4])
    cached = cache[0].attend_with_lse(query)
    rest = ak.attention_with_lse(query, key[:, :, 4:], value[:, :, 4:], backend=cache.choice)
    close(ak.merge(cached, rest)[0], ak.attention(query, key, value, backend=cache.choice))


def test_the_path_that_a_cache_was_made_with_runs(shelf, tokens, queries) -> None:
    with ak.trace() as calls:
        for choice in ("numpy:dense", "numpy:tiled"):
            cache = ak.make_cache(shelf.config(), backend=choice)
            cache[0].append(*tokens(3))
            cache[0].attend(queries(3))
    assert [call.path for call in calls] == ["dense", "tiled"]
    assert [call.choice for call in calls] == ["numpy:dense", "numpy:tiled"]


# Nothing is shared with the caller


def test_appended_arrays_are_copied(cache, tokens) -> None:
    key, value = tokens(3)
    kept = key.copy(), value.copy()
    cache[0].append(key, value)
    key[...] = value[...] = np.nan
    assert all((a == b).all() for a, b in zip(cache[0].read(), kept, strict=True))


def test_appended_arrays_are_left_alone(cache, tokens) -> None:
    key, value = tokens(3)
    kept = key.copy(), value.copy()
    key.flags.writeable = value.flags.writeable = False
    cache[0].append(key[..., ::-1], value)
    assert (key == kept[0]).all()
    assert (value == kept[1]).all()
    assert (cache[0].read()[0] == kept[0][..., ::-1]).all()


def test_what_is_read_is_a_copy(cache, shelf, tokens) -> None:
    cache[0].append(*tokens(3), lengths=[3, 1, 2])
    before = shelf.observe(cache)
    read = cache[0].read()
    for array in read:
        array[...] = np.nan
    assert shelf.observe(cache) == before
    kept = [array.copy() for array in cache[0].read()]
    read = cache[0].read()
    cache[0].append(*tokens(2))
    assert all((a == b).all() for a, b in zip(read, kept, strict=True))


def test_counters_are_copies(cache, shelf, tokens) -> None:
    cache[0].append(*tokens(3))
    before = shelf.observe(cache)
    counters = [cache.next_position, cache.seen, cache.stored, cache.capacity]
    counters += [cache[0].next_position, cache[0].stored, cache[0].capacity]
    for counter in counters:
        assert counter.dtype == np.int64
        assert counter.shape == (3,)
        counter += 7
    assert shelf.observe(cache) == before
    kept = cache[0].stored
    cache[0].append(*tokens(2))
    assert kept.tolist() == [3, 3, 3]


def test_an_output_is_not_a_view_of_the_cache(cache, shelf, tokens, queries) -> None:
    cache[0].append(*tokens(1))
    before = shelf.observe(cache)
    output, lse = cache[0].attend_with_lse(queries(1))
    output[...] = lse[...] = np.nan
    assert shelf.observe(cache) == before


def test_dead_slots_change_no_bit(cache, shelf, tokens, queries) -> None:
    for lengths in ([3, 1, 0], None, [0, 2, 2]):
        cache[0].append(*tokens(2 if lengths is None else 3), lengths=lengths)
    before = shelf.observe(cache), shelf.observe(cache, rows=1), cache[0].attend(queries(3)).shape
    shelf.poison(cache)
    assert (shelf.observe(cache), shelf.observe(cache, rows=1), before[2]) == before
    key, value = tokens(2)
    cache[0].append(key, value)  # over poison
    assert (cache[0].read()[0][0, :, 5:7] == key[0]).all()
    assert np.isfinite(cache[0].attend(queries(2), mask=CAUSAL)).all()


# What does not fit


def arrays(key=(3, 2, 2, 4), value=(3, 2, 2, 3), dtype=np.float64):
    return np.zeros(key, dtype), np.zeros(value, dtype)


@pytest.mark.parametrize(
    ("key_value", "lengths", "error", "words"),
    [
        (arrays(key=(2, 2, 2, 4)), None, ak.ShapeError, r"B = 3, K = 2, D = 4, E = 3, got \[2, 2, 2, 4\]"),
        (arrays(key=(3, 1, 2, 4)), None, ak.ShapeError, "B = 3, K = 2"),
        (arrays(key=(3, 2, 2, 5)), None, ak.ShapeError, "B = 3, K = 2"),
        (arrays(key=(3, 2, 3, 4)), None, ak.ShapeError, "B = 3, K = 2"),
        (arrays(value=(3, 2, 2, 4)), None, ak.ShapeError, "B = 3, K = 2"),
        (arrays(key=(2, 2, 4)), None, ak.ShapeError, "B = 3, K = 2"),
        (arrays(value=(3, 2, 2, 3, 1)), None, ak.ShapeError, "B = 3, K = 2"),
        (
            arrays(dtype=np.int64),
            None,
            ak.DTypeError,
            "key must be one of float16, .*, got int64",
        ),
        ((arrays()[0], arrays(dtype=bool)[1]), None, ak.DTypeError, "value must be one of .*got bool"),
        ((None, arrays()[1]), None, ak.DTypeError, "key must be an array, got NoneType"),
        ((arrays()[0], [1.0]), None, ak.DTypeError, "value must be an array, got list"),
        ((np.ma.array(arrays()[0]), arrays()[1]), None, ak.DTypeError, "masked array"),
        (arrays(), 3, ak.ShapeError, r"lengths must lie in 0\.\.T = 0\.\.2, got \[3, 3, 3\]"),
        (arrays(), [2, -1, 0], ak.ShapeError, "lengths must lie in"),
        (arrays(), [2, 1], ak.ShapeError, r"lengths must be an integer or \[B\] = \[3\]"),
        (arrays(), [[2, 1, 0]], ak.ShapeError, "lengths must be an integer"),
        (arrays(), [2.0, 1.0, 0.0], ak.DTypeError, "lengths must be an integer"),
        (arrays(), True, ak.DTypeError, "lengths must be an integer"),
        (arrays(key=(3, 2, 0, 4), value=(3, 2, 0, 3)), 1, ak.ShapeError, "lengths must lie in"),
    ],
)
def test_an_append_that_does_not_fit_changes_nothing(
    plain_cache, shelf, tokens, key_value, lengths, error, words
) -> None:
    cache = plain_cache
    cache[0].append(*tokens(2), lengths=[2, 1, 0])
    before = shelf.observe(cache)
    with pytest.raises(error, match=words):
        cache[0].append(*key_value, lengths=lengths)
    assert shelf.observe(cache) == before


@pytest.mark.parametrize(
    ("query", "options", "error", "words"),
    [
        (np.zeros((2, 4, 1, 4)), {}, ak.ShapeError, r"query must be \[B, H, T, D\] with B = 3, got \[2, 4, 1, 4\]"),
        (np.zeros((4, 1, 4)), {}, ak.ShapeError, "query must be"),
        (np.zeros((3, 3, 1, 4)), {}, ak.ShapeError, "H = 3, K = 2"),
        (np.zeros((3, 4, 1, 5)), {}, ak.ShapeError, "common B, K, S and D"),
        (np.zeros((3, 4, 1, 4), int), {}, ak.DTypeError, "must share one of"),
        ([0.0], {}, ak.DTypeError, "query must be an array"),
        (np.zeros((3, 4, 1, 4)), {"bias": np.zeros((1, 4))}, ak.ShapeError, "bias must broadcast"),
        (np.zeros((3, 4, 1, 4)), {"query_lengths": 2}, ak.ShapeError, "query_lengths must lie in"),
        (np.zeros((3, 4, 1, 4)), {"mask": 5}, ak.DTypeError, "mask must be"),
        (np.zeros((3, 4, 1, 4)), {"scale": np.nan}, ak.ShapeError, "scale must be finite"),
    ],
)
def test_a_query_that_does_not_fit_changes_nothing(plain_cache, shelf, tokens, query, options, error, words) -> None:
    cache = plain_cache
    cache[0].append(*tokens(2))
    before = shelf.observe(cache)
    with ak.trace() as calls, pytest.raises(error, match=words):
        cache[0].attend(query, **options)
    assert calls == []
    assert shelf.observe(cache) == before


def test_what_the_backend_does_not_take_changes_nothing(nobody, kit, shelf, tokens, queries) -> None:
    meagre = ak.Capabilities(dtypes=frozenset({"float64"}), **{**kit.yes, "softcap": False})
    ak.register(kit.spec("meagre", capabilities=lambda _self: meagre))
    cache = ak.make_cache(shelf.config(), backend="meagre")
    cache[0].append(*tokens(2))
    before = shelf.observe(cache)
    with pytest.raises(ak.UnsupportedError) as caught:
        cache[0].attend(queries(1), softcap=2.0)
    assert [reason.code for reason in caught.value.reasons["meagre"]] == ["softcap"]
    assert shelf.observe(cache) == before


def test_a_backend_without_kv_dtype_attends_in_the_type_of_the_cache_alone(nobody, kit, shelf, tokens, queries) -> None:
    strict = ak.Capabilities(dtypes=frozenset({"float32", "float64"}), **{**kit.yes, "kv_dtype": False})
    ak.register(kit.spec("strict", capabilities=lambda _self: strict))
    cache = ak.make_cache(shelf.config(dtype="float32"), backend="strict")
    cache[0].append(*tokens(2))  # float64, converted
    assert cache[0].attend(queries(1, np.float32)).dtype == np.float32
    with pytest.raises(ak.UnsupportedError) as caught:
        cache[0].attend(queries(1))
    assert [reason.code for reason in caught.value.reasons["strict"]] == ["kv_dtype"]
