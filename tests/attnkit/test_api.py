"""The functions people call: ranks, defaults, and what they promise about their arguments (A3, A7, A11, A13)."""

from __future__ import annotations

import inspect

import ml_dtypes
import numpy as np
import pytest

import attnkit as ak
from attnkit import reference


@pytest.fixture(params=["plain", "numpy"])
def backend(request):
    return request.getfixturevalue("plain") if request.param == "plain" else "numpy"


# Ranks


def test_four_axes(backend, draw) -> None:
    query, key, value = draw(2, 4, 3, 8), draw(2, 2, 5, 8), draw(2, 2, 5, 6)
    output, lse = ak.attention_with_lse(query, key, value, mask=ak.Mask.causal(), backend=backend)
    truth = reference.attention(query, key, value, mask=ak.Mask.causal())
    np.testing.assert_allclose(output, truth.output, atol=1e-12)
    np.testing.assert_allclose(lse, truth.lse, atol=1e-12)
    assert (ak.attention(query, key, value, mask=ak.Mask.causal(), backend=backend) == output).all()


def test_three_axes_are_one_sequence(backend, draw) -> None:
    query, key, value = draw(4, 3, 8), draw(2, 5, 8), draw(2, 5, 6)
    options = {"bias": draw(4, 3, 5), "sinks": draw(4), "alibi": draw(4), "kv_lengths": [4], "backend": backend}
    output, lse = ak.attention_with_lse(query, key, value, **options)
    whole, whole_lse = ak.attention_with_lse(query[None], key[None], value[None], **options)
    assert (output.shape, lse.shape) == ((4, 3, 6), (4, 3))
    assert (output == whole[0]).all()
    assert (lse == whole_lse[0]).all()


def test_two_axes_are_one_head(backend, draw) -> None:
    query, key, value = draw(3, 8), draw(5, 8), draw(5, 6)
    options = {"bias": draw(3, 5), "sinks": draw(1), "query_offset": 1, "mask": ak.Mask.causal(), "backend": backend}
    output, lse = ak.attention_with_lse(query, key, value, **options)
    whole, whole_lse = ak.attention_with_lse(query[None, None], key[None, None], value[None, None], **options)
    assert (output.shape, lse.shape) == ((3, 6), (3,))
    assert (output == whole[0, 0]).all()
    assert (lse == whole_lse[0, 0]).all()


@pytest.mark.parametrize("shapes", [((4,), (4,), (4,)), ((1,) * 5,) * 3, ((2, 4), (1, 2, 4), (2, 4)), ((), (), ())])
def test_other_ranks_are_named(plain, shapes) -> None:
    with pytest.raises(ak.ShapeError, match=r"must all be \[B, H, T, D\], all \[H, T, D\], or all \[T, D\]"):
        ak.attention(*map(np.zeros, shapes))


def test_no_scores_at_all(backend) -> None:
    for shape in [(0, 2, 3, 4), (1, 2, 0, 4), (0, 2, 0, 4), (1, 0, 3, 4)]:
        x = np.ones(shape, np.float32)
        output, lse = ak.attention_with_lse(x, x, x, backend=backend)
        assert (output.shape, lse.shape) == (shape, shape[:3])
    query, key = np.ones((2, 2, 3, 4), np.float32), np.ones((2, 2, 0, 4), np.float32)
    output, lse = ak.attention_with_lse(query, key, key, backend=backend)
    assert (output == 0).all()
    assert (lse == -np.inf).all()


# Types


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64])
def test_the_output_has_the_type_of_the_query(backend, draw, dtype) -> None:
    x = draw(2, 3, 8, dtype=dtype)
    bias = draw(3, 3)
    for scale in (None, 0.5, np.float64(0.5), np.float32(0.5), 1):
        output, lse = ak.attention_with_lse(x, x, x, scale=scale, bias=bias, backend=backend)
        assert output.dtype == dtype
        assert lse.dtype == (np.float64 if dtype == np.float64 else np.float32)


# Arguments


def inputs(draw):
    query, key, value = draw(2, 4, 3, 8), draw(2, 2, 5, 8), draw(2, 2, 5, 6)
    options = {
        "bias": draw(4, 3, 5),
        "alibi": draw(2, 4),
        "sinks": draw(4),
        "query_lengths": np.array([3, 1]),
        "kv_lengths": np.array([5, 2]),
        "query_offset": np.array([2, 1]),
        "key_offset": np.array([0, 1]),
    }
    return (query, key, value), options


def test_arguments_are_never_modified_and_results_never_alias_them(backend, draw) -> None:
    arrays, options = inputs(draw)
    everything = [*arrays, *options.values()]
    before = [array.copy() for array in everything]
    for array in everything:
        array.flags.writeable = False
    results = ak.attention_with_lse(*arrays, mask=ak.Mask.causal(), **options, backend=backend)
    assert all((now == then).all() for now, then in zip(everything, before, strict=True))
    assert not any(np.shares_memory(result, array) for result in results for array in everything)


def test_a_result_may_be_written_to(backend, draw) -> None:
    x = draw(1, 1, 1, 4)
    output = ak.attention(x, x, x, backend=backend)
    output[...] = 7.0
    assert (ak.attention(x, x, x, backend=backend) == x).all()


def test_views_of_every_sort(backend, draw) -> None:
    query, key, value = draw(2, 4, 6, 8), draw(2, 2, 6, 8), draw(2, 2, 6, 8)
    expected = ak.attention(query, key, value, mask=ak.Mask.causal(), backend=backend)
    layouts = [
        lambda x: np.ascontiguousarray(x.transpose(0, 2, 1, 3)).transpose(0, 2, 1, 3),  # [B, T, H, D] in memory
        lambda x: np.asfortranarray(x),
        lambda x: x[..., ::-1].copy()[..., ::-1],
        lambda x: np.repeat(x, 2, axis=2)[:, :, ::2],
        lambda x: np.pad(x, ((0, 0), (0, 0), (1, 2), (0, 0)), constant_values=np.nan)[:, :, 1:-2],
    ]
    for layout in layouts:
        arrays = [layout(array) for array in (query, key, value)]
        found = ak.attention(*arrays, mask=ak.Mask.causal(), backend=backend)
        np.testing.assert_allclose(found, expected, atol=1e-12)
    wide = np.broadcast_to(key[:, :1], key.shape)
    found = ak.attention(query, wide, wide, backend=backend)
    np.testing.assert_allclose(found, ak.attention(query, wide.copy(), wide.copy(), backend=backend), atol=1e-12)


def test_numbers_stand_for_all_sequences(backend, draw) -> None:
    arrays, _ = inputs(draw)
    names = {"query_lengths": 2, "kv_lengths": 4, "query_offset": 3, "key_offset": 1}
    expected = ak.attention(*arrays, **{name: np.array([n, n]) for name, n in names.items()}, backend=backend)
    for kind in (int, np.int32, lambda n: [n, n], lambda n: (n, n), lambda n: np.array([n, n], np.uint8)):
        options = {name: kind(n) for name, n in names.items()}
        assert (ak.attention(*arrays, **options, backend=backend) == expected).all()


@pytest.mark.parametrize(("rows", "keys"), [(3, 5), (5, 3), (4, 4), (1, 6)])
def test_the_last_query_stands_on_the_last_key_by_default(backend, draw, rows, keys) -> None:
    query, key = draw(1, 1, rows, 4), draw(1, 1, keys, 4)
    options = {"mask": ak.Mask.causal(), "backend": backend}
    default = ak.attention(query, key, key, **options)
    assert (default == ak.attention(query, key, key, query_offset=keys - rows, **options)).all()
    shifted = ak.attention(query, key, key, key_offset=7, **options)
    np.testing.assert_allclose(shifted, default, atol=1e-15)


# Everything but arrays is named


@pytest.mark.parametrize("function", [ak.attention, ak.attention_with_lse, ak.explain])
def test_only_arrays_are_positional(plain, function) -> None:
    parameters = inspect.signature(function).parameters.values()
    positional = [parameter.name for parameter in parameters if parameter.kind is parameter.POSITIONAL_OR_KEYWORD]
    assert positional == ["query", "key", "value"]
    assert all(p.default is None or p.name == "lse" for p in parameters if p.kind is p.KEYWORD_ONLY)


def test_the_three_take_the_same_options() -> None:
    names = [set(inspect.signature(f).parameters) for f in (ak.attention, ak.attention_with_lse, ak.explain)]
    assert names[0] == names[1] == names[2] - {"lse"}


# Caches


@pytest.fixture
def config():
    return ak.KVCacheConfig(num_kv_heads=1, head_dim=4, dtype="float64")


@pytest.mark.parametrize("choice", ["second", ["second", "plain"], ["gone", "second"], ["thin", "second"]])
def test_a_cache_lies_in_the_backend_that_is_chosen(plain, kit, config, choice, monkeypatch) -> None:
    thin = ak.Capabilities(dtypes=frozenset({"float16"}))
    ak.register(kit.spec("second"))
    ak.register(kit.spec("gone", available=lambda: "no device"))
    ak.register(kit.spec("thin", capabilities=lambda _self: thin))
    assert ak.make_cache(config, backend=choice).backend is ak.get_backend("second")
    with ak.use_backend(choice):
        assert ak.make_cache(config).backend is ak.get_backend("second")
        assert ak.make_cache(config, backend="plain").backend is ak.get_backend("plain")
    monkeypatch.setenv("ATTNKIT_BACKEND", choice if isinstance(choice, str) else ",".join(choice))
    assert ak.make_cache(config).backend is ak.get_backend("second")


def test_a_cache_that_nobody_can_store(plain, kit, config) -> None:
    thin = ak.Capabilities(dtypes=frozenset({"float16"}))
    ak.register(kit.spec("gone", available=lambda: "no device"))
    ak.register(kit.spec("thin", capabilities=lambda _self: thin))
    with pytest.raises(ak.UnsupportedError, match="'thin' cannot store this cache") as caught:
        ak.make_cache(config, backend="thin")
    assert caught.value.reasons["thin"][0].code == "dtypes"
    with pytest.raises(ak.UnsupportedError, match="none of the chosen backends") as caught:
        ak.make_cache(config, backend=["gone", "thin"])
    assert list(caught.value.reasons) == ["gone", "thin"]
    with pytest.raises(ak.BackendUnavailableError, match="no device"):
        ak.make_cache(config, backend="gone")
    with pytest.raises(ak.BackendNotFoundError, match="'nobody'"):
        ak.make_cache(config, backend="nobody")
    with pytest.raises(ak.BackendNotFoundError, match="has no path 'nope'"):
        ak.make_cache(config, backend="plain:nope")


def test_a_cache_lies_in_numpy_by_default(config) -> None:
    assert ak.make_cache(config).backend is ak.get_backend("numpy")


def test_a_backend_itself_may_hold_a_cache(plain, kit, config, draw) -> None:
    mine = kit.backend("mine")
    cache = ak.make_cache(config, backend=mine)
    x = draw(1, 1, 3, 4)
    cache[0].append(x, x)
    with ak.trace() as calls:
        cache[0].attend(x)
    assert cache.backend is mine
    assert [call.backend for call in calls] == ["mine"]
