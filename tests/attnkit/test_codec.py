"""Storage codecs: values, the bound on the error, the same bits from NumPy and torch, and attention over them.

Axes: ``B`` batch, ``H`` query heads, ``K`` key/value heads, ``T`` query length, ``S`` key length, ``D`` query/key head
size, ``E`` value head size.
"""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from pydantic import BaseModel, ValidationError

from attnkit.arrays import numpy_dtype
from attnkit.codec import Codec, attention_bound
from attnkit.errors import ShapeError
from attnkit.numerics import FLOAT64
from attnkit.reference import attention

DTYPES = ["float16", "bfloat16", "float32", "float64"]
SCALED = ["int8", "int8/4", "int4", "int4/4", "fp8", "fp8/4"]
BY_CODEC = pytest.mark.parametrize("name", SCALED)
BY_EVERY_CODEC = pytest.mark.parametrize("name", ["native", *SCALED])
BY_DTYPE = pytest.mark.parametrize("dtype", DTYPES)
LARGEST = float(np.finfo(np.float32).max)
SMALLEST = 2.0**-149
SPECIAL = [
    0.0,
    -0.0,
    1.0,
    LARGEST,
    -LARGEST,
    LARGEST * (1 - 2.0**-23),
    SMALLEST,
    -3 * SMALLEST,
    100 * SMALLEST,
    2.0**-126,
]
FLOATS = st.one_of(st.floats(width=32, allow_nan=False, allow_infinity=False), st.sampled_from(SPECIAL))


@st.composite
def token_arrays(draw: st.DrawFn) -> np.ndarray:
    """Give float32 tokens ``[2, 8]``: of any magnitude, near an offset, with outliers, or on a coarse grid."""
    rows = draw(arrays(np.float32, (2, 8), elements=FLOATS, fill=st.nothing() if draw(st.booleans()) else FLOATS))
    if draw(st.booleans()):
        return rows
    generator = np.random.default_rng(draw(st.integers(0, 2**32)))
    noise = generator.standard_normal((2, 8)) * 2.0 ** draw(st.integers(-150, 120))
    steps = generator.integers(-300, 300, (2, 8)) * 2.0 ** draw(st.integers(-149, 118))
    spread = draw(st.sampled_from([noise, steps, np.where(generator.random((2, 8)) < 0.2, 1e4, 1) * noise]))
    return np.clip(spread + draw(FLOATS) * draw(st.booleans()), -LARGEST, LARGEST).astype(np.float32)


def codec(name: str) -> Codec:
    return Codec.model_validate(name)


def cast(tokens: np.ndarray, dtype: str) -> np.ndarray:
    """Convert by value, putting the largest number in place of what is beyond it."""
    top = float(ml_dtypes.finfo(numpy_dtype(dtype)).max)
    return np.clip(tokens.astype(np.float64), -top, top).astype(numpy_dtype(dtype))


def to_torch(tokens: np.ndarray) -> torch.Tensor:
    return torch.tensor(tokens.astype(np.float64)).to(getattr(torch, tokens.dtype.name))


def through(name: str, tokens: np.ndarray, dtype: str) -> np.ndarray:
    return codec(name).decode(codec(name).encode(tokens, dtype), tokens.shape[-1], dtype)


class Holder(BaseModel):
    codec: Codec


# Values


@pytest.mark.parametrize("text", ["native", "int8", "int4", "fp8", "int8/32", "int4/1"])
def test_a_codec_is_written_as_a_string(text) -> None:
    assert str(Holder(codec=text).codec) == text
    assert Holder.model_validate_json(Holder(codec=text).model_dump_json()).codec == codec(text)


def test_a_codec_is_a_value() -> None:
    assert Codec() == codec("native")
    assert codec("int8/32") == Codec(kind="int8", block=32)
    assert len({codec("int8"), Codec(kind="int8"), codec("int8/8")}) == 2
    with pytest.raises(ValidationError, match="frozen"):
        codec("int8").kind = "int4"


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("int7", "'native', 'int8', 'int4' or 'fp8'"),
        ("", "'native', 'int8', 'int4' or 'fp8'"),
        ("int8/", "block"),
        ("int8/x", "block"),
        ("int8/0", "greater than 0"),
        ({"kind": "int8", "block": -4}, "greater than 0"),
        ("native/4", "block must not be given for native storage, which has no scales, got 4"),
        ({"kind": "int8", "bits": 8}, "Extra inputs are not permitted"),
        (8, "valid dictionary"),
    ],
)
def test_what_is_no_codec_is_refused(data, message) -> None:
    with pytest.raises(ValidationError, match=message):
        Codec.model_validate(data)


def test_a_block_must_divide_the_head() -> None:
    codec("int8/16").check("head_dim", 64)
    codec("int8").check("head_dim", 7)
    message = "head_dim must be a multiple of block = 16 of codec int8/16, got 24; choose a block that divides it"
    with pytest.raises(ShapeError, match=message):
        codec("int8/16").check("head_dim", 24)
    with pytest.raises(ShapeError, match="block = 16"):
        codec("int8/16").planes(24, "float32")


@pytest.mark.parametrize(
    ("name", "size", "planes", "nbytes"),
    [
        ("native", 64, ((64, "float16"),), 128),
        ("int8", 64, ((64, "int8"), (2, "float32")), 72),
        ("int8/16", 64, ((64, "int8"), (8, "float32")), 96),
        ("int4", 64, ((32, "uint8"), (2, "float32")), 40),
        ("int4", 7, ((4, "uint8"), (2, "float32")), 12),
        ("fp8", 64, ((64, "uint8"), (1, "float32")), 68),
        ("fp8/32", 64, ((64, "uint8"), (2, "float32")), 72),
    ],
)
def test_planes_are_told_in_advance(draw, name, size, planes, nbytes) -> None:
    assert codec(name).planes(size, "float16") == planes
    assert codec(name).bytes_per_token(size, "float16") == nbytes
    tokens = draw(3, 2, size, dtype=np.float32)
    for encoded in (codec(name).encode(tokens, "float16"), codec(name).encode(to_torch(tokens), "float16")):
        assert [tuple(plane.shape) for plane in encoded] == [(3, 2, features) for features, _ in planes]
        assert [str(plane.dtype).removeprefix("torch.") for plane in encoded] == [kind for _, kind in planes]
        assert sum(plane.nbytes for plane in encoded) == 6 * nbytes


# The bound


@BY_EVERY_CODEC
@given(tokens=token_arrays(), source=st.sampled_from(DTYPES), dtype=st.sampled_from(DTYPES))
@settings(max_examples=100, deadline=None)
def test_the_error_is_within_the_bound(name, tokens, source, dtype) -> None:
    tokens = cast(tokens, source)
    with np.errstate(all="raise", under="ignore"):
        decoded, bound = through(name, tokens, dtype), codec(name).bound(tokens, dtype)
    assert decoded.dtype == numpy_dtype(dtype)
    assert bound.dtype == np.float64
    assert bound.shape == tokens.shape
    with np.errstate(invalid="ignore", over="ignore"):
        error = np.abs(decoded.astype(np.float64) - tokens.astype(np.float64))
    assert (error <= bound).all()
    if source == dtype or dtype in ("float32", "float64"):  # else the cache's type may be too small for a token
        assert np.isfinite(bound).all()


@BY_CODEC
@pytest.mark.parametrize("rows", ["far from zero", "subnormal", "about to overflow"])
def test_what_float32_rounds_is_within_the_bound(draw, name, rows) -> None:
    noise = draw(4000, 8)
    tokens = {
        "far from zero": 1000 + noise * 10.0 ** np.linspace(-8, 2, 4000)[:, None],
        "subnormal": np.rint(noise * 200) * SMALLEST,
        "about to overflow": np.sign(noise) * LARGEST * (1 - np.rint(4 * np.abs(noise)) * 2.0**-24),
    }[rows]
    decoded, bound = through(name, tokens, "float64"), codec(name).bound(tokens, "float64")
    assert (np.abs(decoded - tokens) <= bound).all()
    assert np.isfinite(bound).all()


@pytest.mark.parametrize("name", ["int8", "int8/32", "int4", "int4/32", "fp8", "fp8/32"])
@BY_DTYPE
def test_the_bound_is_not_vacuous(draw, name, dtype) -> None:
    tokens = cast(draw(300, 64) + 0.5, dtype)
    error = np.abs(through(name, tokens, dtype).astype(np.float64) - tokens.astype(np.float64))
    bound = codec(name).bound(tokens, dtype)
    assert error.mean() > bound.mean() / 4
    assert (error / bound).max() > 0.9


@BY_DTYPE
def test_native_storage_rounds_and_no_more(draw, dtype) -> None:
    tokens = draw(50, 8)
    stored = codec("native").encode(tokens, dtype)
    assert stored[0].tobytes() == tokens.astype(numpy_dtype(dtype)).tobytes()
    assert codec("native").decode(stored, 8, dtype) is stored[0]
    assert not codec("native").bound(stored[0], dtype).any()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_the_bound_is_infinite_where_the_type_of_the_cache_overflows(dtype) -> None:
    tokens = np.full((1, 8), LARGEST, np.float32)
    assert np.isinf(through("native", tokens, dtype)).all()
    assert np.isinf(codec("native").bound(tokens, dtype)).all()
    assert np.isinf(through("int8", tokens, dtype)).all()
    assert np.isinf(codec("int8").bound(tokens, dtype)).all()


def test_encoding_twice_may_change_codes(draw) -> None:
    """Why caches move codes: what the class says about decoded tokens that are encoded again."""
    tokens = draw(200, 16, dtype=np.float32)
    first = codec("int8").encode(tokens, "bfloat16")
    again = codec("int8").encode(codec("int8").decode(first, 16, "bfloat16"), "bfloat16")
    assert (first[0] != again[0]).any()


# NaN and infinity


@BY_CODEC
@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf, 1e39, -1e300])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_a_block_with_nan_or_infinity_decodes_to_nan_alone(draw, name, poison, dtype) -> None:
    clean = draw(3, 8)
    tokens = clean.copy()
    tokens[1, 2] = poison
    width = codec(name).block or 8
    with np.errstate(all="raise", under="ignore"):
        decoded, bound = through(name, tokens, dtype), codec(name).bound(tokens, dtype)
    hit = np.zeros((3, 8), bool)
    hit[1, :width] = True
    assert np.isnan(decoded[hit]).all()
    assert np.isinf(bound[hit]).all()
    assert decoded[~hit].tobytes() == through(name, clean, dtype)[~hit].tobytes()
    assert (bound[~hit] == codec(name).bound(clean, dtype)[~hit]).all()


@BY_CODEC
def test_nan_is_stored_alike_by_every_library(name) -> None:
    for poison in (np.nan, -np.nan, np.inf, -np.inf):
        tokens = np.float32([[poison, 1, 2, 3, 4, 5, 6, 7], [poison, -poison, 0, 0, 0, 0, 0, poison]])
        planes = codec(name).encode(tokens, "float32")
        assert [p.tobytes() for p in planes] == [
            p.numpy().tobytes() for p in codec(name).encode(to_torch(tokens), "float32")
        ]


# Libraries and shapes


@BY_CODEC
@given(tokens=token_arrays(), source=st.sampled_from(DTYPES), dtype=st.sampled_from(DTYPES))
@settings(max_examples=60, deadline=None)
def test_numpy_and_torch_give_the_same_bits(name, tokens, source, dtype) -> None:
    tokens = cast(tokens, source)
    ours, theirs = codec(name).encode(tokens, dtype), codec(name).encode(to_torch(tokens), dtype)
    assert [plane.tobytes() for plane in ours] == [plane.numpy().tobytes() for plane in theirs]
    decoded, other = codec(name).decode(ours, 8, dtype), codec(name).decode(theirs, 8, dtype)
    assert other.dtype == getattr(torch, dtype)
    assert decoded.astype(np.float64).tobytes() == other.to(torch.float64).numpy().tobytes()


@BY_EVERY_CODEC
@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize("shape", [(8,), (0, 8), (2, 0, 8), (3, 0, 2, 8), (1, 2, 3, 8)])
def test_any_leading_shape(name, library, shape) -> None:
    tokens = np.arange(math.prod(shape), dtype=np.float32).reshape(shape)
    planes = codec(name).encode(tokens if library == "numpy" else to_torch(tokens), "float16")
    features = [features for features, _ in codec(name).planes(8, "float16")]
    assert [tuple(plane.shape) for plane in planes] == [(*shape[:-1], count) for count in features]
    decoded = codec(name).decode(planes, 8, "float16")
    assert tuple(decoded.shape) == shape == codec(name).bound(tokens, "float16").shape
    assert (np.abs(np.asarray(decoded, np.float64) - tokens) <= codec(name).bound(tokens, "float16")).all()


@BY_EVERY_CODEC
def test_nothing_is_recorded_for_gradients(name) -> None:
    tokens = torch.ones(2, 8, requires_grad=True)
    planes = codec(name).encode(tokens, "float32")
    assert not any(plane.requires_grad for plane in planes)
    assert not codec(name).decode(planes, 8, "float32").requires_grad


# Attention over decoded tokens


def attend(inputs, scale, **options):
    truth = attention(*inputs, scale=scale, **options)
    return truth, truth.tolerance(FLOAT64).output


@given(
    seed=st.integers(0, 2**32),
    names=st.tuples(st.sampled_from(["native", *SCALED]), st.sampled_from(["native", *SCALED])),
    sizes=st.tuples(*[st.sampled_from([1e-3, 1.0, 30.0, 1e4])] * 3),
    mask=st.sampled_from([None, (("causal",),), (("window", 2, 0),)]),
    options=st.sampled_from([{}, {"softcap": 5.0}, {"sinks": np.array([0.0, -3, 1, 2])}]),
)
@settings(max_examples=60, deadline=None)
def test_attention_stays_within_its_bound(seed, names, sizes, mask, options) -> None:
    generator = np.random.default_rng(seed)
    query, key, value = (
        (size * generator.standard_normal(shape)).astype(np.float16 if size < 1e3 else np.float32)
        for size, shape in zip(sizes, [(2, 4, 3, 8), (2, 2, 6, 8), (2, 2, 6, 8)], strict=True)
    )
    decoded = [through(name, tokens, "float16") for name, tokens in zip(names, (key, value), strict=True)]
    bounds = [codec(name).bound(tokens, "float16") for name, tokens in zip(names, (key, value), strict=True)]
    truth, slack = attend((query, key, value), 0.25, mask=mask, **options)
    other, more = attend((query, *decoded), 0.25, mask=mask, **options)
    error = np.abs(truth.output - other.output)
    loose = attention_bound(query, *bounds, value, 0.25)
    tight = attention_bound(query, *bounds, value, 0.25, weights=truth.weights)
    assert (error <= tight + slack + more).all()
    assert (tight <= loose).all()


@pytest.mark.parametrize("name", ["int8", "int4", "fp8"])
@pytest.mark.parametrize("size", [0.1, 1.0, 5.0])
def test_the_bound_on_attention_is_not_vacuous(draw, name, size) -> None:
    """Errors of random signs cancel in sums over features and keys, which a bound cannot know."""
    query, key, value = size * draw(2, 4, 3, 16), draw(2, 2, 32, 16), draw(2, 2, 32, 8)
    decoded = [through(name, tokens, "float64") for tokens in (key, value)]
    bounds = [codec(name).bound(tokens, "float64") for tokens in (key, value)]
    truth, other = attention(query, key, value), attention(query, *decoded)
    error = np.abs(truth.output - other.output)
    loose = attention_bound(query, *bounds, value, 0.25)
    tight = attention_bound(query, *bounds, value, 0.25, weights=truth.weights)
    assert loose.mean() < 150 * error.mean()
    assert tight.mean() < 60 * error.mean()


@pytest.mark.parametrize("moved", [0.01, 1.0, 30.0])
def test_the_bound_on_attention_is_attained(moved) -> None:
    """Two keys of opposite errors, the one with less weight gaining: no smaller bound holds."""
    query, value = np.ones((1, 1, 1, 1)), np.array([1.0, 0.0]).reshape(1, 1, 2, 1)
    key, errors = np.array([-moved, 0.0]).reshape(1, 1, 2, 1), np.array([moved, -moved]).reshape(1, 1, 2, 1)
    outputs = [attention(query, each, value, scale=1.0).output.item() for each in (key, key + errors)]
    bound = attention_bound(query, np.abs(errors), np.zeros_like(value), value, 1.0).item()
    assert bound == pytest.approx(outputs[1] - outputs[0], rel=1e-12)


@pytest.mark.parametrize("moved", [0.01, 1.0, 3.0])
def test_the_bound_by_weights_is_attained_where_a_key_weighs_little(moved) -> None:
    """A key of little weight moves one way, all others the other way, and its value alone is off."""
    query, value = np.ones((1, 1, 1, 1)), np.zeros((1, 1, 2, 1))
    key, errors = np.array([-20.0, 0.0]).reshape(1, 1, 2, 1), np.array([moved, -moved]).reshape(1, 1, 2, 1)
    off = np.array([1.0, 0.0]).reshape(1, 1, 2, 1)
    truth, other = attention(query, key, value, scale=1.0), attention(query, key + errors, value + off, scale=1.0)
    bound = attention_bound(query, np.abs(errors), off, value, 1.0, weights=truth.weights).item()
    assert other.output.item() <= bound == pytest.approx(other.output.item(), rel=1e-5)


def test_the_bound_on_attention_is_infinite_where_a_key_decodes_to_nan(draw) -> None:
    query, key, value = draw(2, 4, 3, 8), draw(2, 2, 5, 8), draw(2, 2, 5, 8)
    key[0, 1, 2, 3] = np.nan
    bounds = codec("int8").bound(key, "float32"), codec("int8").bound(value, "float32")
    bound = attention_bound(query, *bounds, value, 0.25)
    assert np.isinf(bound[0, 2:]).all()
    assert np.isfinite(bound[0, :2]).all()
    assert np.isfinite(bound[1]).all()


def test_attention_over_nothing_has_a_bound_of_zero() -> None:
    empty = np.zeros((1, 2, 0, 8))
    assert attention_bound(np.ones((1, 4, 3, 8)), empty, empty, empty, 0.25).tolist() == np.zeros((1, 4, 3, 8)).tolist()
