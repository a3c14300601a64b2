"""Saved caches that are refused: damaged, cut, forged with a right hash, or asking for absurd room (C11)."""

from __future__ import annotations

import hashlib
import json
import random
import sys
import tracemalloc
from itertools import product

import numpy as np
import pytest

import attnkit as ak

START = 8 + len('{"__metadata__":{"sha256":"')


def make(**changes):
    sizes = {"num_layers": 1, "batch_size": 2, "num_kv_heads": 1, "head_dim": 2, "value_dim": 2, "dtype": "float16"}
    return ak.make_cache(ak.KVCacheConfig(**{**sizes, **changes}), backend="numpy")


def append(cache, count, lengths=None):
    draw = np.random.default_rng(3)
    for layer in cache:
        shape = (cache.batch_size, cache.config.num_kv_heads, count)
        sizes = cache.config.head_dim, cache.config.value_dim
        layer.append(*(draw.standard_normal((*shape, size)) for size in sizes), lengths=lengths)
    return cache


def reads(cache):
    """Give all that a cache holds and counts, as bytes and lists."""
    held = [array.tobytes() for layer in cache for array in layer.read()]
    return held, cache.counters.next.tolist(), cache.counters.gone.tolist()


def saved(cache, path):
    cache.save(path)
    return path.read_bytes()


# Files that are refused


def small(path, **changes):
    """Write a small file, and give its bytes and what it holds."""
    cache = append(make(layout="paged", page_size=2, **changes), 3, lengths=[3, 1])
    return saved(cache, path), reads(cache)


def refuses(path, data):
    """Tell why a file with that content is refused."""
    path.write_bytes(data)
    with pytest.raises(ak.CacheFileError) as info:
        ak.load_cache(path)
    assert str(info.value).startswith(f"{path}: ")
    assert isinstance(info.value, ValueError)
    return str(info.value)


def test_every_byte_counts(tmp_path) -> None:
    """Every bit of the length, the hash and the first and last bytes, and one of each byte between."""
    data, _ = small(tmp_path / "good")
    draw = random.Random(17)
    for place in range(len(data)):
        near = place < START + 80 or place >= len(data) - 32
        for bit in range(8) if near else [draw.randrange(8)]:
            torn = bytearray(data)
            torn[place] ^= 1 << bit
            refuses(tmp_path / "torn", bytes(torn))


def test_every_cut_and_every_addition_is_refused(tmp_path) -> None:
    data, _ = small(tmp_path / "good")
    for length in range(len(data)):
        refuses(tmp_path / "torn", data[:length])
    for more in (b"\0", b" ", data[-1:], bytes(1000), data):
        refuses(tmp_path / "torn", data + more)
        refuses(tmp_path / "torn", more + data)


def test_random_damage_is_refused(tmp_path) -> None:
    data, _ = small(tmp_path / "good", codec="int8")
    draw = random.Random(11)
    for _ in range(500):
        torn = bytearray(data)
        first, second = sorted(draw.choices(range(len(data) + 1), k=2))
        kind = draw.choice(["zeros", "swap", "remove", "repeat", "noise"])
        if kind == "zeros":
            torn[first:second] = bytes(second - first)
        elif kind == "swap":
            torn = torn[second:] + torn[first:second] + torn[:first]
        elif kind == "remove":
            del torn[first:second]
        elif kind == "repeat":
            torn[first:first] = torn[first:second]
        else:
            torn[first:second] = draw.randbytes(second - first)
        if torn != data:
            refuses(tmp_path / "torn", bytes(torn))


def test_other_files_are_refused(tmp_path) -> None:
    safetensors_like = json.dumps({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode().ljust(200)
    for data in (b"", b"PK\3\4", b"\x80\4\x95", b"{}" * 100, bytes(5000), b"\xff" * 5000):
        assert "no cache file" in refuses(tmp_path / "other", data)
    other = len(safetensors_like).to_bytes(8, "little") + safetensors_like + bytes(4)
    assert "does not begin with a sha256" in refuses(tmp_path / "other", other)


def test_a_missing_file_is_missing(tmp_path) -> None:
    with pytest.raises(FileNotFoundError):
        ak.load_cache(tmp_path / "nowhere")


def test_what_is_wrong_is_told(tmp_path) -> None:
    data, _ = small(tmp_path / "good")
    assert "its sha256 is not that of its content: it was altered, or cut short" in refuses(tmp_path / "x", data[:-1])
    assert "no cache file, or cut short: it has 7 bytes" in refuses(tmp_path / "x", data[:7])


# Forged files whose hash is right


def parts(data):
    """Split a file into its tensors, its outline and its data."""
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    return header, json.loads(header.pop("__metadata__")["attnkit_cache"]), data[8 + length :]


def forged(tensors, outline, data, section="attnkit_cache"):
    """Put a file together; its hash is right."""
    text = outline if isinstance(outline, str) else json.dumps(outline)
    header = json.dumps({"__metadata__": {"sha256": "0" * 64, section: text}, **tensors}, separators=(",", ":"))
    return hashed(header.encode(), data)


def hashed(header, data):
    whole = len(header).to_bytes(8, "little") + header + data
    return whole[:START] + hashlib.sha256(whole).hexdigest().encode() + whole[START + 64 :]


def put(outline, where, value):
    *path, last = where.split(".")
    for step in path:
        outline = outline[int(step) if step.isdigit() else step]
    outline[int(last) if last.isdigit() else last] = value


def test_what_is_put_together_again_is_good(tmp_path) -> None:
    data, held = small(tmp_path / "good")
    (tmp_path / "again").write_bytes(forged(*parts(data)))
    assert reads(ak.load_cache(tmp_path / "again")) == held


@pytest.mark.parametrize(
    ("where", "value"),
    [
        *product(
            ["num_layers", "num_kv_heads", "head_dim", "value_dim", "page_size"],
            [2**60, 2**31, 10**30, 0, -1, "x", 1.5, [1], {}],
        ),
        *product(["batch_size", "max_length", "num_pages"], [2**60, 2**40, 10**30, -1, "x", 1.5]),
        *product(["max_length"], [1, 2, 2**31]),
        *product(["dtype"], ["float8", "int8", "object", "O", "float32", "bfloat16", None, 1]),
        *product(["key_codec", "value_codec"], ["int8", "pickle", {"kind": "int4", "block": 3}, {"kind": "int4"}, []]),
        *product(["layout"], ["ring", "contiguous", "none", None]),
        *product(["window", "max_append", "pinned"], [1, 2**60]),
        ("more", 1),
    ],
)
def test_a_forged_configuration_is_refused(tmp_path, where, value) -> None:
    tensors, outline, data = parts(small(tmp_path / "good")[0])
    put(outline, f"config.{where}", value)
    refuses_within(tmp_path / "forged", forged(tensors, outline, data))


def refuses_within(path, data, most=2 << 20):
    """Tell why a file is refused, without memory being allocated for what it claims."""
    tracemalloc.start()
    try:
        told = refuses(path, data)
        assert tracemalloc.get_traced_memory()[1] < most + 30 * len(data)
    finally:
        tracemalloc.stop()
    return told


@pytest.mark.parametrize(
    ("where", "value"),
    [
        *product(["next.0.0", "gone.0.0", "rows.0.0", "rows.0.1"], [2**60, 2**53, -1, 1.5, "x", None, [0], 10**30]),
        *product(["next", "gone", "rows", "ragged"], [[], [[]], [[0]], [[0, 0], [0, 0]], None, 0, "x", {}, [[0] * 3]]),
        ("next.0.0", 4),
        ("next.0.0", 2),
        ("next.0.0", 5),
        ("next.0.1", 2),
        ("next.0.1", 0),
        ("gone.0.0", 1),
        ("rows.0.1", 2),
        ("rows.0.1", 0),
        ("rows.1.0", 0),
        ("rows.1.0", 1),
        ("rows", [[0, 1, 2], [3]]),
        ("rows", [[0, 1], []]),
        ("rows", [[1, 0], [2]]),
        *product(["ragged.0.tokens"], [2, -1, 2**60, None]),
        *product(["ragged.0.taken"], [[4, 1], [3], [3, 1, 1], [-1, 1], None]),
        ("version", 2),
        ("version", 0),
        ("version", "1"),
        ("version", None),
        ("version", 10**30),
        ("more", 1),
    ],
)
def test_forged_counters_and_tables_are_refused(tmp_path, where, value) -> None:
    tensors, outline, data = parts(small(tmp_path / "good")[0])
    put(outline, where, value)
    refuses_within(tmp_path / "forged", forged(tensors, outline, data))


@pytest.mark.parametrize(
    ("where", "value"),
    [
        *product(["key.tokens.shape.0", "key.tokens.shape.1"], [2**60, 2, 0, -1, "x", None, 10**30]),
        *product(["key.tokens.shape"], [[], [4], [1, 4, 2, 1], [1, 2, 4], None]),
        *product(["key.tokens.dtype"], ["BF16", "I16", "F32", "U8", "object", None]),
        *product(
            ["value.tokens.data_offsets"], [[0, 16], [8, 24], [16, 31], [17, 33], [2**60, 2**60 + 16], [-16, 0], []]
        ),
        ("key.tokens", None),
        ("key.tokens.more", 1),
        ("other.tokens", {"dtype": "U8", "shape": [0], "data_offsets": [32, 32]}),
    ],
)
def test_forged_tensors_are_refused(tmp_path, where, value) -> None:
    tensors, outline, data = parts(small(tmp_path / "good")[0])
    name, _, rest = where.partition(".tokens")
    if rest:
        put(tensors[f"layers.0.{name}.tokens"], rest[1:], value)
    else:
        tensors[f"layers.0.{name}.tokens"] = value
    told = refuses_within(tmp_path / "forged", forged(tensors, outline, data))
    assert f"tensor layers.0.{name}.tokens must be " in told


def test_tensors_that_are_missing_or_too_many_bytes_are_refused(tmp_path) -> None:
    tensors, outline, data = parts(small(tmp_path / "good")[0])
    for more in (data + b"\0", data[:-1], b"", data * 2):
        assert f"its tensors take 32 bytes, it holds {len(more)}" in refuses_within(
            tmp_path / "x", forged(tensors, outline, more)
        )
    for name in list(tensors):
        fewer = {key: value for key, value in tensors.items() if key != name}
        assert "got None" in refuses_within(tmp_path / "x", forged(fewer, outline, data))


def test_forged_headers_are_refused(tmp_path) -> None:
    tensors, outline, data = parts(small(tmp_path / "good")[0])
    start = b'{"__metadata__":{"sha256":"' + b"0" * 64
    for rest in (
        b'"}}',
        b'","attnkit_cache":5}}',
        b'","attnkit_cache":"5"}}',
        b'","attnkit_cache":"[]"}}',
        b'","attnkit_cache":"{}"}}',
        b'","attnkit_cache":null}}',
        b'","attnkit_cache":"' + b"[" * 100_000 + b'"}}',
        b'","a":' + b"[" * 100_000,
        b'","a":' + b"9" * 5000 + b"}}",
        b'","a":"\xff"}}',
        b'","a":"\\ud800","attnkit_cache":"\\ud800"}}',
        b'"},"__metadata__":5}',
        b'"},"__metadata__":{}}',
    ):
        assert "its header is none of a cache file" in refuses_within(tmp_path / "x", hashed(start + rest, data))
    for wrong in (forged(tensors, "null", data), forged(tensors, outline, data, "other")):
        assert "its header is none of a cache file" in refuses_within(tmp_path / "x", wrong)


def test_a_header_longer_than_the_file_or_the_limit_is_refused_unread(tmp_path) -> None:
    for length in (2**63, 2**40, 2**25 + 1):
        assert "its header would take" in refuses_within(tmp_path / "x", length.to_bytes(8, "little") + bytes(100))
    with (tmp_path / "sparse").open("wb") as file:
        file.write((2**26).to_bytes(8, "little"))
        file.truncate(2**27)
    tracemalloc.start()
    try:
        with pytest.raises(ak.CacheFileError, match="its header would take 67108864"):
            ak.load_cache(tmp_path / "sparse")
        assert tracemalloc.get_traced_memory()[1] < 2 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "claims",
    [
        {"max_length": 2**40},
        {"batch_size": 2**40},
        {"batch_size": 10**8, "layout": "paged"},
        {"num_kv_heads": 2**40},
        {"head_dim": 2**53, "value_dim": 2**53},
        {"layout": "ring", "window": 2**40},
        {"layout": "ring", "window": 2, "max_append": 2**40},
        {"layout": "ring", "window": 2, "pinned": 2**40},
        {"layout": "paged", "page_size": 2**40},
        {"layout": "paged", "num_pages": 10**8},
        {"layout": "contiguous", "max_length": 2**53},
    ],
)
@pytest.mark.parametrize("batch", [0, 1])
def test_an_empty_cache_that_claims_much_is_refused_before_it_is_made(tmp_path, claims, batch) -> None:
    """Nothing in these files is wrong; no tensor has any byte."""
    cache = make(num_layers=1, batch_size=batch, num_kv_heads=1, head_dim=1, value_dim=1)
    tensors, outline, data = parts(saved(cache, tmp_path / "good"))
    config = ak.KVCacheConfig(**{**cache.config.model_dump(exclude={"max_length"}, exclude_none=True), **claims})
    outline["config"] = config.model_dump(mode="json")
    if config.layout == "paged":
        outline["rows"] = [[]] * batch
    for half, size in (("key", config.head_dim), ("value", config.value_dim)):
        tensors[f"layers.0.{half}.tokens"]["shape"] = [config.num_kv_heads, 0, size]
    told = refuses_within(tmp_path / "forged", forged(tensors, outline, data))
    assert "if that is meant, pass config=KVCacheConfig(...)" in told


def test_numbers_beyond_all_integers_are_refused(tmp_path) -> None:
    cache = append(make(layout="paged", page_size=8), 3)
    for far in (2**53 + 1, 2**63, 2**64, 10**30):
        tensors, outline, data = parts(saved(cache, tmp_path / "good"))
        put(outline, "config.page_size", far)
        told = refuses_within(tmp_path / "forged", forged(tensors, outline, data))
        assert "config must have numbers of at most 2**53, got more in page_size" in told
    ring = append(make(layout="ring", window=8), 3)
    for name in ("window", "pinned", "max_append", "batch_size"):
        tensors, outline, data = parts(saved(ring, tmp_path / "good"))
        put(outline, f"config.{name}", 2**63)
        (tmp_path / "forged").write_bytes(forged(tensors, outline, data))
        for config in (None, ring.config, make().config):
            with pytest.raises(ak.CacheFileError, match=f"got more in {name}"):
                ak.load_cache(tmp_path / "forged", config=config)


def test_much_room_is_made_where_the_caller_says_so(tmp_path) -> None:
    sizes = {"num_layers": 1, "batch_size": 1, "num_kv_heads": 1, "head_dim": 1, "value_dim": 1}
    cache = append(make(**sizes), 3)
    tensors, outline, data = parts(saved(cache, tmp_path / "cache"))
    put(outline, "config.max_length", 2**28)
    (tmp_path / "cache").write_bytes(forged(tensors, outline, data))
    with pytest.raises(ak.CacheFileError, match="takes about 1073741952 bytes for 12 bytes of tokens"):
        ak.load_cache(tmp_path / "cache")
    again = ak.load_cache(tmp_path / "cache", config=make(**sizes, max_length=1000).config)
    assert reads(again) == reads(cache)


def test_nothing_of_a_file_is_ever_run(tmp_path) -> None:
    before = set(sys.modules)
    data, _ = small(tmp_path / "good")
    refuses(tmp_path / "x", data[:-1])
    ak.load_cache(tmp_path / "good")
    assert not {"pickle", "marshal", "shelve"} & (set(sys.modules) - before)
    assert b"pickle" not in data
