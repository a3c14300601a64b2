"""The oracle's gradients, against finite differences of the oracle itself, and against another library's.

Axes: ``B`` batch, ``H`` query heads, ``K`` key/value heads, ``T`` query length, ``S`` key length, ``D`` query/key head
size, ``E`` value head size.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from attnkit.numerics import STRICT_FP32
from attnkit.reference import attention, streaming_attention
from attnkit.reference_gradients import Cotangents, Gradients, gradient_tolerance, gradients

B, H, K, T, S, D, E = 2, 4, 2, 3, 5, 3, 2
INF = math.inf
CAUSAL = ("causal",)
NAMES = ("query", "key", "value", "bias", "sinks")
SINKS = np.array([0.5, -INF, 2.0, -1.0])


def draw(seed: int = 0, shape: tuple[int, ...] = (B, H, K, T, S, D, E)) -> tuple[dict[str, Any], Cotangents]:
    """Draw query, key and value, and cotangents."""
    batch, heads, kv_heads, rows, keys, head_dim, value_dim = shape
    rng = np.random.default_rng(seed)
    inputs = {
        "query": rng.standard_normal((batch, heads, rows, head_dim)),
        "key": rng.standard_normal((batch, kv_heads, keys, head_dim)),
        "value": rng.standard_normal((batch, kv_heads, keys, value_dim)),
    }
    output, lse = rng.standard_normal((batch, heads, rows, value_dim)), rng.standard_normal((batch, heads, rows))
    return inputs, Cotangents(output, lse)


def floats(*shape: int) -> Any:
    return np.random.default_rng(shape).standard_normal(shape)


OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "scale": {"scale": -0.3},
    "no scale": {"scale": 0.0},
    "softcap": {"softcap": 0.7},
    "causal": {"mask": [CAUSAL]},
    "joined masks": {"mask": [CAUSAL, ("window", 3, 0), ("dense", floats(B, H, T, S) < 0.5)]},
    "documents": {"mask": [("documents", [0, 1, 2], [[0, 0, 1, 1, 1], [1, 0, 0, 0, 0]])]},
    "lengths": {"mask": [CAUSAL], "kv_lengths": [4, 2], "query_lengths": [2, 3]},
    "no keys": {"kv_lengths": [0, 3]},
    "offsets": {"mask": [CAUSAL], "query_offset": -1},
    "bias": {"bias": floats(B, H, T, S)},
    "bias of keys": {"bias": floats(S)},
    "bias of rows": {"bias": floats(T, 1)},
    "bias of heads": {"bias": floats(1, H, 1, 1)},
    "bias of sequences": {"bias": floats(B, 1, T, S)},
    "bias that hides": {"bias": np.where(floats(H, T, S) > 0, floats(H, T, S), -INF)},
    "alibi": {"alibi": [0.5, 0.25, 0.125, 2.0]},
    "sinks": {"sinks": SINKS},
    "sinks of empty rows": {"sinks": SINKS, "mask": [CAUSAL], "query_offset": -2},
    "everything": {
        "mask": [CAUSAL, ("window", 3, 0)],
        "scale": 0.9,
        "softcap": 1.5,
        "bias": floats(H, 1, S),
        "alibi": 0.5 * np.ones(H),
        "sinks": SINKS,
        "kv_lengths": 4,
    },
}
MATRIX = pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())


def loss(arguments: dict[str, Any], cotangents: Cotangents) -> float:
    truth = attention(**arguments)
    finite = np.where(truth.lse > -INF, truth.lse, 0)
    return float((cotangents.output * truth.output).sum() + (cotangents.lse * finite).sum())


def slope(arguments: dict[str, Any], cotangents: Cotangents, name: str, direction: Any) -> float:
    """Differentiate along a direction by central differences of two steps, whose errors of second order cancel."""

    def rise(step: float) -> float:
        ahead, behind = (arguments | {name: arguments[name] + sign * step * direction} for sign in (1, -1))
        return (loss(ahead, cotangents) - loss(behind, cotangents)) / (2 * step)

    return (4 * rise(5e-4) - rise(1e-3)) / 3


@MATRIX
def test_agrees_with_finite_differences(options: dict[str, Any]) -> None:
    inputs, cotangents = draw(1)
    arguments = inputs | options
    found = gradients(attention(**arguments), cotangents)
    rng = np.random.default_rng(2)
    for name in NAMES:
        for _ in range(3 if name in arguments else 0):
            direction = rng.standard_normal(np.shape(arguments[name]))
            assert np.shape(arguments[name]) == getattr(found, name).shape
            expected = slope(arguments, cotangents, name, direction)
            assert (getattr(found, name) * direction).sum() == pytest.approx(expected, rel=1e-9, abs=1e-9)


@MATRIX
def test_agrees_with_automatic_differentiation(options: dict[str, Any]) -> None:
    """Only scores and softmax are written anew in torch; who sees whom is the oracle's."""
    torch = pytest.importorskip("torch", reason="the core is also tested without torch, which is an extra")
    inputs, cotangents = draw(3)
    truth = attention(**inputs, **options)
    problem = truth.problem
    given = {name: options[name] for name in ("bias", "sinks") if name in options}
    leaves = {name: torch.tensor(array, requires_grad=True) for name, array in (inputs | given).items()}
    key, value = (leaves[name].repeat_interleave(H // K, dim=1) for name in ("key", "value"))
    scores = problem.scale * leaves["query"] @ key.mT
    if problem.softcap:
        scores = problem.softcap * torch.tanh(scores / problem.softcap)
    rows, keys = np.arange(T)[:, None], np.arange(S)
    distance = abs((problem.query_offset - problem.key_offset)[:, None, None, None] + rows - keys)
    scores = scores + leaves.get("bias", 0) - torch.tensor(problem.slopes[:, :, None, None] * distance)
    scores = torch.where(torch.tensor(problem.shown), scores, -INF)
    sinks = leaves.get("sinks", torch.full((H,), -INF, dtype=torch.float64))[:, None, None].expand(B, H, T, 1)
    everything = torch.cat([scores, sinks], dim=-1)
    full = torch.tensor(truth.lse > -INF)
    everything = torch.where(full[..., None], everything, 0.0)  # an empty row depends on nothing
    weights = torch.where(full[..., None], torch.softmax(everything, dim=-1), 0.0)
    lse = torch.where(full, torch.logsumexp(everything, dim=-1), 0.0)
    output = weights[..., :-1] @ value
    np.testing.assert_allclose(output.detach(), truth.output, rtol=0, atol=1e-14)
    loss = (torch.tensor(cotangents.output) * output).sum() + (torch.tensor(cotangents.lse) * lse).sum()
    found = gradients(truth, cotangents)
    expected = torch.autograd.grad(loss, list(leaves.values()), materialize_grads=True)
    for name, array in zip(leaves, expected, strict=True):
        np.testing.assert_allclose(getattr(found, name), array, rtol=0, atol=1e-13)


@MATRIX
def test_both_forms_give_the_same(options: dict[str, Any]) -> None:
    inputs, cotangents = draw(4)
    one, other = (gradients(form(**inputs, **options), cotangents) for form in (attention, streaming_attention))
    for name in NAMES:
        np.testing.assert_allclose(getattr(one, name), getattr(other, name), rtol=0, atol=1e-13)


@MATRIX
def test_rows_of_the_bias_add_up_to_the_cotangent_of_the_lse(options: dict[str, Any]) -> None:
    """A number added to all scores of a row moves its log-sum-exp by as much, and nothing else."""
    inputs, cotangents = draw(5)
    bias = np.broadcast_to(options.get("bias", 0.0), (B, H, T, S))
    truth = attention(**inputs, **(options | {"bias": bias, "sinks": None}))
    found = gradients(truth, cotangents)
    expected = np.where(truth.lse > -INF, cotangents.lse, 0)
    np.testing.assert_allclose(found.bias.sum(axis=-1), expected, rtol=0, atol=1e-13)


def test_a_group_adds_up() -> None:
    inputs, cotangents = draw(6)
    grouped = gradients(attention(**inputs, mask=[CAUSAL]), cotangents)
    repeated = {name: np.repeat(inputs[name], H // K, axis=1) for name in ("key", "value")}
    single = gradients(attention(inputs["query"], **repeated, mask=[CAUSAL]), cotangents)
    for name in ("key", "value"):
        summed = getattr(single, name).reshape(B, K, H // K, S, -1).sum(axis=2)
        np.testing.assert_allclose(getattr(grouped, name), summed, rtol=0, atol=1e-13)


def test_one_row_by_hand() -> None:
    """Scores 0 and log 3, so weights 1/4 and 3/4; values 8 and 4, so an output of 5."""
    truth = attention([[[[1.0]]]], [[[[0.0], [math.log(3)]]]], [[[[8.0], [4.0]]]], scale=1.0)
    found = gradients(truth, Cotangents([[[[2.0]]]], [[[10.0]]]))
    scores = [0.25 * (2 * (8 - 5) + 10), 0.75 * (2 * (4 - 5) + 10)]
    assert found.value.ravel().tolist() == pytest.approx([0.5, 1.5])
    assert found.key.ravel().tolist() == pytest.approx(scores)
    assert found.query.item() == pytest.approx(scores[1] * math.log(3))
    assert found.bias.item() == pytest.approx(10)


def test_the_soft_cap_holds_gradients_back() -> None:
    truth = attention([[[[1.0]]]], [[[[0.0], [40.0]]]], [[[[8.0], [4.0]]]], scale=1.0, softcap=1.0)
    found = gradients(truth, Cotangents(1.0))
    assert abs(found.key[0, 0, 0, 0]) > 0.5
    assert found.key[0, 0, 1, 0] == pytest.approx(0, abs=1e-15)
    assert found.query.item() == pytest.approx(0, abs=1e-13)


EMPTY: dict[str, dict[str, Any]] = {
    "before every key": {"mask": [CAUSAL], "query_offset": -T},
    "dense": {"mask": [("dense", np.zeros((1, S), bool))]},
    "bias": {"bias": np.full(S, -INF)},
    "no valid keys": {"kv_lengths": 0},
    "padding": {"query_lengths": 0},
}


@pytest.mark.parametrize("cotangent", [1.0, math.nan, INF])
@pytest.mark.parametrize("options", EMPTY.values(), ids=EMPTY.keys())
def test_nothing_passes_through_empty_rows(options: dict[str, Any], cotangent: float) -> None:
    inputs, _ = draw()
    truth = attention(**inputs, **options)
    for lse in (0.0, cotangent):
        found = gradients(truth, Cotangents(cotangent, lse))
        assert not any(getattr(found, name).any() for name in NAMES)
    sunk = gradients(attention(**inputs, **options, sinks=SINKS), Cotangents(cotangent, 0.25))
    assert not any(getattr(sunk, name).any() for name in NAMES[:4])
    np.testing.assert_array_equal(sunk.sinks, np.where(SINKS > -INF, 0.25 * B * T, 0))


POISONED: dict[str, tuple[dict[str, Any], Any, Any]] = {
    # options, index of the dead rows of the query, index of the dead keys
    "beyond the key length": ({"kv_lengths": 3}, None, np.s_[:, :, 3:]),
    "padding rows": ({"query_lengths": 2}, np.s_[:, :, 2:], None),
    "hidden by a mask": ({"mask": [CAUSAL], "query_offset": 0}, None, np.s_[:, :, 3:]),
    "hidden by a dense mask": ({"mask": [("dense", np.arange(S) != 1)]}, None, np.s_[:, :, 1]),
    "hidden by a bias": ({"bias": np.where(np.arange(S) == 4, -INF, 0.1)}, None, np.s_[:, :, 4]),
}


@pytest.mark.parametrize("poison", [math.nan, INF, 1e308])
@pytest.mark.parametrize(("options", "rows", "keys"), POISONED.values(), ids=POISONED.keys())
def test_dead_data_changes_no_bit(poison: float, options: dict[str, Any], rows: Any, keys: Any) -> None:
    (clean, cotangents), (dirty, _) = draw(4), draw(4)
    output = np.array(cotangents.output)
    if rows is not None:
        dirty["query"][rows] = output[rows] = poison
    if keys is not None:
        dirty["key"][keys] = dirty["value"][keys] = poison
    before, after = attention(**clean, **options), attention(**dirty, **options)
    poisoned = Cotangents(output, cotangents.lse)
    pairs: list[tuple[Gradients, Gradients]] = [
        (gradients(before, cotangents), gradients(after, poisoned)),
        (gradient_tolerance(before, cotangents, STRICT_FP32), gradient_tolerance(after, poisoned, STRICT_FP32)),
    ]
    for expected, got in pairs:
        for name in NAMES:
            np.testing.assert_array_equal(getattr(got, name), getattr(expected, name))
    for name, place in (("query", rows), ("key", keys), ("value", keys)):
        assert place is None or not getattr(pairs[0][1], name)[place].any()


@pytest.mark.parametrize(
    "shape", [(0, 4, 2, 3, 5, 3, 2), (2, 4, 2, 0, 5, 3, 2), (2, 4, 2, 3, 0, 3, 2), (2, 0, 0, 3, 5, 3, 2)]
)
def test_empty_axes(shape: tuple[int, ...]) -> None:
    inputs, cotangents = draw(shape=shape)
    truth = attention(**inputs, mask=[CAUSAL], bias=np.zeros((shape[3], shape[4])))
    for found in (gradients(truth, cotangents), gradient_tolerance(truth, cotangents, STRICT_FP32)):
        for name, array in inputs.items():
            assert getattr(found, name).shape == array.shape
        assert found.bias.shape == (shape[3], shape[4])
        assert found.sinks.shape == (shape[1],)
