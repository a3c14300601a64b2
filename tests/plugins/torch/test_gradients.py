"""Gradients of torch:tiled: against finite differences, the oracle's derivatives and torch:dense.

Axes: ``B`` batch, ``H`` query heads, ``K`` key/value heads, ``T`` query length, ``S`` key length, ``D`` query/key head
size, ``E`` value head size.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.autograd import gradcheck

import attnkit as ak
from attnkit import reference
from attnkit.numerics import numerics_for
from attnkit.reference_gradients import Cotangents, gradient_tolerance
from attnkit.reference_gradients import gradients as true_gradients
from attnkit_torch.tiling import kernel, tiles
from attnkit_torch.tiling.tiles import Sizes

CAUSAL = ak.Mask.causal()
PROFILES = {"float64": "float64", "float32": "strict-fp32", "float16": "fa-16", "bfloat16": "fa-16"}
CASES: dict[str, dict[str, Any]] = {
    "nothing": {},
    "causal": {"mask": CAUSAL},
    "window": {"mask": ak.Mask.window(3, 1)},
    "prefix": {"mask": ak.Mask.prefix(2), "key_offset": 1},
    "chunked": {"mask": ak.Mask.chunked(4), "query_offset": np.array([2, 5])},
    "documents": {"mask": ak.Mask.documents(np.array([0, 0, 1, 3]), np.array([0, 0, 0, 1, 1, 2]))},
    "dense": {"mask": ak.Mask.dense(np.arange(24).reshape(1, 1, 4, 6) % 3 > 0)},
    "dense by head": {"mask": ak.Mask.dense(np.arange(192).reshape(2, 4, 4, 6) % 5 > 0)},
    "lengths": {"query_lengths": np.array([4, 2]), "kv_lengths": np.array([0, 3])},
    "offsets": {"mask": CAUSAL, "query_offset": np.array([-2, 3]), "key_offset": np.array([1, 0])},
    "softcap": {"softcap": 0.7, "mask": CAUSAL},
    "scale": {"scale": -0.4},
    "zero scale": {"scale": 0.0},
}
TERMS: dict[str, dict[str, tuple[int, ...]]] = {
    "bias": {"bias": (2, 4, 4, 6)},
    "bias of heads": {"bias": (4, 1, 6)},
    "bias of rows": {"bias": (4, 1)},
    "bias of keys": {"bias": (2, 1, 1, 6)},
    "bias of all": {"bias": (1,)},
    "alibi": {"alibi": (4,)},
    "alibi of sequences": {"alibi": (2, 4)},
    "sinks": {"sinks": (4,)},
    "everything": {"bias": (4, 4, 6), "alibi": (4,), "sinks": (4,)},
}


@pytest.fixture
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut small calls into many tiles."""
    monkeypatch.setattr(tiles, "tile_sizes", lambda request: Sizes(3, 4))
    monkeypatch.setattr(kernel, "tile_sizes", lambda request: Sizes(3, 2**62))


@pytest.fixture(params=["kernel", "plain"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Differentiate by the fused kernel where that may be, or by plain operations, as other devices do."""
    if request.param == "plain":
        monkeypatch.setattr(kernel, "takes", lambda request: False)
    return str(request.param)


def draw(*shapes: tuple[int, ...]) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    return [torch.randn(shape, dtype=torch.float64, generator=generator).requires_grad_() for shape in shapes]


def arrays(heads: int = 4, kv_heads: int = 2, rows: int = 4, keys: int = 6) -> list[torch.Tensor]:
    return draw((2, heads, rows, 3), (2, kv_heads, keys, 3), (2, kv_heads, keys, 2))


def attend(*tensors: torch.Tensor, names: tuple[str, ...] = (), path: str = "tiled", **options: Any) -> Any:
    """Give output and LSE, 0 where it is -inf; what follows query, key and value are the options of ``names``."""
    named = dict(zip(names, tensors[3:], strict=True))
    output, lse = ak.attention_with_lse(*tensors[:3], **named, **options, backend=f"torch:{path}")
    return output, torch.where(lse == -torch.inf, 0, lse)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.usefixtures("small_tiles", "way")
def test_gradients_are_derivatives(name: str) -> None:
    assert gradcheck(lambda *tensors: attend(*tensors, **CASES[name]), arrays(), fast_mode=True)
    assert gradcheck(lambda *tensors: attend(*tensors, **CASES[name])[0], arrays(), fast_mode=True)


@pytest.mark.parametrize("rows", [2, 5, 9])
@pytest.mark.usefixtures("small_tiles", "way")
def test_fewer_and_more_queries_than_keys(rows: int) -> None:
    tensors = arrays(heads=2, rows=rows, keys=5)
    assert gradcheck(lambda *tensors: attend(*tensors, mask=CAUSAL)[0], tensors, fast_mode=True)


@pytest.mark.parametrize("name", TERMS)
@pytest.mark.parametrize("options", [{}, {"mask": CAUSAL, "softcap": 1.5}], ids=["plain", "masked"])
@pytest.mark.usefixtures("small_tiles", "way")
def test_gradients_of_bias_slopes_and_sinks(name: str, options: dict[str, Any]) -> None:
    names, shapes = tuple(TERMS[name]), TERMS[name].values()
    inputs = [*arrays(), *draw(*shapes)]
    assert gradcheck(lambda *tensors: attend(*tensors, names=names, **options), inputs, fast_mode=True)
    assert gradcheck(lambda *tensors: attend(*tensors, names=names, **options)[0], inputs, fast_mode=True)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.usefixtures("small_tiles", "way")
def test_equals_the_dense_path(name: str) -> None:
    tensors = [*arrays(), *draw((4, 4, 6), (4,))]
    found, expected = (
        torch.autograd.grad(
            sum(part.sin().sum() for part in attend(*tensors, names=("bias", "sinks"), path=path, **CASES[name])),
            tensors,
        )
        for path in ("tiled", "dense")
    )
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


def as_truth(tensor: torch.Tensor) -> Any:
    return ak.get_backend("torch").to_numpy(tensor).astype(np.float64)


def check_against_oracle(case: Any, *, lse: bool) -> None:
    tensors, options = case.tensors()
    terms = {name: options[name].requires_grad_() for name in ("bias", "alibi", "sinks") if name in options}
    leaves = dict(zip(("query", "key", "value"), (tensor.requires_grad_() for tensor in tensors), strict=True))
    output, normaliser = ak.attention_with_lse(*tensors, **{**options, **terms}, backend="torch:tiled")
    generator = torch.Generator().manual_seed(1)
    back = [torch.randn(part.shape, generator=generator).to(part.dtype) for part in (output, normaliser)]
    torch.autograd.backward([output, normaliser][: 1 + lse], back[: 1 + lse])

    truth = reference.attention(*case.arrays, **case.options)
    cotangents = Cotangents(as_truth(back[0]), as_truth(back[1]) if lse else 0.0)
    numerics = numerics_for(PROFILES[case.arrays[0].dtype.name], case.arrays[0].dtype.name)
    expected = true_gradients(truth, cotangents)
    for name, leaf in {**leaves, **terms}.items():
        if name == "alibi":  # the oracle knows no gradient of the slopes
            continue
        assert leaf.grad is not None
        assert leaf.grad.dtype == leaf.dtype
        kind = str(leaf.dtype).removeprefix("torch.")
        bound = getattr(gradient_tolerance(truth, cotangents, numerics, terms=kind), name)
        assert np.all(np.abs(as_truth(leaf.grad) - getattr(expected, name)) <= bound), name


@pytest.mark.parametrize("seed", range(60))
def test_random_calls(calls: Any, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiles, "tile_sizes", lambda request: Sizes(16, 32))
    monkeypatch.setattr(kernel, "tile_sizes", lambda request: Sizes(16, 2**62))
    check_against_oracle(calls.draw_case(300 + seed), lse=seed % 2 == 0)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("distribution", ["uniform", "peaky", "huge"])
@pytest.mark.parametrize("softcap", [None, 4.0])
def test_sums_over_a_group_are_wide(calls: Any, dtype: str, distribution: str, softcap: float | None) -> None:
    drawn = calls.draw(np.random.default_rng(4), distribution, (1, 16, 1, 40, 24, 16, 16), dtype)
    check_against_oracle(calls.Case(drawn, {"mask": CAUSAL, "softcap": softcap}), lse=False)


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("lse", [False, True])
def test_padding_gets_zeros_whatever_it_holds(lse: bool) -> None:
    options = {"mask": CAUSAL, "query_lengths": np.array([3, 4]), "kv_lengths": np.array([6, 2])}
    (sinks,) = draw((4,))

    def gradients(fill: float) -> tuple[torch.Tensor, ...]:
        query, key, value = (tensor.detach().clone() for tensor in arrays())
        query[0, :, 3:], key[1, :, 2:], value[1, :, 2:] = fill, fill, fill
        leaves = [tensor.requires_grad_() for tensor in (query, key, value)]
        output, normaliser = ak.attention_with_lse(*leaves, sinks=sinks, **options, backend="torch:tiled")
        back = torch.ones_like(output)
        back[0, :, 3:] = fill
        results = (output, normaliser) if lse else (output,)
        return torch.autograd.grad(results, [*leaves, sinks], (back, torch.ones_like(normaliser))[: len(results)])

    found = gradients(np.nan)
    assert not any(part.any() for part in (found[0][0, :, 3:], found[1][1, :, 2:], found[2][1, :, 2:]))
    for one, other in zip(found, gradients(0.5), strict=True):
        assert torch.equal(one, other)


DEAD: dict[str, dict[str, Any]] = {
    "window": {"mask": ak.Mask.window(1)},
    "chunked": {"mask": ak.Mask.chunked(3)},
    "dense": {"mask": ak.Mask.dense(np.array([[False, True, False, True, True, True]]))},
    "bias": {"bias": torch.tensor([-torch.inf, 0, -torch.inf, 0, 1, 2])},
}


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("name", DEAD)
@pytest.mark.parametrize("fill", [3e38, -1.0])
@pytest.mark.parametrize("softcap", [None, 2.0])
def test_hidden_keys_get_zeros_and_change_nothing(name: str, fill: float, softcap: float | None) -> None:
    dead = [0, 2]

    def gradients(fill: float) -> tuple[torch.Tensor, ...]:
        tensors = [tensor.detach().float() for tensor in arrays(rows=3)]
        tensors[1][:, :, dead], tensors[2][:, :, dead] = fill, -fill
        leaves = [tensor.requires_grad_() for tensor in tensors]
        output = ak.attention(*leaves, **DEAD[name], softcap=softcap, backend="torch:tiled")
        return torch.autograd.grad(output.sum(), leaves)

    found = gradients(fill)
    assert not found[1][:, :, dead].any()
    assert not found[2][:, :, dead].any()
    assert found[2].any()
    for one, other in zip(found, gradients(0.5), strict=True):
        assert torch.equal(one, other)


def test_large_visible_numbers_have_gradients() -> None:
    query, key, value = (tensor.detach() for tensor in arrays(rows=6))
    back = torch.ones(2, 4, 6, 2, dtype=torch.float64)
    scaled = [(query * 1e-25).requires_grad_(), (key * 1e25).requires_grad_(), value.clone().requires_grad_()]
    plain = [tensor.clone().requires_grad_() for tensor in (query, key, value)]
    found, expected = (
        torch.autograd.grad(ak.attention(*leaves, mask=ak.Mask.window(3), backend="torch:tiled"), leaves, back)
        for leaves in (scaled, plain)
    )
    for one, other, factor in zip(found, expected, (1e-25, 1e25, 1), strict=True):
        torch.testing.assert_close(one * factor, other)


def test_rows_without_keys_are_constant() -> None:
    leaves = arrays()
    output, lse = ak.attention_with_lse(*leaves, query_lengths=0, backend="torch:tiled")
    for found in torch.autograd.grad((output, lse), leaves, (torch.ones_like(output), torch.ones_like(lse))):
        assert not found.any()


def test_gradients_through_the_lse_alone() -> None:
    leaves = arrays()
    lse = ak.attention_with_lse(*leaves, mask=CAUSAL, backend="torch:tiled").lse
    found = torch.autograd.grad(lse.sum(), leaves)
    expected = torch.autograd.grad(
        ak.attention_with_lse(*leaves, mask=CAUSAL, backend="torch:dense").lse.sum(), leaves, materialize_grads=True
    )
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)


def test_one_input_alone() -> None:
    query, key, value = (tensor.detach() for tensor in arrays())
    key.requires_grad_()
    ak.attention(query, key, value, backend="torch:tiled").sum().backward()
    assert key.grad is not None
    assert query.grad is None


@pytest.mark.parametrize("name", ["bias", "alibi", "sinks"])
def test_terms_alone(name: str) -> None:
    query, key, value = (tensor.detach() for tensor in arrays())
    (term,) = draw((4, 1, 1) if name == "bias" else (4,))
    ak.attention(query, key, value, **{name: term}, backend="torch:tiled").sin().sum().backward()
    assert term.grad is not None
    assert (name == "bias") == bool(term.grad.abs().max() < 1e-12)  # a bias of whole rows changes nothing


def test_no_graph_where_gradients_are_off() -> None:
    with torch.no_grad():
        assert ak.attention(*arrays(), backend="torch:tiled").grad_fn is None


def test_gradients_of_gradients_are_refused() -> None:
    leaves = arrays()
    output = ak.attention(*leaves, backend="torch:tiled")
    (first,) = torch.autograd.grad(output.sum(), leaves[0], create_graph=True)
    with pytest.raises(RuntimeError, match="torch:dense has those of any order"):
        torch.autograd.grad(first.sum(), leaves[0])


def test_function_transforms() -> None:
    query, key, value = (tensor.detach() for tensor in arrays())

    def loss(*tensors: torch.Tensor) -> torch.Tensor:
        return ak.attention(*tensors, mask=CAUSAL, backend="torch:tiled").sin().sum()

    found = torch.func.grad(loss, argnums=(0, 1, 2))(query, key, value)
    leaves = [tensor.clone().requires_grad_() for tensor in (query, key, value)]
    for one, other in zip(found, torch.autograd.grad(loss(*leaves), leaves), strict=True):
        assert torch.equal(one, other)
