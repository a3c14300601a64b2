from __future__ import annotations

import struct
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFWriter

from attnkit.models import GGUFFile, ModelError, load_model

CUTS = np.linspace(0, 0.999, 16)


def unpacked(raw: bytes, kind: str) -> np.ndarray:
    """Decode quantised blocks of 32 by the definitions of the formats, one at a time."""
    size = {"Q8_0": 34, "Q4_0": 18, "Q4_1": 20}[kind]
    values = []
    for start in range(0, len(raw), size):
        block = raw[start : start + size]
        (scale,) = struct.unpack_from("<e", block)
        if kind == "Q8_0":
            values += [scale * number for number in struct.unpack("<32b", block[2:])]
            continue
        nibbles = [byte & 15 for byte in block[-16:]] + [byte >> 4 for byte in block[-16:]]
        low = struct.unpack_from("<e", block, 2)[0] if kind == "Q4_1" else -8 * scale
        values += [low + scale * number for number in nibbles]
    return np.array(values)


@pytest.mark.parametrize("kind", ["F32", "F16", "Q8_0", "Q4_0", "Q4_1"])
def test_tensors_are_read_as_written(gguf_path, lab, kind):
    file = GGUFFile(gguf_path(kind))
    expected = lab.arrays(lab.config())["layers.1.down"]
    found = file.read("blk.1.ffn_down.weight")
    assert found.dtype == np.float32
    assert found.shape == expected.shape
    if kind == "F32":
        np.testing.assert_array_equal(found, expected)
    elif kind == "F16":
        np.testing.assert_array_equal(found, expected.astype(np.float16))
    else:
        tensor = file.tensors["blk.1.ffn_down.weight"]
        raw = file.path.read_bytes()[tensor.offset : tensor.offset + tensor.nbytes]
        np.testing.assert_allclose(found.ravel(), unpacked(raw, kind), rtol=1e-6, atol=1e-7)
        assert abs(found - expected).max() < {"Q8_0": 0.01, "Q4_0": 0.2, "Q4_1": 0.2}[kind]


def test_metadata_of_every_type_is_read(tmp_path):
    writer = GGUFWriter(tmp_path / "meta.gguf", "llama")
    numbers = {"uint8": 200, "int8": -5, "uint16": 60000, "int16": -300, "uint32": 4 * 10**9, "int32": -70000}
    numbers |= {"uint64": 2**63, "int64": -(2**62), "float32": 0.5, "float64": 0.1, "bool": True}
    for kind, number in numbers.items():
        getattr(writer, f"add_{kind}")(f"a.{kind}", number)
    writer.add_array("a.words", ["", "é", "日本"])
    writer.add_array("a.numbers", [3, -1, 2])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    found = GGUFFile(tmp_path / "meta.gguf").metadata
    assert {kind: found[f"a.{kind}"] for kind in numbers} == numbers
    assert found["a.words"] == ["", "é", "日本"]
    assert found["a.numbers"].tolist() == [3, -1, 2]


@pytest.mark.parametrize("kind", ["F32", "Q4_1"])
@pytest.mark.parametrize("part", CUTS)
def test_a_file_cut_short_anywhere_is_refused(gguf_path, tmp_path, kind, part):
    whole = gguf_path(kind).read_bytes()
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(whole[: int(part * len(whole))])
    with pytest.raises(ModelError, match=r"cut\.gguf.*(cut short|not a GGUF)"):
        load_model(cut)


def test_a_file_cut_short_inside_every_part_is_refused(gguf_path, tmp_path):
    whole = gguf_path().read_bytes()
    data = min(tensor.offset for tensor in GGUFFile(gguf_path()).tensors.values())
    cut = tmp_path / "cut.gguf"
    for size in [*range(40), *range(40, data, 97), data - 1, data, data + 1, len(whole) - 1]:
        cut.write_bytes(whole[:size])
        with pytest.raises(ModelError, match=r"cut\.gguf"):
            GGUFFile(cut)


def test_damaged_bytes_give_a_model_or_an_error(gguf_path, tmp_path):
    whole = gguf_path().read_bytes()
    data = min(tensor.offset for tensor in GGUFFile(gguf_path()).tensors.values())
    generator = np.random.default_rng(0)
    damaged = tmp_path / "damaged.gguf"
    messages = []
    for _ in range(300):
        changed = bytearray(whole)
        changed[generator.integers(data)] = generator.integers(256)
        damaged.write_bytes(changed)
        try:
            load_model(damaged)
        except ModelError as error:
            messages.append(str(error))
    assert len(messages) > 30
    assert all("damaged.gguf" in message for message in messages)


@pytest.mark.parametrize("count", [2**40, 2**63, 2**64 - 1])
@pytest.mark.parametrize("where", ["tensors", "metadata", "key", "string", "array"])
def test_absurd_counts_are_refused_without_allocating(gguf_path, tmp_path, where, count):
    whole = gguf_path().read_bytes()
    at = {
        "tensors": 8,
        "metadata": 16,
        "key": 24,
        "string": whole.index(b"tokenizer.ggml.model") + 20 + 4,
        "array": whole.index(b"tokenizer.ggml.tokens") + 21 + 8,
    }[where]
    damaged = tmp_path / "damaged.gguf"
    damaged.write_bytes(whole[:at] + struct.pack("<Q", count) + whole[at + 8 :])
    tracemalloc.start()
    try:
        with pytest.raises(ModelError, match=r"damaged\.gguf"):
            GGUFFile(damaged)
        assert tracemalloc.get_traced_memory()[1] < 10_000_000
    finally:
        tracemalloc.stop()


def test_other_tensor_types_are_named(gguf_path, tmp_path):
    path = gguf_path()
    whole = bytearray(path.read_bytes())
    name = b"blk.0.attn_q.weight"
    at = whole.index(name) + len(name) + 4 + 16
    for number, kind in ((12, "Q4_K"), (250, "250")):
        whole[at : at + 4] = struct.pack("<I", number)
        changed = tmp_path / "changed.gguf"
        changed.write_bytes(whole)
        with pytest.raises(ModelError, match=rf"'blk\.0\.attn_q\.weight' has type {kind}; readable are F32"):
            GGUFFile(changed)


@pytest.mark.parametrize("version", [0, 1, 4, 3 << 24])
def test_other_versions_are_refused(gguf_path, version):
    path = gguf_path()
    whole = path.read_bytes()
    path.write_bytes(whole[:4] + struct.pack("<I", version) + whole[8:])
    with pytest.raises(ModelError, match=f"GGUF version {version}"):
        GGUFFile(path)


def test_what_is_no_file_is_refused(tmp_path):
    (tmp_path / "text.gguf").write_text("hello, this is text")
    (tmp_path / "empty.gguf").touch()
    for name in ("text.gguf", "empty.gguf", "absent.gguf", "."):
        with pytest.raises(ModelError, match=name.replace(".", r"\.") if name != "." else str(tmp_path)):
            GGUFFile(Path(tmp_path / name))
