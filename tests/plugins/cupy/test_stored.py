"""Keys and values read where they are stored: every codec bit for bit as planes decode it, in every layout of pages."""

from __future__ import annotations

import gc
import mmap
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import attnkit as ak
from attnkit.call import describe_call, gather_options
from attnkit_cupy import raw
from attnkit_cupy.stored import MIRRORS, Mirrors, Stored, page_table

BACKEND = ak.get_backend("numpy")
HEADS, SLOTS, SIZE = 2, 96, 24
CODECS = ["native", "int8", "int8/3", "int8/8", "int4", "int4/6", "fp8", "fp8/12"]
SPANS: dict[str, tuple[tuple[tuple[int, int], ...], ...]] = {
    "one after the other": (((0, 30),), ((30, 60),)),
    "apart": (((5, 22),), ((40, 57),)),
    "backwards": (((60, 80),), ((5, 25),)),
    "of different lengths": (((0, 30),), ((30, 37),)),
    "pages": (((16, 32), (0, 8), (64, 70)), ((40, 48), (80, 96), (24, 30))),
    "a pinned start": (((0, 3), (50, 60)), ((70, 75), (20, 28))),
    "a ring": (((9, 16), (0, 9)), ((25, 32), (16, 25))),
    "any spans": (((3, 4), (9, 11), (90, 96), (0, 2)), ((50, 55),)),
    "an empty one": ((), ((8, 16), (0, 5))),
}
PAGE = 8
_LAZY = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000  # MAP_NORESERVE, which Python names from 3.12 on


def planes(seed: int, codec: str, size: int, dtype: str) -> ak.Planes:
    rng, form = np.random.default_rng(seed), ak.Codec.model_validate(codec)
    arrays = tuple(BACKEND.allocate((HEADS, SLOTS, features), name) for features, name in form.planes(size, dtype))
    made = ak.Planes(arrays, form, size, dtype)
    tokens = rng.standard_normal((1, HEADS, SLOTS, size)) * np.exp(3 * rng.standard_normal((1, HEADS, SLOTS, 1)))
    tokens[0, :, 7, :] = 1.25  # a block of equal features
    tokens[0, :, 11, 0] = 3e4  # its scale leaves subnormal levels of fp8 to the others
    made.write(BACKEND, np.arange(SLOTS)[None], tokens.astype(np.float32))
    return made


def pages_of(codec: str, dtype: str, size: int = SIZE, value_size: int = SIZE) -> ak.Pages:
    return ak.Pages(planes(0, codec, size, dtype), planes(1, codec, value_size, dtype), PAGE)


def attend(runtime: Any, query: Any, pages: ak.Pages, table: ak.SlotTable, **options: Any) -> tuple[Any, Any]:
    """Attend over pages in place, and over decoded copies of what they hold."""
    key, value = (half.read(BACKEND, table.slots) for half in (pages.key, pages.value))
    lengths = {} if (table.lengths == table.longest).all() else {"kv_lengths": table.lengths}
    request, operands = describe_call(query, key, value, gather_options(**lengths, **options), True, cached=True)
    in_place = raw.attend(runtime, request, query, Stored.of_pages(pages, table, runtime), operands, "simt")
    copied = raw.attend(runtime, request, query, Stored.of_arrays(key, value, runtime), operands, "simt")
    return in_place, copied


def queries(dtype: Any, rows: int = 3) -> Any:
    return np.random.default_rng(2).standard_normal((2, 2 * HEADS, rows, SIZE)).astype(dtype)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_codecs_decode_to_the_same_bits(calls: Any, runtime: Any, codec: str, dtype: str) -> None:
    pages = pages_of(codec, dtype)
    for name in ("pages", "of different lengths"):
        in_place, copied = attend(runtime, queries(calls.DTYPES[dtype]), pages, ak.SlotTable(SPANS[name]))
        calls.assert_same_bits(in_place, copied)


@pytest.mark.parametrize("name", SPANS)
@pytest.mark.parametrize("codec", ["native", "int4"])
def test_every_layout_is_read_where_it_lies(calls: Any, runtime: Any, name: str, codec: str) -> None:
    table = ak.SlotTable(SPANS[name])
    for options in ({}, {"mask": ak.Mask.causal() & ak.Mask.window(9)}):
        in_place, copied = attend(runtime, queries(np.float32), pages_of(codec, "float32"), table, **options)
        calls.assert_same_bits(in_place, copied)


@pytest.mark.parametrize("size", [1, 7, 24, 33])
@pytest.mark.parametrize("codec", ["native", "int8", "int4", "fp8"])
def test_odd_sizes(calls: Any, runtime: Any, size: int, codec: str) -> None:
    in_place, copied = attend(
        runtime, queries(np.float32), pages_of(codec, "float32", value_size=size), ak.SlotTable(SPANS["pages"])
    )
    calls.assert_same_bits(in_place, copied)


@pytest.mark.parametrize("codec", CODECS)
def test_every_decoded_bit_is_seen(runtime: Any, codec: str) -> None:
    """One visible key: the output is its value, bit for bit."""
    pages, table = pages_of(codec, "float32"), ak.SlotTable((SPANS["pages"][0],))
    value = pages.value.read(BACKEND, table.slots)
    rows = table.longest
    query = np.zeros((1, HEADS, rows, SIZE), np.float32)
    request, operands = describe_call(query, value, value, gather_options(mask=ak.Mask.window(1)), False, cached=True)
    found = raw.attend(runtime, request, query, Stored.of_pages(pages, table, runtime), operands, "simt")
    assert found.output.tobytes() == value.tobytes()


def test_a_poisoned_block_decodes_to_nan(runtime: Any) -> None:
    pages, table = pages_of("int8/8", "float32"), ak.SlotTable(((((0, 10)),),))
    bad = np.ones((1, HEADS, 1, SIZE), np.float32)
    bad[..., 3] = np.inf
    pages.value.write(BACKEND, np.array([[4]]), bad)
    query = np.ones((1, HEADS, 1, SIZE), np.float32)
    like = np.ones((1, HEADS, 10, SIZE), np.float32)
    request, operands = describe_call(query, like, like, gather_options(), False, cached=True)
    found = raw.attend(runtime, request, query, Stored.of_pages(pages, table, runtime), operands, "simt")
    np.testing.assert_array_equal(np.isnan(found.output[0, 0, 0]), np.arange(SIZE) < 8)


def test_a_cache_of_another_element_type(calls: Any, runtime: Any) -> None:
    """The output has the query's type, and keys are rounded to the cache's alone."""
    in_place, copied = attend(runtime, queries(np.float16), pages_of("native", "float32"), ak.SlotTable(SPANS["pages"]))
    calls.assert_same_bits(in_place, copied)
    assert in_place.output.dtype == np.float16


def far_apart(plane: Any) -> Any:
    """Lay slots of a plane so far apart that offsets pass 2^31 elements; memory is committed as it is used."""
    (heads, slots, features), step = plane.shape, 2**25
    data = mmap.mmap(-1, heads * slots * step * plane.itemsize, flags=_LAZY)
    view = np.frombuffer(data, plane.dtype).reshape(heads, slots, step)[:, :, :features]
    view[...] = plane
    return view


@pytest.mark.parametrize("codec", ["native", "int8", "int4", "fp8"])
def test_slots_beyond_31_bits(calls: Any, runtime: Any, codec: str) -> None:
    near, table = pages_of(codec, "float16"), ak.SlotTable(SPANS["pages"])
    far = [replace(half, arrays=tuple(map(far_apart, half.arrays))) for half in (near.key, near.value)]
    plain, _ = attend(runtime, queries(np.float16), near, table)
    found, _ = attend(runtime, queries(np.float16), ak.Pages(far[0], far[1], PAGE), table)
    calls.assert_same_bits(plain, found)


@pytest.mark.parametrize("name", SPANS)
def test_page_tables_lead_to_the_slots(runtime: Any, name: str) -> None:
    table = ak.SlotTable(SPANS[name])
    found = page_table(table, PAGE, runtime)
    for sequence, length in enumerate(table.lengths.tolist()):
        places = np.arange(length) + found.start[sequence]
        slots = found.first_slots[sequence, places // found.page_size] + places % found.page_size
        np.testing.assert_array_equal(slots, table.slots[sequence, :length])


def test_pages_are_as_large_as_the_cache_has_them(runtime: Any) -> None:
    assert page_table(ak.SlotTable(SPANS["pages"]), PAGE, runtime).page_size == PAGE
    assert page_table(ak.SlotTable(SPANS["a ring"]), PAGE, runtime).page_size == PAGE
    assert page_table(ak.SlotTable(SPANS["any spans"]), PAGE, runtime).page_size == 1


def test_no_table_where_strides_lead_there(runtime: Any) -> None:
    for name in ("one after the other", "apart"):
        assert Stored.of_pages(pages_of("int8", "float32"), ak.SlotTable(SPANS[name]), runtime).pages is None


def test_layers_share_one_table(runtime: Any) -> None:
    mirrors, table = Mirrors(), ak.SlotTable(SPANS["pages"])
    assert mirrors.of(table, PAGE, runtime) is mirrors.of(table, PAGE, runtime)
    assert mirrors.of(ak.SlotTable(SPANS["pages"]), PAGE, runtime) is not mirrors.of(table, PAGE, runtime)


def test_forgotten_tables_are_let_go(runtime: Any) -> None:
    before, table = len(MIRRORS), ak.SlotTable(SPANS["pages"])
    MIRRORS.of(table, PAGE, runtime)
    assert len(MIRRORS) == before + 1
    del table
    gc.collect()
    assert len(MIRRORS) == before


def test_unaligned_storage_is_told(runtime: Any) -> None:
    key = np.zeros((1, 2, 10, 64), np.float16)
    assert Stored.of_arrays(key, key, runtime).kind.aligned
    assert not Stored.of_arrays(key[..., 1:33], key[..., :32], runtime).kind.aligned
    assert not Stored.of_arrays(*(np.zeros((1, 2, 10, 60), np.float16),) * 2, runtime).kind.aligned
