"""Traces: what ran each call (S2)."""

from __future__ import annotations

import asyncio
import threading

import numpy as np
import pytest

import attnkit as ak


@pytest.fixture
def run(plain):
    def run(rows=1, **options):
        x = np.ones((1, 1, rows, 4), np.float32)
        return ak.attention(x, x, x, **options)

    return run


def rows(calls):
    return [call.request.query_length for call in calls]


def test_each_call_is_noted_in_order(run) -> None:
    with ak.trace() as calls:
        run(1)
        run(2, backend="plain")
    assert [(call.backend, call.path, call.choice) for call in calls] == [
        ("plain", "attention", None),
        ("plain", "attention", "plain"),
    ]
    assert rows(calls) == [1, 2]


def test_nothing_is_noted_outside(run) -> None:
    run(1)
    with ak.trace() as calls:
        pass
    run(2)
    assert calls == []


def test_an_inner_trace_takes_over_until_it_ends(run) -> None:
    with ak.trace() as outer:
        run(1)
        with ak.trace() as inner:
            run(2)
        run(3)
    assert (rows(outer), rows(inner)) == ([1, 3], [2])


def test_a_trace_ends_when_an_error_passes(run) -> None:
    with pytest.raises(ZeroDivisionError), ak.trace() as calls:
        run(1 // 0)
    run(2)
    assert calls == []


def test_a_call_that_nothing_takes_is_not_noted(run) -> None:
    with ak.trace() as calls, pytest.raises(ak.DTypeError):
        ak.attention(*[np.ones((1, 4), np.int64)] * 3)
    assert calls == []


def test_traces_are_local_to_threads(run) -> None:
    meet, found = threading.Barrier(2, timeout=60), []

    def work():
        with ak.trace() as calls:
            meet.wait()
            run(5)
            meet.wait()
        found.extend(rows(calls))

    thread = threading.Thread(target=work)
    with ak.trace() as calls:
        thread.start()
        meet.wait()
        run(7)
        meet.wait()
        thread.join()
    assert (rows(calls), found) == ([7], [5])


def test_traces_are_local_to_tasks(run) -> None:
    async def work(first):
        with ak.trace() as calls:
            for step in range(3):
                await asyncio.sleep(0)
                run(first + step)
            return rows(calls)

    async def main():
        return await asyncio.gather(work(1), work(11))

    assert asyncio.run(main()) == [[1, 2, 3], [11, 12, 13]]


def test_calls_of_caches_packed_calls_and_layers_are_noted(plain, draw) -> None:
    cache = ak.make_cache(ak.KVCacheConfig(num_kv_heads=1, head_dim=4), backend=plain)
    x = draw(1, 1, 3, 4, dtype=np.float32)
    weights = [np.eye(4, dtype=np.float32)] * 4
    layer = ak.MultiHeadAttention(ak.AttentionConfig(num_heads=2, head_dim=2), *weights)
    with ak.trace() as calls:
        cache[0].append(x, x)
        cache[0].attend(x)
        ak.attention_packed(x[0, 0, :, None], x[0, 0, :, None], x[0, 0, :, None], [0, 1, 3], [0, 1, 3])
        layer(x[0, 0])
    assert rows(calls) == [3, 1, 2, 3]
    assert calls[0].choice == plain


def test_the_reasons_of_a_call_are_those_of_its_explanation(plain, kit, draw) -> None:
    ak.register(kit.spec("shy", automatic=False, owns=(("numpy.ndarray", "cpu"),)))
    x = draw(2, 4)
    with ak.trace() as calls:
        ak.attention(x, x, x)
    assert {name: [reason.code for reason in why] for name, why in calls[0].reasons.items()} == {
        "shy": ["not_automatic"]
    }
