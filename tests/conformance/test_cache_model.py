"""A history keeps lists beside a cache, and says where the two part."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import attnkit as ak
from attnkit.cache import ContiguousCache, PagedCache, RingCache
from attnkit_conformance.cache_case import CacheCase
from attnkit_conformance.cache_layouts import Layout, Paged, Ring
from attnkit_conformance.cache_model import History
from attnkit_conformance.cache_rows import coded
from attnkit_conformance.checks.cache_grid import cache_case
from attnkit_conformance.selftest.faulty_caches import cache_fault
from attnkit_conformance.selftest.plain import Plain, unregistered

INT8 = cache_case("model", codecs=("int8", "int8"))


def history(case: CacheCase, fault: type[Any] | None = None) -> History:
    subject = unregistered(Plain()) if fault is None else cache_fault("faulty", "", fault).subject()
    return History(subject, case)


def layouts() -> list[Layout]:
    return [Layout(), Ring(4, 6, pinned=1), Paged(4)]


@pytest.mark.parametrize("layout", layouts(), ids=str)
@pytest.mark.parametrize("codecs", [("native", "native"), ("int8", "fp8")], ids="-".join)
def test_it_follows_every_operation(layout: Layout, codecs: tuple[str, str]) -> None:
    model = history(cache_case("model", layout=layout, codecs=codecs, ragged=True))
    model.extend(6)
    model.fork(1)
    model.append(model.tokens(4), np.array([0, 3, 1]))
    model.attend(4)
    away = model.offload(0)
    model.repeat(2)
    model.select([3, 0, 1])
    model.admit()
    model.resume(away)
    model.check()
    model.attend(4)
    model = model.reopened()
    model.reorder(np.array([4, 3, 2, 1, 0]))
    model.release(2)
    model.check()
    model.attend()
    assert model.batch == 4
    assert model.positions().tolist() == [6, 0, 9, 7]


def test_moments_bring_back_sequences_and_what_was_left_to_the_next_query() -> None:
    model = history(cache_case("model", layout=Paged(4, 9), ragged=True))
    model.append(model.tokens(4), np.array([1, 4]))
    moment = model.snapshot()
    model.fork(1)
    model.extend(2)
    model.restore(moment)
    model.check()
    model.attend(4)
    assert model.positions().tolist() == [1, 4]


def test_what_was_read_must_be_read_again() -> None:
    class EncodesAgain(ContiguousCache):
        def reorder(self, indices: Any) -> None:
            super().reorder(indices)
            (plane, _), *_ = (pages.key.arrays for pages in self.pages)
            plane[:, 0, 0] += 1

    model = history(INT8, EncodesAgain)
    model.extend(3)
    model.check()
    model.reorder(np.array([0, 1]))
    with pytest.raises(AssertionError, match=r"key read from layer 0: .* every bit must be the same"):
        model.check()


def test_what_was_never_read_may_lie_anywhere_within_the_bound() -> None:
    model = history(INT8)
    key, value = model.tokens(1)
    model.append((key, value))
    model.check()
    near, bound = coded(key, model.case.codec(0), "float32")
    read = model.lists.padded(0, 0, read=True)
    assert (read != key).any()
    assert (np.abs(read - near) <= bound).all()


@pytest.mark.parametrize("poison", [np.nan, np.inf])
def test_a_block_with_poison_is_nan_and_no_other(poison: float) -> None:
    tokens = np.arange(8, dtype=np.float32).reshape(1, 8)
    tokens[0, 1] = poison
    near, bound = coded(tokens, ak.Codec.model_validate("int8/4"), "float32")
    assert np.isnan(near[0, :4]).all()
    assert np.isfinite(near[0, 4:]).all()
    assert np.isfinite(bound[0, 4:]).all()
    plain, exact = coded(tokens, ak.Codec(), "float16")
    np.testing.assert_array_equal(plain, tokens)
    assert not exact.any()


def test_a_ring_that_takes_what_it_must_refuse_is_told() -> None:
    class GoesBack(RingCache):
        def gone_within(self, name: str, kept: Any) -> Any:
            del name
            return np.minimum(self.counters.gone, kept)

    model = history(cache_case("model", layout=Ring(4, 4)), GoesBack)
    model.extend(9)
    with pytest.raises(AssertionError, match="must raise ShapeError, it gave a result"):
        model.truncate(3)


def test_what_is_refused_is_not_done_to_the_lists() -> None:
    model = history(cache_case("model", layout=Ring(4, 4)))
    model.extend(9)
    assert not model.truncate(3)
    assert not model.drop(5)
    assert model.positions().tolist() == [9, 9]
    assert model.drop(1)
    model.append(model.tokens(5))
    assert model.positions().tolist() == [8, 8]


def test_a_leak_of_pages_is_told() -> None:
    class Keeps(PagedCache):
        def trim(self) -> None:
            pass

    model = history(cache_case("model", layout=Paged(4, 8), ragged=True), Keeps)
    model.extend(16)
    model.truncate(0)
    with pytest.raises(ak.CacheCapacityError):
        model.append(model.tokens(20), np.array([20, 0]))


def test_bookkeeping_that_contradicts_itself_is_a_finding() -> None:
    class Miscounts(PagedCache):
        def check_rows(self) -> None:
            raise RuntimeError("page 3 counts 2 holders and has 1")

    model = history(cache_case("model", layout=Paged(4)), Miscounts)
    with pytest.raises(AssertionError, match="the cache's own bookkeeping: page 3 counts 2 holders"):
        model.check()


def test_shared_text_must_have_been_told() -> None:
    class SharesAnything(PagedCache):
        def admit(self, tokens: Any = None) -> int:
            return self.fork(0) if tokens else super().admit()

    model = history(cache_case("model", layout=Paged(4), batch=1, ragged=True), SharesAnything)
    model.extend(4)
    with pytest.raises(AssertionError, match=r"has 4 tokens, though none was known to begin with \[1, 2, 3, 4, 5\]"):
        model.admit([1, 2, 3, 4, 5])


def test_a_whole_prompt_must_not_be_shared() -> None:
    class SharesAll(PagedCache):
        def admit(self, tokens: Any = None) -> int:
            return super().admit(None if tokens is None else [*tokens, 0])

    model = history(cache_case("model", layout=Paged(4), batch=1, ragged=True), SharesAll)
    model.extend(4)
    model.remember(0, [1, 2, 3, 4])
    with pytest.raises(AssertionError, match="4 of 4 tokens are known, which leaves none to compute with"):
        model.admit([1, 2, 3, 4])


def test_tokens_have_one_name_where_they_are_the_same() -> None:
    model = history(cache_case("model", layers=2))
    model.extend(3)
    model.fork(0)
    model.extend(1)
    first, other, copy = (model.lists.names(sequence) for sequence in range(3))
    assert first[:3] == copy[:3]
    assert len({*first, *other, *copy}) == 9


def test_no_sequence_at_all_can_be_looked_at() -> None:
    model = history(cache_case("model", codecs=("int4", "native")))
    model.extend(2)
    model.select([])
    model.check()
    model.attend()
    model.extend(3)
    model.check()
    assert model.batch == 0
