"""Caches by way of the harness: what they give back to get it again is one thing, in this process and in another."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import attnkit as ak
from attnkit_conformance.harness import wire
from attnkit_conformance.harness.cache_calls import Kept, SavedFile
from attnkit_conformance.harness.local import Harness
from attnkit_conformance.harness.remote import RemoteHarness
from attnkit_conformance.harness.targets import open_target
from attnkit_conformance.harness.worker import Worker
from attnkit_conformance.selftest.plain import Plain

PAGED = {"num_kv_heads": 1, "head_dim": 4, "layout": "paged", "page_size": 2, "key_codec": "int8"}
TOKENS = np.arange(24, dtype=np.float32).reshape(1, 1, 6, 4)


@pytest.fixture(params=["here", "there"])
def harness(request: pytest.FixtureRequest) -> Iterator[Harness]:
    made = open_target("numpy") if request.param == "here" else RemoteHarness("numpy")
    yield made
    made.close()


def filled(harness: Harness, **fields: Any) -> Any:
    cache = harness.make_cache({**PAGED, **fields})
    tokens = harness.array(TOKENS)
    harness.cache_call(cache, 0, "append", tokens, tokens)
    return cache


def values(harness: Harness, cache: Any) -> np.ndarray[Any, Any]:
    return harness.numpy(harness.cache_call(cache, 0, "read")[1])


def test_numbers_come_as_numbers(harness: Harness) -> None:
    cache = filled(harness)
    assert harness.cache_call(cache, None, "fork", 0) == 1
    assert harness.cache_call(cache, None, "remember", 0, [3, 1, 4, 1, 5, 9]) == 6
    assert harness.cache_call(cache, None, "match_prefix", [3, 1, 4, 2]) == 2
    assert harness.cache_call(cache, None, "admit", [3, 1, 4, 1, 5]) == 2
    assert harness.cache_count(cache, 0, "stored").tolist() == [6, 6, 4]
    assert harness.cache_count(cache, None, "batch_size").item() == 3
    harness.cache_checked(cache)


def test_a_snapshot_goes_back_as_it_came(harness: Harness) -> None:
    cache = filled(harness)
    before, snapshot = values(harness, cache), harness.cache_kept(cache, "snapshot")
    for _ in range(2):
        harness.cache_call(cache, None, "truncate", 1)
        tokens = harness.array(-TOKENS)
        harness.cache_call(cache, 0, "append", tokens, tokens)
        harness.cache_call(cache, None, "restore", snapshot)
        np.testing.assert_array_equal(values(harness, cache), before)


def test_a_sequence_goes_away_and_comes_back(harness: Harness) -> None:
    cache = filled(harness)
    before = values(harness, cache)
    for leave in (lambda: harness.cache_kept(cache, "offload", 0), lambda: harness.offload_to_file(cache, 0)):
        away = leave()
        assert harness.cache_count(cache, None, "batch_size").item() == 0
        assert harness.cache_call(cache, None, "resume", away) == 0
        np.testing.assert_array_equal(values(harness, cache), before)


def test_files_come_back_as_caches(harness: Harness) -> None:
    cache = filled(harness)
    file = harness.save_cache(cache)
    np.testing.assert_array_equal(values(harness, harness.load_cache(file)), values(harness, cache))
    other = harness.load_cache(file, {"num_kv_heads": 1, "head_dim": 4})
    np.testing.assert_array_equal(values(harness, other), values(harness, cache))
    for place, bits in ((0.0, 1), (0.5, 0x80), (1.0, 0)):
        with pytest.raises(ak.CacheFileError):
            harness.load_cache(harness.damaged(file, place, bits))


def test_caches_of_one_pool(harness: Harness) -> None:
    config = {**PAGED, "num_pages": 4}
    pool = harness.make_pool(config)
    first, second = (harness.pooled_cache(config, pool) for _ in range(2))
    tokens = harness.array(TOKENS)
    harness.cache_call(first, 0, "append", tokens, tokens)
    assert harness.cache_count(pool, None, "free").item() == 1
    with pytest.raises(ak.CacheCapacityError):
        harness.cache_call(second, 0, "append", tokens, tokens)
    harness.cache_call(pool, None, "check")


def test_what_is_kept_crosses_whole() -> None:
    backend = Plain()
    worker = Worker(Harness("plain", backend, backend))

    def ask(method: str, *arguments: Any) -> Any:
        request = {"call": 1, "method": method, "arguments": list(arguments), "options": {}, "released": ()}
        return worker.answer(request)["result"]

    cache = ask("make_cache", PAGED)
    snapshot = ask("cache_kept", cache, "snapshot")
    assert type(snapshot) is wire.Reference
    assert type(worker.things[snapshot.number]) is Kept


def test_a_file_goes_with_whoever_holds_it() -> None:
    file = SavedFile()
    folder = file.path.parent
    file.path.write_bytes(b"1")
    assert folder.is_dir()
    del file
    gc.collect()
    assert not folder.exists()


def test_a_cache_without_a_check_of_its_own_is_not_asked() -> None:
    open_target("numpy").cache_checked(object())
