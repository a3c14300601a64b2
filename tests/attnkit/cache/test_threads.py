"""Threads: on one cache, and on caches of one pool."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import numpy as np
import pytest

import attnkit as ak

CAUSAL = ak.Mask.causal()


def run_all(*works):
    """Run works at the same time; the first exception is raised."""
    barrier = Barrier(len(works))

    def started(work):
        barrier.wait()
        return work()

    with ThreadPoolExecutor(len(works)) as pool:
        return [future.result() for future in [pool.submit(started, work) for work in works]]


@pytest.mark.parametrize("fields", [{"num_pages": 64}, {}], ids=["fixed", "growing"])
def test_caches_of_one_pool(shelf, backend, fields) -> None:
    config = shelf.config(layout="paged", page_size=2, batch_size=0, num_layers=2, **fields)
    pool = ak.PagePool(config, backend=backend)

    def life(number):
        """Append, fork, truncate and release, and know every token by its number."""

        def work():
            cache, rng, lists = ak.make_cache(config, pool=pool), np.random.default_rng(number), []
            for step in range(120):
                if not lists or (rng.random() < 0.2 and len(lists) < 3):
                    cache.admit()
                    lists.append([])
                elif rng.random() < 0.2 and len(lists) < 3:
                    lists.append(list(lists[0]))
                    cache.fork(0)
                elif rng.random() < 0.15:
                    cache.release(0)
                    del lists[0]
                    continue
                if max(map(len, lists)) > 8:
                    cache.truncate(3 if min(map(len, lists)) >= 3 else 0)
                    lists = [held[: int(cache.next_position[0])] for held in lists]
                values = [number * 1000 + step * 4 + row for row in range(len(lists))]
                token = np.array(values, float)[:, None, None, None]
                for layer in cache:
                    layer.append(
                        np.broadcast_to(token, (len(values), 2, 1, 4)), np.broadcast_to(token, (len(values), 2, 1, 3))
                    )
                for held, value in zip(lists, values, strict=True):
                    held.append(value)
                for layer in cache:
                    key, value = layer.read()
                    for row, held in enumerate(lists):
                        assert (key[row, :, : len(held), 0] == held).all()
                        assert (value[row, :, : len(held), 2] == held).all()
            return cache

        return work

    caches = run_all(*(life(number) for number in range(1, 5)))
    pool.check()
    for cache in caches:
        cache.check_invariants()
        while cache.batch_size:
            cache.release(0)
    assert pool.used == 0


@pytest.mark.parametrize("layout", ["contiguous", "ring", "paged"])
def test_one_cache(shelf, backend, layout) -> None:
    """Writers and readers in turns of their own: no call fails, and no reader sees a token in the making."""
    fields = {"layout": layout, **({"window": 200, "max_append": 2} if layout == "ring" else {})}
    cache = ak.make_cache(shelf.config(batch_size=1, num_layers=1, **fields), backend=backend)
    layer = cache[0]

    def write():
        for _ in range(60):
            layer.append(np.full((1, 2, 2, 4), 1.0), np.full((1, 2, 2, 3), 7.0))
            cache.drop(1)

    def read():
        for _ in range(60):
            key, value = layer.read()
            assert (key == 1).all()
            assert (value == 7).all()
            output = layer.attend(np.ones((1, 4, 1, 4)), mask=CAUSAL)
            assert np.isin(output.round(9), [0, 7]).all()

    def fork():
        for _ in range(30):
            snapshot = cache.snapshot()
            assert snapshot is not None

    run_all(write, write, read, read, fork)
    assert cache.stored.tolist() == [120]
    cache.check_invariants()


def test_pages_of_a_cache_that_is_gone_return(shelf, backend) -> None:
    config = shelf.config(layout="paged", page_size=2, num_pages=12)
    pool = ak.PagePool(config, backend=backend)
    keeper = ak.make_cache(config, pool=pool)

    def fill():
        cache = ak.make_cache(config, pool=pool)
        for layer in cache:
            layer.append(np.ones((3, 2, 3, 4)), np.ones((3, 2, 3, 3)))
        snapshot = cache.snapshot()
        assert pool.used == 6
        del cache
        assert pool.used == 6  # the snapshot holds them
        del snapshot

    fill()
    for layer in keeper:
        layer.append(np.ones((3, 2, 8, 4)), np.ones((3, 2, 8, 3)))
    pool.check()
    assert pool.free == 0
