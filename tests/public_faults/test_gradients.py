"""Gradients of empty rows, of every shape and type of bias, and from run to run (A7, A14, A16)."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import ml_dtypes
import numpy as np
import pytest
import torch

import attnkit as ak

FLOATS = [np.float16, ml_dtypes.bfloat16, np.float32, np.float64]
KEEP = np.array([[1, 0, 0], [1, 1, 0], [0, 0, 0]], bool)
WAYS = {
    "dense": {"mask": ak.Mask.dense(KEEP)},
    "bias": {"bias": np.where(KEEP, 0, -np.inf).astype(np.float32)},
    "lengths": {"mask": ak.Mask.causal(), "query_lengths": 2, "kv_lengths": 2},
    "documents": {"mask": ak.Mask.causal() & ak.Mask.documents([0, 0, 1], [0, 0, 2])},
}


@pytest.fixture
def many_threads() -> Iterator[None]:
    """Give torch threads to disagree with each other, whatever the environment says."""
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    yield
    torch.set_num_threads(before)


def dead(gradients, lab, *, row: int, key: int) -> None:
    """Make sure that a row without keys, and a key that nobody sees, have gradients of exactly 0."""
    for name, place in {"query": row, "key": key, "value": key}.items():
        lab.same_bits(gradients[name][..., place, :], np.zeros_like(gradients[name][..., place, :]))


@pytest.mark.fault("pytorch/pytorch#41508")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dtype", FLOATS, ids=lambda dtype: np.dtype(dtype).name)
def test_an_empty_row_outside_of_the_loss(differentiate, lab, way, dtype) -> None:
    """Rows of NaN were sliced away before the loss; the slice sends 0 back, and 0 * NaN made all gradients NaN."""
    in_loss = np.array([1, 1, 0])[:, None]
    found = differentiate.checked(*lab.draw(1, 2, 3, 3, dtype=dtype), cotangent=in_loss, **WAYS[way])
    dead(found, lab, row=2, key=2)


@pytest.mark.fault("Xilinx/brevitas#1591")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kv_heads", [1, 2])
def test_an_empty_row_inside_of_the_loss(differentiate, lab, way, kv_heads) -> None:
    """NaN was made 0 after the softmax, which mended the output and not the gradient."""
    arrays = lab.draw(2, 2, 3, 3, kv_heads=kv_heads)
    dead(differentiate.checked(*arrays, cotangent=np.ones(1), **WAYS[way]), lab, row=2, key=2)
    everything = ak.Mask.dense(np.zeros((3, 3), bool))
    for gradient in differentiate(*arrays, cotangent=np.ones(1), mask=everything).values():
        assert not gradient.any()


@pytest.mark.fault("Xilinx/brevitas#1591")
def test_padding_has_gradients_of_zero(differentiate, lab) -> None:
    """The same where the dead row and key hold NaN, or the loss sends NaN back to that row."""
    arrays, sent = lab.draw(1, 2, 3, 3), np.ones((3, 1))
    expected = differentiate(*arrays, cotangent=sent, **WAYS["lengths"])
    for array in (*arrays, sent):
        array[..., 2, :] = np.nan
        found = differentiate(*arrays, cotangent=sent, **WAYS["lengths"])
        for name, gradient in found.items():
            lab.same_bits(gradient, expected[name])


@pytest.mark.fault("jax-ml/jax#30593")
def test_the_gradient_of_a_bias_of_every_shape(differentiate, lab) -> None:
    """A bias with one entry for all sequences had a gradient for batches of 1 only."""
    arrays, rng = lab.draw(3, 2, 2, 4, kv_heads=1), np.random.default_rng(1)
    cotangent = rng.standard_normal((3, 2, 2, 8)).astype(np.float32)
    for shape in [*product((1, 3), (1, 2), (1, 2), (1, 4)), (2, 2, 4), (1, 2, 1), (2, 4), (1, 4), (2, 1), (4,)]:
        bias = rng.standard_normal(shape).astype(np.float32)
        found = differentiate.checked(*arrays, cotangent=cotangent, bias=bias)
        assert found["bias"].shape == shape


@pytest.mark.fault("jax-ml/jax#30593")
def test_gradients_are_refused_where_they_are_not_declared() -> None:
    """The same report: the refusal came from inside a transformation, far from the call."""
    x, bias = torch.ones(1, 1, 2, 2), torch.zeros(2, 2, requires_grad=True)
    for needing in ({"query": x.clone().requires_grad_()}, {"bias": bias}):
        with pytest.raises(ak.UnsupportedError, match="grad must be absent, got given"):
            ak.attention(**{"query": x, "key": x, "value": x, **needing}, backend="numpy")


@pytest.mark.fault("jax-ml/jax#32242")
@pytest.mark.parametrize("bias_dtype", FLOATS, ids=lambda dtype: f"bias-{np.dtype(dtype).name}")
@pytest.mark.parametrize("dtype", FLOATS, ids=lambda dtype: np.dtype(dtype).name)
def test_the_gradients_beside_a_bias_of_another_type(differentiate, lab, dtype, bias_dtype) -> None:
    """A float32 bias beside bfloat16 inputs was described with the wrong type, and the gradients were NaN."""
    x, _, _ = lab.draw(1, 2, 4, 4, dtype=dtype)
    bias = np.linspace(-2, 2, 16).reshape(4, 4).astype(bias_dtype)
    cotangent = np.linspace(-1, 1, 32).reshape(4, 8).astype(dtype)
    differentiate.checked(x, x, x, cotangent=cotangent, bias=bias)


@pytest.mark.fault("Dao-AILab/flash-attention#414")
@pytest.mark.parametrize(("dtype", "extras"), [(np.float32, False), (ml_dtypes.bfloat16, True)], ids=["plain", "all"])
def test_gradients_from_run_to_run(differentiate, lab, many_threads, dtype, extras) -> None:
    """Partial sums of one gradient were added in the order in which they were ready; the others were stable."""
    assert differentiate.declared.deterministic
    arrays, rng = lab.draw(2, 4, 300, 300, kv_heads=2, dtype=dtype), np.random.default_rng(2)
    options = {"mask": ak.Mask.causal(), "cotangent": rng.standard_normal((2, 4, 300, 8))}
    if extras:
        options |= {"bias": rng.standard_normal((4, 1, 300)), "sinks": rng.standard_normal(4)}
    first = differentiate(*arrays, **options)
    for _ in range(19):
        for name, gradient in differentiate(*arrays, **options).items():
            lab.same_bits(gradient, first[name])
