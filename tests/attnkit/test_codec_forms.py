"""The arithmetic of codecs: codes by hand, fp8 as others have it, exact blocks, and inputs of any size and strides."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import torch

from attnkit.codec import Codec

SCALED = ["int8", "int8/4", "int4", "int4/4", "fp8", "fp8/4"]
BY_CODEC = pytest.mark.parametrize("name", SCALED)
BY_EVERY_CODEC = pytest.mark.parametrize("name", ["native", *SCALED])
LARGEST = float(np.finfo(np.float32).max)
SMALLEST = 2.0**-149


def codec(name: str) -> Codec:
    return Codec.model_validate(name)


def through(name: str, tokens: np.ndarray, dtype: str) -> np.ndarray:
    return codec(name).decode(codec(name).encode(tokens, dtype), tokens.shape[-1], dtype)


def test_int8_by_hand() -> None:
    tokens = np.float32([[-127, -2.5, 0.5, 1.5, 127], [10, 11, 12, 13, 264]])
    codes, scales = codec("int8").encode(tokens, "float32")
    assert codes.tolist() == [[-127, -2, 0, 2, 127], [-127, -126, -125, -124, 127]]
    assert scales.tolist() == [[1, 0], [1, 137]]
    decoded = codec("int8").decode((codes, scales), 5, "float32")
    assert decoded.tolist() == [[-127, -2, 0, 2, 127], [10, 11, 12, 13, 264]]


def test_int4_by_hand() -> None:
    tokens = np.float32([[0, 1, 2, 13, 15], [-30, 30, 3.9, 4.1, -30]])
    codes, scales = codec("int4").encode(tokens, "float32")
    assert codes.tolist() == [[0x10, 0xD2, 0x0F], [0xF0, 0x98, 0x00]]
    assert scales.tolist() == [[1, 7.5], [4, 0]]
    decoded = codec("int4").decode((codes, scales), 5, "float32")
    assert decoded.tolist() == [[0, 1, 2, 13, 15], [-30, 30, 2, 6, -30]]


def test_fp8_by_hand() -> None:
    tokens = np.float32([[-896, 2, 4.25, 4.75, 2.0**-8, 2.0**-9, -0.0]])  # 2**-9 is half of the smallest level
    codes, scales = codec("fp8").encode(tokens, "float32")
    assert codes.tolist() == [[0xFE, 0x38, 0x40, 0x42, 0x01, 0x00, 0x80]]
    assert scales.tolist() == [[2]]
    assert codec("fp8").decode((codes, scales), 7, "float32").tolist() == [[-896, 2, 4, 5, 2.0**-8, 0, 0]]


@pytest.mark.parametrize(("kind", "code"), [("int8", 0), ("int4", 0x88), ("fp8", 0)])
@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_what_no_scale_divides_has_the_code_of_zero(kind, code, library) -> None:
    """Blocks of equal or hardly different features, and of NaN: 0/0 and NaN are integers of each library's choice."""
    tokens = np.float32([[0, 0], [SMALLEST, 0], [-0.0, 0], [0, -0.0], [np.nan, 1], [np.inf, -np.inf], [-1, -np.inf]])
    codes, scales = codec(kind).encode(tokens if library == "numpy" else torch.tensor(tokens), "float32")
    assert np.unique(np.asarray(codes)).tolist() == [code]
    assert not np.signbit(np.asarray(scales)[:4]).any()
    assert np.isnan(np.asarray(scales)[4:]).all()


def test_blocks_have_scales_of_their_own() -> None:
    tokens = np.float32([-127, 127, -254, 254])
    codes, scales = codec("int8/2").encode(tokens, "float32")
    assert codes.tolist() == [-127, 127, -127, 127]
    assert scales.tolist() == [1, 0, 2, 0]


def fp8_points() -> np.ndarray:
    """Give all levels, what lies half-way between two, and the neighbours of either, of both signs."""
    levels = np.arange(127, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    points = np.concatenate([levels, (levels[1:] + levels[:-1]) / 2])
    near = [np.nextafter(points, np.float32(end)) for end in (0, 448)]
    points = np.concatenate([points, *near])
    return np.concatenate([points, -points])


def test_fp8_codes_are_those_of_ml_dtypes_and_torch() -> None:
    points = fp8_points()
    tokens = np.stack([points, np.full_like(points, 448)], axis=-1)  # so that the scale is 1
    codes, scales = codec("fp8").encode(tokens, "float32")
    assert (scales == 1).all()
    assert (codes[:, 0] == points.astype(ml_dtypes.float8_e4m3fn).view(np.uint8)).all()
    assert (codes[:, 0] == torch.tensor(points).to(torch.float8_e4m3fn).view(torch.uint8).numpy()).all()


def test_fp8_levels_are_those_of_ml_dtypes() -> None:
    codes = np.delete(np.arange(256, dtype=np.uint8), [0x7F, 0xFF])  # these two are NaN, and never written
    levels = codec("fp8").decode((codes[:, None], np.ones((254, 1), np.float32)), 1, "float32")[:, 0]
    assert levels.tobytes() == codes.view(ml_dtypes.float8_e4m3fn).astype(np.float32).tobytes()


@pytest.mark.parametrize("kind", ["int8", "int4"])
@pytest.mark.parametrize("number", [0.1, -3e38, LARGEST, -LARGEST, SMALLEST, -5 * SMALLEST, 1e-40, 0.0])
def test_a_block_of_equal_features_is_exact(kind, number) -> None:
    tokens = np.full((2, 6), number, np.float32)
    assert (through(kind, tokens, "float32") == tokens).all()


@BY_CODEC
@pytest.mark.parametrize("exponent", range(-149, 128, 6))
def test_no_magnitude_is_special(draw, name, exponent) -> None:
    """Scaling tokens by a power of two scales what is decoded, as long as nothing is subnormal."""
    tokens = np.clip(draw(4, 8, dtype=np.float32), -1.9, 1.9)
    scaled = through(name, tokens * np.float32(2.0**exponent), "float32")
    assert np.isfinite(scaled).all()
    if exponent > -100:
        assert (scaled == through(name, tokens, "float32") * np.float32(2.0**exponent)).all()


@pytest.mark.parametrize("kind", ["native", "int8", "int4", "fp8"])
@pytest.mark.parametrize("size", [1, 3, 7])
def test_odd_sizes(draw, kind, size) -> None:
    tokens = draw(4, size, dtype=np.float32)
    assert (np.abs(through(kind, tokens, "float32") - tokens) <= codec(kind).bound(tokens, "float32")).all()
    other = codec(kind).decode(codec(kind).encode(torch.tensor(tokens), "float32"), size, "float32")
    assert other.numpy().tobytes() == through(kind, tokens, "float32").tobytes()


@BY_EVERY_CODEC
@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_strides_and_neighbours_change_nothing(draw, name, library) -> None:
    dense = draw(6, 5, 8, dtype=np.float32)
    turned = np.ascontiguousarray(dense.transpose(2, 0, 1)).transpose(1, 2, 0)
    turned.flags.writeable = False
    strided = turned
    if library == "torch":
        dense, strided = torch.tensor(dense), torch.tensor(dense.transpose(2, 0, 1).copy()).permute(1, 2, 0)
    planes = codec(name).encode(dense, "float16")
    for part, whole in zip(codec(name).encode(strided, "float16"), planes, strict=True):
        assert (part == whole).all()
    for part, whole in zip(codec(name).encode(dense[2, 1:3], "float16"), planes, strict=True):
        assert (part == whole[2, 1:3]).all()
    cut = tuple(plane[1::2, 2:] for plane in planes)
    assert (codec(name).decode(cut, 8, "float16") == codec(name).decode(planes, 8, "float16")[1::2, 2:]).all()


@BY_CODEC
def test_planes_are_only_read_and_may_have_any_strides(draw, name) -> None:
    planes = codec(name).encode(draw(6, 5, 8, dtype=np.float32), "float32")
    expected = codec(name).decode(planes, 8, "float32")
    stored = [plane.tobytes() for plane in planes]
    strided = tuple(np.ascontiguousarray(plane.transpose(2, 1, 0)).transpose(2, 1, 0) for plane in planes)
    for plane in (*planes, *strided):
        plane.flags.writeable = False
    decoded = codec(name).decode(strided, 8, "float32")
    assert decoded.tobytes() == expected.tobytes()
    decoded[...] = 0
    assert [plane.tobytes() for plane in strided] == stored
    permuted = tuple(torch.tensor(plane.transpose(2, 1, 0).copy()).permute(2, 1, 0) for plane in planes)
    assert (codec(name).decode(permuted, 8, "float32").numpy() == expected).all()
