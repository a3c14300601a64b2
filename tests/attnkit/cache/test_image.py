"""Images: what is in them, what is shared, what is never in them, and how they fit other configurations (C11).

Axes: ``L`` layers, ``B`` sequences, ``K`` key/value heads, ``N`` tokens of an image, ``F`` features of a plane.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import attnkit as ak
from attnkit.arrays import numpy_dtype
from attnkit.cache.image import captured
from attnkit.cache.outline import Outline, Part

SIZES = {"num_layers": 2, "batch_size": 3, "num_kv_heads": 2, "head_dim": 4, "value_dim": 3}
RING = {"layout": "ring", "window": 4, "max_append": 3}
LAYOUTS = {
    "contiguous": {"layout": "contiguous"},
    "fixed": {"layout": "contiguous", "max_length": 40},
    "ring": {**RING, "window": 40, "max_append": 40},
    "pinned": {**RING, "window": 30, "max_append": 40, "pinned": 3},
    "pages-of-4": {"layout": "paged", "page_size": 4},
    "pages-of-3": {"layout": "paged", "page_size": 3, "max_length": 40, "num_pages": 40},
}
CODECS = ("native", "int8", "int4", "fp8")


def make(**changes):
    return ak.make_cache(ak.KVCacheConfig(**{**SIZES, "dtype": "float32", **changes}), backend="numpy")


def append(cache, count, lengths=None, layers=None):
    """Append tokens whose every feature tells their layer, head, number and where they came."""
    start = int(cache.next_position.sum()) + 100 * cache.batch_size
    for layer in cache if layers is None else [cache[number] for number in layers]:
        for_each = np.arange(cache.batch_size * 2 * count * 4, dtype=np.float32).reshape(cache.batch_size, 2, count, 4)
        key = np.sin(for_each * 0.37 + start + layer.number)
        layer.append(key, -key[..., :3] * 2, lengths=lengths)
    return cache


def whole(image):
    """Give the planes of all layers."""
    return [plane for planes in image for plane in planes]


def tokens_in(image):
    """Give for each layer and sequence what the planes hold of it, in token order, as bytes."""
    return [
        [plane[:, places].tobytes() for plane in planes]
        for layer, planes in enumerate(image)
        for b, (n, gone) in enumerate(zip(image.outline.next[layer], image.outline.gone[layer], strict=True))
        for places in [image.outline.indices(layer, pieces(b, n, gone, image.outline.config.pinned or 0))]
    ]


def pieces(sequence, count, gone, pinned):
    return [Part(sequence, 0, pinned), Part(sequence, pinned + gone, count)] if gone else [Part(sequence, 0, count)]


# What is in an image


def test_an_image_is_dense_and_holds_each_token_once() -> None:
    cache = append(make(), 5, lengths=[5, 0, 3])
    image = captured(cache, range(3))
    assert image.outline.parts(0) == [Part(0, 0, 5), Part(2, 0, 3)]
    assert [plane.shape for plane in whole(image)] == [(2, 8, 4), (2, 8, 3)] * 2
    key, value = cache[1].read()
    np.testing.assert_array_equal(image.layer(1)[0], np.concatenate([key[0, :, :5], key[2, :, :3]], axis=1))
    np.testing.assert_array_equal(image.layer(1)[1], np.concatenate([value[0, :, :5], value[2, :, :3]], axis=1))


@pytest.mark.parametrize("pinned", [0, 2])
def test_of_a_ring_the_image_has_what_is_held_in_token_order(pinned) -> None:
    cache = make(**RING, pinned=pinned)
    for _ in range(5):
        append(cache, 3, lengths=[3, 1, 2])
    image = captured(cache, range(3))
    assert [sum(stop - start for b, start, stop in image.outline.parts(0) if b == i) for i in range(3)] == [
        *cache.stored
    ]
    assert max(map(max, image.outline.gone)) > 0
    key, _ = cache[0].read()
    held = [key[b, :, :n] for b, n in enumerate(cache.stored.tolist())]
    np.testing.assert_array_equal(image.layer(0)[0], np.concatenate(held, axis=1))


def test_shared_pages_are_there_once() -> None:
    cache = append(make(batch_size=1, **LAYOUTS["pages-of-4"]), 10)
    for _ in range(7):
        cache.fork(0)
    append(cache, 1)
    image = captured(cache, range(8))
    assert image.outline.rows[0] == (0, 1, 2)
    assert [row[:2] for row in image.outline.rows] == [(0, 1)] * 8
    assert len({row[2] for row in image.outline.rows}) == 8
    assert image.outline.tokens(0) == 8 + 8 * 3
    assert image.layer(0)[0].shape == (2, 32, 4)


def test_of_a_shared_page_the_image_has_as_much_as_its_longest_holder() -> None:
    cache = append(make(batch_size=1, **LAYOUTS["pages-of-4"]), 7)
    cache.fork(0)
    cache.fork(0)
    cache.truncate([2, 7, 6])
    outline = captured(cache, range(3)).outline
    assert outline.rows == ((0,), (0, 1), (0, 1))
    assert outline.parts(0) == [Part(1, 0, 7)]
    assert captured(cache, [0]).outline.parts(0) == [Part(0, 0, 2)]
    assert captured(cache, [2, 0]).outline.parts(1) == [Part(0, 0, 6)]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("codec", CODECS)
def test_what_was_forgotten_is_in_no_image(layout, codec) -> None:
    """The features of what is cut are all 77, which no other token has."""
    cache = append(make(codec=codec, **LAYOUTS[layout]), 5, lengths=[5, 2, 3])
    kept = whole(captured(cache, range(3)))
    marked = np.full((3, 2, 6, 4), 77, np.float32)
    for layer in cache:
        layer.append(marked, marked[..., :3])
    assert any((plane == 77).any() for plane in whole(captured(cache, range(3)))) or codec == "fp8"
    cache.drop(6)
    after = whole(captured(cache, range(3)))
    assert [plane.tobytes() for plane in after] == [plane.tobytes() for plane in kept]


def test_an_evicted_token_is_in_no_image() -> None:
    cache = make(**RING, batch_size=1)
    marked = np.full((1, 2, 1, 4), 77, np.float32)
    for layer in cache:
        layer.append(marked, marked[..., :3])
    assert all((plane == 77).any() for plane in whole(captured(cache, [0])))
    append(append(cache, 3), 1)
    assert not any((plane == 77).any() for plane in whole(captured(cache, [0])))


def test_layers_may_hold_different_numbers_of_tokens() -> None:
    cache = append(append(make(**LAYOUTS["pages-of-3"]), 4), 3, layers=[0])
    outline = captured(cache, range(3)).outline
    assert [outline.tokens(layer) for layer in range(2)] == [21, 12]
    assert [len(row) for row in outline.rows] == [3, 3, 3]
    assert outline.longest.tolist() == [7, 7, 7]


def test_an_image_of_nothing() -> None:
    for layout in LAYOUTS.values():
        cache = make(**layout)
        assert [plane.shape[1] for plane in whole(captured(cache, range(3)))] == [0] * 4
        cache.select([])
        image = captured(cache, [])
        assert (image.outline.batch, image.outline.rows, image.outline.nbytes) == (0, (), 0)
        assert image.outline.counters.next.shape == (2, 0)


def test_bytes_are_told_in_advance() -> None:
    for codec in CODECS:
        image = captured(append(make(codec=codec, **LAYOUTS["pages-of-4"]), 5, lengths=[5, 4, 1]), range(3))
        assert image.outline.nbytes == sum(plane.nbytes for plane in whole(image)) > 0
        for layer, planes in enumerate(image):
            described = list(image.outline.planes(layer))
            assert [(plane.shape, plane.dtype) for plane in planes] == [
                (plane.shape, numpy_dtype(plane.dtype)) for plane in described
            ]


# What an outline refuses


GOOD = {
    "config": ak.KVCacheConfig(**SIZES, layout="paged", page_size=4, max_length=9),
    "next": [[5, 9, 0], [5, 8, 0]],
    "gone": [[0, 0, 0], [0, 0, 0]],
    "ragged": [None, {"tokens": 5, "taken": [5, 3, 0]}],
    "rows": [[0, 1], [0, 2, 3], []],
}
A_RING = {
    "config": ak.KVCacheConfig(**SIZES, **RING, pinned=1),
    "next": [[9, 4, 0], [9, 2, 0]],
    "gone": [[4, 0, 0], [2, 0, 0]],
    "ragged": [None, None],
    "rows": [[0], [1], [2]],
}


def test_outlines_that_hold_together() -> None:
    assert Outline(**GOOD).tokens(0) == 5 + 5  # of the page that they share all four
    assert Outline(**A_RING).tokens(0) == 5 + 4


@pytest.mark.parametrize(
    ("base", "changes", "told"),
    [
        (GOOD, {"next": [[5, 10, 0], [5, 8, 0]]}, "next must leave each sequence at most the 9 tokens"),
        (GOOD, {"next": [[5, 9, -1], [5, 8, 0]]}, "greater than or equal to 0"),
        (GOOD, {"next": [[5, 9, 0.5], [5, 8, 0]]}, "integer"),
        (GOOD, {"next": [[5, 9, 2**53 + 1], [5, 8, 0]]}, "less than or equal to 9007199254740992"),
        (GOOD, {"next": [[5, 9, 0]]}, "next must be of num_layers = 2, got 1"),
        (GOOD, {"gone": [[0, 0, 0]] * 3}, "gone must be of num_layers = 2, got 3"),
        (GOOD, {"ragged": []}, "ragged must be of num_layers = 2, got 0"),
        (GOOD, {"next": [[5, 9, 0], [5, 8]]}, "of the 3 sequences of rows"),
        (GOOD, {"gone": [[0, 0, 0], [0, 0, 1]]}, "gone must be what a paged cache gives up of 0 tokens, got 1"),
        (GOOD, {"ragged": [None, {"tokens": 5, "taken": [6, 3, 0]}]}, "ragged must have taken no more than its tokens"),
        (GOOD, {"ragged": [None, {"tokens": 5, "taken": [5, 3]}]}, "of the 3 sequences of rows"),
        (GOOD, {"rows": [[0, 1], [0, 2, 3]]}, "of the 2 sequences of rows"),
        (GOOD, {"rows": [[0, 1], [0, 2], []]}, "rows must have the pages of 9 tokens, got 2 of 4 tokens"),
        (GOOD, {"rows": [[0, 1], [0, 2, 3], [4]]}, "rows must have the pages of 0 tokens, got 1 of 4 tokens"),
        (GOOD, {"rows": [[0, 1], [0, 2, 4], []]}, "rows must number pages as they come"),
        (GOOD, {"rows": [[1, 0], [1, 2, 3], []]}, "rows must number pages as they come"),
        (GOOD, {"rows": [[0, 1], [1, 2, 3], []]}, "each at one place"),
        (GOOD, {"rows": [[0, 0], [0, 1, 2], []]}, "each at one place"),
        (GOOD, {"rows": [[0, 1], [0, 2, 10**15], []]}, "rows must number pages as they come"),
        (GOOD, {"rows": [[0, 1], [0, 2, -1], []]}, "greater than or equal to 0"),
        (GOOD, {"version": 2}, "Input should be 1"),
        (GOOD, {"more": 1}, "Extra inputs are not permitted"),
        (A_RING, {"gone": [[6, 0, 0], [2, 0, 0]]}, "gone must be what a ring cache gives up of 9 tokens, got 6"),
        (A_RING, {"gone": [[10, 0, 0], [2, 0, 0]]}, "gone must be what a ring cache gives up of 9 tokens, got 10"),
        (A_RING, {"gone": [[1, 0, 0], [2, 0, 0]]}, "at most the 7 tokens that the cache holds, got 9"),
        (A_RING, {"rows": [[0], [0], [1]]}, "a page of its own"),
        (A_RING, {"rows": [[0], [2], [1]]}, "a page of its own"),
        (A_RING, {"rows": [[0], [1], []]}, "a page of its own"),
    ],
)
def test_outlines_that_contradict_themselves(base, changes, told) -> None:
    with pytest.raises(ValueError, match=told):
        Outline(**{**base, **changes})


# Other configurations


@pytest.mark.parametrize("old", LAYOUTS)
@pytest.mark.parametrize("new", LAYOUTS)
@pytest.mark.parametrize("codec", CODECS)
def test_from_any_layout_to_any_other_bit_for_bit(old, new, codec) -> None:
    cache = append(make(codec=codec, **LAYOUTS[old]), 5, lengths=[5, 2, 3])
    cache.fork(0)
    append(append(cache, 2), 1, layers=[0])
    image = captured(cache, range(4))
    other = image.converted(make(codec=codec, **LAYOUTS[new]).config)
    assert other.outline.config == make(codec=codec, **LAYOUTS[new]).config
    assert other.outline.next == image.outline.next
    assert other.outline.ragged == image.outline.ragged
    assert tokens_in(other) == tokens_in(image) == tokens_in(other.converted(cache.config))


def test_pages_stay_shared_where_they_are_as_large() -> None:
    cache = append(make(batch_size=1, **LAYOUTS["pages-of-4"]), 8)
    cache.fork(0)
    image = captured(cache, [0, 1])
    tokens = {
        name: image.converted(make(**changes).config).outline.tokens(0)
        for name, changes in {
            "same": {"layout": "paged", "page_size": 4, "codec": "int8"},
            "smaller": {"layout": "paged", "page_size": 2},
            "none": {"layout": "contiguous"},
        }.items()
    }
    assert tokens == {"same": 8, "smaller": 16, "none": 16}


@pytest.mark.parametrize("old", CODECS)
@pytest.mark.parametrize("new", CODECS)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_another_codec_or_dtype_is_what_appending_the_decoded_tokens_gives(old, new, dtype) -> None:
    cache = append(make(codec=old, dtype="float32"), 5)
    other = make(codec=new, dtype=dtype, layout="paged", page_size=2)
    found = captured(cache, range(3)).converted(other.config)
    if old == new != "native":
        assert [p.tobytes() for p in whole(found)] == [p.tobytes() for p in whole(captured(cache, range(3)))]
        return
    for old_layer, new_layer in zip(cache, other, strict=True):
        new_layer.append(*old_layer.read())
    assert [p.tobytes() for p in whole(found)] == [p.tobytes() for p in whole(captured(other, range(3)))]
    assert [p.dtype for p in whole(found)] == [p.dtype for p in whole(captured(other, range(3)))]


@settings(max_examples=150, deadline=None, database=None)
@given(
    count=st.integers(0, 30),
    window=st.integers(1, 8),
    pinned=st.integers(0, 4),
    most=st.integers(1, 6),
    page=st.none() | st.integers(1, 5),
)
def test_a_ring_takes_the_last_tokens_that_it_may_hold(count, window, pinned, most, page) -> None:
    layout = {"layout": "contiguous"} if page is None else {"layout": "paged", "page_size": page}
    cache = append(make(batch_size=2, **layout), count)
    config = make(batch_size=2, layout="ring", window=window, max_append=most, pinned=pinned).config
    image = captured(cache, range(2)).converted(config)
    tail = max(pinned, count - (window - 1 + most))
    for layer, planes in enumerate(image):
        for plane, full in zip(planes, cache[layer].read(), strict=True):
            kept = np.concatenate([full[:, :, :pinned], full[:, :, tail:]], axis=2)
            np.testing.assert_array_equal(plane, np.concatenate(list(kept), axis=1))


@settings(max_examples=200, deadline=None, database=None)
@given(data=st.data())
def test_from_ring_to_ring_what_a_query_needs_is_there_or_it_is_refused(data) -> None:
    """Each token tells its position."""

    def ring():
        window, pinned, most = (data.draw(st.integers(*ends)) for ends in ((1, 6), (0, 3), (1, 4)))
        return make(num_layers=1, batch_size=1, layout="ring", window=window, pinned=pinned, max_append=most)

    old, new = ring(), ring().config
    while old.next_position[0] < 20 and data.draw(st.integers(0, 7)):
        start, count = old.next_position[0], data.draw(st.integers(1, old.config.max_append))
        tokens = np.broadcast_to(np.arange(start, start + count, dtype=np.float32)[:, None], (1, 2, count, 4))
        old[0].append(tokens, tokens[..., :3])
    image, count = captured(old, [0]), int(old.next_position[0])
    held = set(image.layer(0)[0][0, :, 0].astype(int).tolist())
    needed = {*range(min(new.pinned, count)), *range(max(0, count - (new.window - 1)), count)}
    beyond = {*range(min(new.pinned, count)), *range(min(count, max(new.pinned, count - new.window + 1)), count)}
    try:
        found = image.converted(new).layer(0)[0][0, :, 0].astype(int).tolist()
    except ak.ShapeError as error:
        assert not needed <= held
        assert "a ring of no larger window and with no more pinned" in str(error)  # noqa: PT017
        return
    assert needed | beyond <= set(found) <= held
    assert found == sorted(set(found))
    assert len(found) <= new.pinned + new.window - 1 + new.max_append


def test_a_ring_that_has_given_up_tokens_goes_into_a_ring_alone() -> None:
    cache = make(**RING)
    for _ in range(5):
        append(cache, 3)
    image = captured(cache, range(3))
    for layout in ("contiguous", "pages-of-4"):
        with pytest.raises(
            ak.ShapeError, match=rf"given up tokens, up to 9 of a sequence; .* got layout '{LAYOUTS[layout]['layout']}'"
        ):
            image.converted(make(**LAYOUTS[layout]).config)
    assert image.converted(make(**{**RING, "window": 2}).config).outline.tokens(0) == 3 * (1 + 3)


def test_what_another_configuration_cannot_hold() -> None:
    image = captured(append(make(), 5), range(3))
    with pytest.raises(ak.CacheCapacityError, match=r"needs room for 5 tokens, .* max_length = 4"):
        image.converted(make(max_length=4).config)
    for name in ("num_layers", "num_kv_heads", "head_dim", "value_dim"):
        with pytest.raises(ak.ShapeError, match=f"{name} 7 and not"):
            image.converted(make(**{name: 7}).config)
