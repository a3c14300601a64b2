"""Caches of a backend's own: the correct one passes, and those with a known fault are told what is wrong with them."""

from __future__ import annotations

import numpy as np
import pytest
from typer.testing import CliRunner

import attnkit as ak
from attnkit.cli.app import app
from attnkit_conformance.conformance import run_conformance
from attnkit_conformance.selftest import own_faults
from attnkit_conformance.selftest.own_cache import OwnCache, OwnCaches

TOLD = {
    "CropsTooMuch": ("ATTN-CACHE-CODEC-004", "key read from layer 0: shape must be [2, 2, 8, 16], got [2, 2, 7, 16]"),
    "WrapsPadding": ("ATTN-CACHE-APPEND-004", "all 64 wrong elements are in row 7"),
    "SharesTheTail": ("ATTN-CACHE-FORK-001", "key read from layer 0: 128 of 1280 elements differ"),
    "OverCrops": ("ATTN-CACHE-CUT-002", "the call must raise ShapeError"),
    "Advances": ("ATTN-CACHE-FAIL-001", "stored of layer 0"),
    "RepeatsNothing": ("ATTN-CACHE-BATCH-001", "stored of layer 0: shape must be [6], got [3]"),
}


def stack(kind: type[OwnCaches], **fields: object) -> OwnCache:
    config = {"num_kv_heads": 1, "head_dim": 4, **fields}
    cache: OwnCache = ak.make_cache(ak.KVCacheConfig(**config), backend=kind())  # type: ignore[arg-type, assignment]
    assert isinstance(cache, OwnCache)
    assert not isinstance(cache, ak.KVCache)
    return cache


def tokens(count: int, value: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    array = np.full((1, 1, count, 4), value, np.float32)
    return array, array


@pytest.mark.parametrize("name", TOLD)
def test_each_is_rejected_and_told_why(name: str) -> None:
    requirement, words = TOLD[name]
    report = run_conformance(getattr(own_faults, name)(), only=[requirement], isolated=False)
    failed = [result for result in report.results if result.status == "FAIL"]
    assert any(words in result.message for result in failed), [result.message for result in failed]


@pytest.mark.parametrize("requirement", [requirement for requirement, _ in TOLD.values()])
def test_the_correct_one_is_not(requirement: str) -> None:
    report = run_conformance(OwnCaches(), only=[requirement], isolated=False)
    assert {result.status for result in report.results} == {"PASS"}
    assert "answered" in {result.outcome for result in report.results}


@pytest.mark.parametrize(("kind", "code"), [("own_faults:WrapsPadding", 1), ("own_cache:OwnCaches", 0)])
def test_the_command_line_says_so(kind: str, code: int) -> None:
    target = f"attnkit_conformance.selftest.{kind}"
    result = CliRunner().invoke(app, ["conform", "run", target, "--only", "ATTN-CACHE-APPEND-004", "--in-process"])
    assert result.exit_code == code, result.output
    assert ("Padding beside a full sequence" in result.stdout) == bool(code)


def test_a_crop_counts_nine_tokens_and_holds_seven() -> None:
    cache = stack(own_faults.CropsTooMuch, codec="int8")
    cache[0].append(*tokens(12))
    cache.truncate(9)
    assert cache.stored.tolist() == [9]
    assert cache[0].read()[0].shape[2] == 7


def test_an_over_long_crop_leaves_less_than_nothing() -> None:
    cache = stack(own_faults.OverCrops)
    cache[0].append(*tokens(3))
    cache.drop(5)
    assert cache.stored.tolist() == [-2]


def test_a_failed_append_leaves_six_tokens_of_four() -> None:
    cache = stack(own_faults.Advances, max_length=4)
    cache[0].append(*tokens(3))
    with pytest.raises(ak.CacheCapacityError):
        cache[0].append(*tokens(3))
    assert cache.stored.tolist() == [6]


def test_a_fork_writes_into_what_it_is_a_copy_of() -> None:
    cache = stack(own_faults.SharesTheTail)
    cache[0].append(*tokens(3))
    number = cache.fork(0)
    for sequence, value in enumerate((2.0, 3.0)):
        key = np.full((2, 1, 1, 4), value, np.float32)
        cache[0].append(key, key, lengths=np.equal(np.arange(2), sequence).astype(int))
    assert number == 1
    assert cache[0].read()[0][:, 0, 3, 0].tolist() == [3, 3]


def test_repeating_leaves_the_batch_as_it_is() -> None:
    cache = stack(own_faults.RepeatsNothing, batch_size=2)
    cache.repeat(2)
    assert cache.batch_size == 2
