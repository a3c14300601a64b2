"""make_cache: which cache comes out, and what a backend's declaration refuses."""

from __future__ import annotations

import pytest

import attnkit as ak
from attnkit.cache import ContiguousCache, PagedCache, RingCache

LAYOUTS = {"contiguous": ({}, ContiguousCache), "ring": ({"window": 4}, RingCache), "paged": ({}, PagedCache)}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_layout_says_the_class(shelf, backend, layout) -> None:
    fields, kind = LAYOUTS[layout]
    cache = ak.make_cache(shelf.config(layout=layout, **fields), backend=backend)
    assert type(cache) is kind
    cache.check_invariants()


@pytest.mark.parametrize(
    ("fields", "code", "name"),
    [
        ({"layout": "paged"}, "layouts", "layout"),
        ({"key_codec": "int4"}, "codecs", "key_codec"),
        ({"value_codec": "fp8"}, "codecs", "value_codec"),
        ({"dtype": "float16"}, "dtypes", "dtype"),
    ],
)
def test_what_is_not_declared_is_refused(kit, nobody, shelf, fields, code, name) -> None:
    layouts, codecs = frozenset({"contiguous", "ring"}), frozenset({"native", "int8"})
    declared = ak.Capabilities(dtypes=frozenset({"float64"}), layouts=layouts, codecs=codecs)
    backend = kit.backend("modest", capabilities=lambda _: declared)
    with pytest.raises(ak.UnsupportedError) as caught:
        ak.make_cache(shelf.config(**fields), backend=backend)
    (reason,) = caught.value.reasons["modest"]
    assert (reason.code, reason.field, reason.actual) == (code, name, next(iter(fields.values())))
    ak.make_cache(shelf.config(codec="int8"), backend=backend)
    with pytest.raises(ak.UnsupportedError):
        ak.PagePool(shelf.config(layout="paged"), backend=backend)


def test_all_reasons_are_told_at_once(kit, nobody, shelf) -> None:
    declared = ak.Capabilities(layouts=frozenset({"ring"}), codecs=frozenset({"int4"}))
    backend = kit.backend("strange", capabilities=lambda _: declared)
    with pytest.raises(ak.UnsupportedError) as caught:
        ak.make_cache(shelf.config(), backend=backend)
    assert [reason.field for reason in caught.value.reasons["strange"]] == [
        "dtype",
        "layout",
        "key_codec",
        "value_codec",
    ]


def test_a_backend_may_have_a_cache_of_its_own(kit, nobody, shelf) -> None:
    made = []

    def make_cache(self, config, choice):
        made.append((config, choice))
        return None if config.layout == "ring" else "its own"

    backend = kit.backend("owner", make_cache=make_cache)
    config = shelf.config(dtype="float32")
    assert ak.make_cache(config, backend=backend) == "its own"
    assert made == [(config, backend)]
    assert type(ak.make_cache(shelf.config(dtype="float32", layout="ring", window=2), backend=backend)) is RingCache


def test_a_pool_must_fit(shelf, backend) -> None:
    pool = ak.PagePool(shelf.config(layout="paged", num_pages=9), backend=backend)
    cache = ak.make_cache(shelf.config(layout="paged", batch_size=1), pool=pool)
    assert cache.pool is pool
    assert cache.backend is pool.backend
    for wrong, words in [
        ({"page_size": 3}, "page_size 16 and not 3"),
        ({"num_layers": 3}, "num_layers 2 and not 3"),
        ({"codec": "int8"}, "key_codec native and not int8, value_codec native and not int8"),
    ]:
        with pytest.raises(ak.ShapeError, match=words):
            ak.make_cache(shelf.config(layout="paged", **wrong), pool=pool)
    with pytest.raises(ak.ShapeError, match="pool goes with layout 'paged', got 'contiguous'"):
        ak.make_cache(shelf.config(), pool=pool)
    with pytest.raises(ak.ShapeError, match="config must be of layout 'paged', got 'contiguous'"):
        ak.PagePool(shelf.config(), backend=backend)
    with pytest.raises(ak.DTypeError, match="config must be a KVCacheConfig, got dict"):
        ak.PagePool({}, backend=backend)


def test_a_pool_of_another_backend_is_refused(kit, nobody, shelf) -> None:
    pool = ak.PagePool(shelf.config(layout="paged"), backend=kit.Plain())
    with pytest.raises(ak.ShapeError, match="pool must be of the cache's backend"):
        ak.make_cache(shelf.config(layout="paged"), backend=kit.Plain(), pool=pool)
