"""``begin_step``: the counters move on first, the tokens follow.

Axes: ``B`` batch, ``H`` query heads, ``K`` key/value heads, ``T`` new tokens, ``D`` head size.
"""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest

import attnkit as ak

SIZES = {"num_layers": 2, "batch_size": 3, "num_kv_heads": 2, "head_dim": 4, "value_dim": 3}
LAYOUTS = {
    "fixed": {"max_length": 50},
    "growing": {},
    "ring": {"layout": "ring", "window": 6, "max_append": 4},
    "pinned": {"layout": "ring", "window": 6, "max_append": 4, "pinned": 2},
    "paged": {"layout": "paged", "max_length": 50, "page_size": 4},
    "growing pages": {"layout": "paged", "page_size": 3},
}


def made(layout: str = "fixed", **changed) -> ak.KVCache:
    return ak.make_cache(ak.KVCacheConfig(**{**SIZES, **LAYOUTS[layout], **changed}), backend="numpy")


def tokens(rng, count: int, batch: int = 3):
    shapes = [(batch, 4, count, 4), (batch, 2, count, 4), (batch, 2, count, 3)]
    return [rng.standard_normal(shape).astype(np.float32) for shape in shapes]


@pytest.mark.parametrize("codec", ["native", "int8", "int4", "fp8"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_steps_do_what_calls_of_layers_do(layout, codec) -> None:
    rng, plain, stepped = np.random.default_rng(1), made(layout, codec=codec), made(layout, codec=codec)
    mask = ak.Mask.window(6) if "window" in LAYOUTS[layout] else ak.Mask.causal()
    for number in range(24):
        count, lengths = (3, [1, 3, 0]) if number % 7 == 3 else (1, None)
        start = plain.next_position
        step = stepped.begin_step(count, lengths=lengths)
        assert step.tokens == count
        assert step.positions.tolist() == (start[:, None] + np.arange(count)).tolist()
        for layer, inside in zip(plain, step, strict=True):
            query, key, value = tokens(rng, count)
            assert inside.next_position.tolist() == start.tolist()
            layer.append(key, value, lengths=lengths)
            inside.append(key, value, lengths=lengths)
            one, other = layer.attend_with_lse(query, mask=mask), inside.attend_with_lse(query, mask=mask)
            assert np.array_equal(one.output, other.output)
            assert np.array_equal(one.lse, other.lse)
            assert np.array_equal(one.output, inside.attend(query, mask=mask))
        assert stepped.next_position.tolist() == plain.next_position.tolist()
        assert stepped.stored.tolist() == plain.stored.tolist()
        stepped.check_invariants()
    for layer, other in zip(plain, stepped, strict=True):
        assert all(map(np.array_equal, layer.read(), other.read()))


def test_a_module_takes_the_layer_of_a_step() -> None:
    config = ak.AttentionConfig(num_heads=4, num_kv_heads=2, head_dim=4, mask=ak.Mask.causal(), rope=ak.RopeConfig())
    rng = np.random.default_rng(2)
    shapes = [(8, 16), (8, 8), (8, 8), (16, 8)]
    module = ak.MultiHeadAttention(config, *(rng.standard_normal(shape).astype(np.float32) for shape in shapes))
    plain, stepped = made(value_dim=4), made(value_dim=4)
    for _ in range(4):
        x = rng.standard_normal((3, 1, 8)).astype(np.float32)
        step = stepped.begin_step()
        one = module(x, cache=plain[0])
        assert np.array_equal(module(x, cache=step[0]), one)
        assert np.array_equal(module(x, cache=plain[1]), module(x, cache=step[1]))


def test_the_same_step_is_given_while_it_is_held() -> None:
    cache = made()
    held = cache.begin_step()
    other = cache.begin_step(2)
    assert cache.begin_step() is held
    assert cache.begin_step(2) is other
    assert cache.begin_step(1, lengths=[1, 0, 1]) not in (held, other)
    cache.select([0, 1])
    assert cache.begin_step() is not held


def test_a_step_is_another_one_after_storage_grew() -> None:
    cache = made("growing")
    held = cache.begin_step()
    room = cache.capacity[0]
    for _ in range(int(room) - 1):
        assert cache.begin_step() is held
    assert cache.begin_step() is not held


def test_nothing_is_done_in_a_step_that_is_over() -> None:
    cache, (query, key, value) = made(), tokens(np.random.default_rng(3), 1)
    step = cache.begin_step()
    assert not step.is_over
    cache.drop(1)
    assert step.is_over
    for call in (lambda: step[0].append(key, value), lambda: step[0].attend(query)):
        with pytest.raises(
            ak.ShapeError, match=r"the step is over, since the cache has changed; call begin_step again"
        ):
            call()
    assert cache.begin_step() is step
    step[0].append(key, value)


def test_what_does_not_fit_is_told() -> None:
    cache, rng = made(), np.random.default_rng(4)
    step = cache.begin_step(2, lengths=[2, 1, 0])
    query, key, value = tokens(rng, 2)
    with pytest.raises(ak.ShapeError, match=r"lengths must be those of begin_step, \[2, 1, 0\]; leave them out"):
        step[0].append(key, value, lengths=[2, 2, 0])
    short = tokens(rng, 1)
    with pytest.raises(ak.ShapeError, match=r"key, value must have T = 2, as the step began with, got 1"):
        step[0].append(*short[1:])
    with pytest.raises(ak.ShapeError, match=r"query must have T = 2, as the step began with, got 1"):
        step[0].attend(short[0])
    with pytest.raises(ak.ShapeError, match=r"query must be \[B, H, T, D\] with B = 3, got \[2, 4, 2, 4\]"):
        step[0].attend(query[:2])
    dense = ak.Mask.dense(np.ones((2, 2), bool))
    with pytest.raises(ak.ShapeError, match=r"mask must be of positional kinds inside a step"):
        step[0].attend(query, mask=dense)
    with pytest.raises(ak.DTypeError, match=r"layer must be an integer, got 'a'"):
        step["a"]
    with pytest.raises(IndexError, match=r"layer must lie in 0..1, got 2"):
        step[2]
    assert [layer.number for layer in step] == [0, 1]
    assert step[-1] == step[1]


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        ({"tokens": 0}, ak.ShapeError, r"tokens must be >= 1, got 0"),
        ({"tokens": 1.5}, ak.DTypeError, r"tokens must"),
        ({"tokens": 2, "lengths": [1, 3, 0]}, ak.ShapeError, r"lengths must lie in 0..T = 0..2, got \[1, 3, 0\]"),
        ({"tokens": 51}, ak.CacheCapacityError, r"append needs room for 51 tokens"),
    ],
)
def test_a_refused_step_changes_nothing(wrong, error, message) -> None:
    cache = made()
    counters = cache.counters
    with pytest.raises(error, match=message):
        cache.begin_step(**wrong)
    assert cache.counters is counters


def test_uneven_layers_are_refused() -> None:
    cache, (_, key, value) = made(), tokens(np.random.default_rng(5), 1)
    cache[0].append(key, value)
    with pytest.raises(
        ak.ShapeError, match=r"equally many tokens before a step.*\[\[1, 1, 1\], \[0, 0, 0\]\]; truncate"
    ):
        cache.begin_step()
    cache.truncate(cache.next_position)
    cache.begin_step()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_backend_that_fails_leaves_the_cache_as_it_was(layout, monkeypatch) -> None:
    cache, rng = made(layout), np.random.default_rng(6)
    for _ in range(3):
        step = cache.begin_step()
        for layer in step:
            layer.append(*tokens(rng, 1)[1:])
    before = [layer.read() for layer in cache]

    def fail(*_):
        raise MemoryError("no room for mirrors")

    monkeypatch.setattr(cache.backend, "begin_step", fail)
    if cache.grain() is None:
        assert cache.begin_step().mirrors is None
        return
    with pytest.raises(MemoryError):
        cache.begin_step()
    assert cache.next_position.tolist() == [3] * 3
    assert step.is_over == (layout != "growing pages")  # there the next step was to be another one
    cache.check_invariants()
    for layer, held in zip(cache, before, strict=True):
        assert all(map(np.array_equal, layer.read(), held))


def test_a_cache_that_is_let_go_is_gone_at_once() -> None:
    cache = made("paged")
    step, seen = cache.begin_step(), weakref.ref(cache)
    gc.disable()
    try:
        del cache, step
        assert seen() is None
    finally:
        gc.enable()
