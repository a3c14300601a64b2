"""Continuous batching: whatever joins and leaves, a text is what it is alone."""

from __future__ import annotations

from itertools import count

import numpy as np
import pytest

import attnkit as ak
from attnkit.models import ContinuousBatch, generate, generate_batch, load_model
from attnkit.models.batching import Request

PROMPTS = [[5, 17, 200, 3], [9], [3, 3, 90, 41, 8, 77, 120, 6, 31, 4, 50], [1, 2], [12, 60, 61, 62, 63, 64, 65]]


def drained(batch: ContinuousBatch) -> dict[Request, list[int]]:
    texts: dict[Request, list[int]] = {}
    while batch:
        for event in batch.step():
            texts.setdefault(event.request, []).extend([] if event.token is None else [event.token])
            batch.cache.check_invariants()
    return texts


@pytest.fixture
def recorded(texts):
    """Submit prompts with a recorder each."""

    def submit(batch, prompts, max_tokens):
        recorders = [texts.recorder() for _ in prompts]
        pairs = zip(prompts, recorders, strict=True)
        return [batch.submit(prompt, max_tokens=max_tokens, choose=choose) for prompt, choose in pairs], recorders

    return submit


@pytest.mark.parametrize("codec", ["native", "int8", "int4", "int4/8", "fp8"])
@pytest.mark.parametrize("layout", ["contiguous", "fixed", "ring", "pinned", "paged", "pages of one", "pool"])
def test_texts_are_what_they_are_alone(tiny, texts, recorded, layout, codec):
    """Five prompts in three rows, so that rows are freed and filled while others run."""
    fields = texts.layouts[layout] | {"codec": codec}
    batch = ContinuousBatch(tiny, tiny.make_cache(batch_size=0, **fields), max_rows=3, max_piece=4)
    requests, recorders = recorded(batch, PROMPTS, 9)
    found = drained(batch)
    for prompt, request, recorder in zip(PROMPTS, requests, recorders, strict=True):
        tokens, logits = texts.alone(tiny, prompt, 9, **fields)
        np.testing.assert_allclose(recorder.logits, logits, rtol=0, atol=texts.rounding(tiny, logits))
        assert found[request] == tokens
    assert batch.cache.batch_size == 0


@pytest.mark.parametrize("seed", range(12))
def test_random_joins_and_leaves(tiny, texts, seed):
    """Requests of random lengths come at random steps, some are cancelled, and each layout and codec has its turn."""
    rng = np.random.default_rng(seed)
    layouts = list(texts.layouts.values())
    fields = layouts[seed % len(layouts)] | {"codec": texts.codecs[seed % len(texts.codecs)]}
    rows, piece = int(rng.integers(1, 5)), int(rng.integers(1, 9))
    batch = ContinuousBatch(tiny, tiny.make_cache(batch_size=0, **fields), max_rows=rows, max_piece=piece)
    wanted: dict[Request, tuple[list[int], int]] = {}
    found: dict[Request, list[int]] = {}
    cancelled: set[Request] = set()
    for step in count():
        if step < 25 and rng.random() < 0.4:
            prompt, most = rng.integers(3, 200, rng.integers(1, 20)).tolist(), int(rng.integers(1, 12))
            wanted[batch.submit(prompt, max_tokens=most)] = prompt, most
        if step % 9 == 8 and batch:
            victim = (batch.running + batch.waiting)[-1]
            batch.cancel(victim)
            cancelled.add(victim)
        if step > 25 and not batch:
            break
        assert len(batch.running) <= rows
        for event in batch.step():
            found.setdefault(event.request, []).append(event.token)
        batch.cache.check_invariants()
    assert len(wanted) >= 5
    for request, (prompt, most) in wanted.items():
        tokens, _ = texts.alone(tiny, prompt, most, **fields)
        new = found.get(request, [])
        assert new == (tokens[: len(new)] if request in cancelled else tokens)


def test_prompts_that_begin_alike_share_pages(tiny, texts, recorded):
    beginning = list(range(10, 31))
    batch = ContinuousBatch(tiny, tiny.make_cache(batch_size=0, layout="paged", page_size=4), max_piece=100)
    (first,), _ = recorded(batch, [[*beginning, 50]], 3)
    alone = drained(batch)[first]
    requests, recorders = recorded(batch, [[*beginning, 50], [*beginning, 51], [*beginning[:9], 52]], 3)
    batch.step()
    assert batch.cache.next_position.tolist() == [22, 22, 10]
    shared = [set(one) & set(other) for one, other in zip(batch.cache.rows, batch.cache.rows[1:], strict=False)]
    assert [len(pages) for pages in shared] == [5, 2]
    found = drained(batch)
    assert [alone[0], *found[requests[0]]] == [alone[0], *alone[1:]]
    for request, recorder in zip(requests, recorders, strict=True):
        logits = texts.alone(tiny, request.prompt, 3)[1]
        np.testing.assert_allclose(recorder.logits, logits, rtol=0, atol=texts.rounding(tiny, logits))


def test_a_full_pool_makes_requests_wait(tiny, texts):
    """Eight pages of four tokens, and texts of up to 13: two at a time."""
    batch = ContinuousBatch(tiny, tiny.make_cache(batch_size=0, layout="paged", page_size=4, num_pages=8), max_rows=8)
    requests = [batch.submit(prompt, max_tokens=14 - len(prompt)) for prompt in PROMPTS]
    batch.step()
    assert (batch.running, batch.waiting) == (requests[:2], requests[2:])
    most = 0
    found: dict[Request, list[int]] = {}
    while batch:
        most = max(most, batch.cache.pool.used)
        for event in batch.step():
            found.setdefault(event.request, []).append(event.token)
    assert most <= 8
    assert [found.get(request) for request in requests[2:]] == [
        texts.alone(tiny, prompt, 14 - len(prompt))[0] for prompt in PROMPTS[2:]
    ]


def test_what_can_never_fit_is_refused_at_once(tiny):
    paged = ContinuousBatch(tiny, tiny.make_cache(batch_size=0, layout="paged", page_size=4, num_pages=5))
    paged.submit([3] * 11, max_tokens=10)
    with pytest.raises(ak.CacheCapacityError, match=r"12 tokens of prompt and max_tokens=10 store 21 .* holds 20"):
        paged.submit([3] * 12, max_tokens=10)
    fixed = ContinuousBatch(tiny, tiny.make_cache(batch_size=0, max_length=16))
    with pytest.raises(ak.CacheCapacityError, match="holds 16 of one sequence"):
        fixed.submit([3] * 12, max_tokens=6)
    with pytest.raises(ak.ShapeError, match="exceed the model's context of 128"):
        fixed.submit([3] * 12, max_tokens=120)
    assert (len(paged), len(fixed)) == (1, 0)


def test_pages_that_others_hold_are_told_of(tiny):
    config = tiny.make_cache(batch_size=0, layout="paged", page_size=4, num_pages=4).config
    pool = ak.PagePool(config, backend="numpy")
    other = tiny.make_cache(layout="paged", page_size=4, num_pages=4, pool=pool)
    tiny.forward([3] * 9, other)
    batch = ContinuousBatch(tiny, tiny.make_cache(batch_size=0, layout="paged", page_size=4, num_pages=4, pool=pool))
    request = batch.submit([5, 6, 7], max_tokens=4)
    with pytest.raises(ak.CacheCapacityError, match="others hold pages of the pool"):
        batch.step()
    assert batch.waiting == [request]
    other.reset()
    assert len(drained(batch)[request]) == 4
    pool.check()


@pytest.mark.parametrize("layout", ["contiguous", "ring", "pinned", "paged", "pool"])
@pytest.mark.parametrize("fails_at", [1, 3, 5])
def test_a_step_that_fails_can_be_taken_again(tiny, texts, recorded, monkeypatch, layout, fails_at):
    fields = texts.layouts[layout]
    batch = ContinuousBatch(tiny, tiny.make_cache(batch_size=0, **fields), max_rows=3, max_piece=4)
    requests, _ = recorded(batch, PROMPTS, 9)
    expected = [texts.alone(tiny, prompt, 9, **fields)[0] for prompt in PROMPTS]
    whole, calls = tiny._mlp, count()

    def broken(x, block):
        if next(calls) == 2 * fails_at + 1:  # in the middle of a pass, where one layer has its tokens and one not
            raise MemoryError("no room")
        return whole(x, block)

    monkeypatch.setattr(tiny, "_mlp", broken)
    failures, found = 0, {}
    while batch:
        held, running = batch.cache.next_position.tolist(), batch.running
        try:
            events = batch.step()
        except MemoryError:
            failures += 1
            assert batch.cache.next_position.tolist()[: len(running)] == held
            continue
        for event in events:
            found.setdefault(event.request, []).append(event.token)
    assert failures == 1
    assert [found[request] for request in requests] == expected


def test_a_chooser_that_fails_loses_nothing(tiny, texts):
    broken = [True]

    def choose(logits):
        if broken.pop() if broken else False:
            raise RuntimeError("no choice")
        return int(np.argmax(logits))

    batch = ContinuousBatch(tiny, tiny.make_cache(batch_size=0))
    requests = [batch.submit(PROMPTS[0], max_tokens=4), batch.submit(PROMPTS[2], max_tokens=4, choose=choose)]
    with pytest.raises(RuntimeError, match="no choice"):
        batch.step()
    assert batch.cache.next_position.tolist() == [0, 0]
    found = drained(batch)
    assert [found[request] for request in requests] == [texts.alone(tiny, PROMPTS[row], 4)[0] for row in (0, 2)]


def test_events_tell_why_a_text_ended(tiny, texts):
    free = texts.alone(tiny, PROMPTS[0], 6)[0]
    batch = ContinuousBatch(tiny, tiny.make_cache(batch_size=0))
    stop = batch.submit(PROMPTS[0], max_tokens=6, stop_ids=[free[2]])
    length = batch.submit(PROMPTS[0], max_tokens=2)
    events = [event for _ in range(10) if batch for event in batch.step()]
    first = free.index(free[2])
    assert [(event.token, event.ended) for event in events if event.request is stop] == [
        *((token, None) for token in free[:first]),
        (None, "stop"),
    ]
    assert [(event.token, event.ended) for event in events if event.request is length] == [
        (free[0], None),
        (free[1], "length"),
    ]
    assert batch.step() == []


def test_a_cancelled_request_leaves_its_room(tiny):
    batch = ContinuousBatch(tiny, tiny.make_cache(batch_size=0, layout="paged", page_size=4, num_pages=4), max_rows=1)
    first, second = (batch.submit([5, 6, 7], max_tokens=5) for _ in range(2))
    batch.step()
    batch.cancel(first)
    assert (batch.running, batch.waiting, batch.cache.pool.used) == ([], [second], 0)
    batch.cancel(first)
    batch.cancel(second)
    assert not batch


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"max_rows": 0}, "max_rows must be >= 1, got 0"),
        ({"max_piece": 0}, "max_piece must be >= 1, got 0"),
    ],
)
def test_limits_that_cannot_be(tiny, arguments, words):
    with pytest.raises(ak.ShapeError, match=words):
        ContinuousBatch(tiny, tiny.make_cache(batch_size=0), **arguments)


def test_a_cache_that_holds_tokens_is_refused(tiny):
    cache = tiny.make_cache(batch_size=2)
    ContinuousBatch(tiny, cache)
    assert cache.batch_size == 0
    cache = tiny.make_cache()
    tiny.forward([3, 4], cache)
    with pytest.raises(ak.ShapeError, match=r"cache must be empty, its sequences hold \[2\] tokens"):
        ContinuousBatch(tiny, cache)


@pytest.mark.parametrize(
    ("prompt", "words"), [([], "at least one token"), ([5, 10**6], "got 1000000"), ([0.5], "integers, got float64")]
)
def test_prompts_that_cannot_be(tiny, prompt, words):
    batch = ContinuousBatch(tiny, tiny.make_cache(batch_size=0))
    with pytest.raises(ak.ShapeError, match=words):
        batch.submit(prompt, max_tokens=4)
    assert not batch


@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_generate_batch_is_generate_for_each(gguf_path, temperature):
    model, tokenizer = load_model(gguf_path(), backend="numpy", dtype="float64")
    options = {"max_tokens": 7, "temperature": temperature, "seed": 3}
    generation = generate_batch(model, tokenizer, PROMPTS, max_rows=2, max_piece=3, **options)
    found = dict(generation)
    assert found == {row: list(generate(model, tokenizer, prompt, **options)) for row, prompt in enumerate(PROMPTS)}
    stats = generation.stats
    assert (stats.prompt_tokens, stats.new_tokens) == (25, sum(map(len, found.values())))
    assert stats.cache_bytes == generation.cache.nbytes > 0
    assert stats.rate > 0


def test_generate_batch_refuses_before_it_begins(gguf_path):
    model, tokenizer = load_model(gguf_path(), backend="numpy")
    with pytest.raises(ak.ShapeError, match="temperature must be finite"):
        generate_batch(model, tokenizer, PROMPTS, max_tokens=4, temperature=-1)
    with pytest.raises(ak.ShapeError, match="max_tokens must be >= 1, got 0"):
        generate_batch(model, tokenizer, PROMPTS, max_tokens=0)
    assert list(generate_batch(model, tokenizer, [], max_tokens=4)) == []
