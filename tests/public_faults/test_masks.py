"""A mask is applied, never dropped, and means the same whatever its form, its neighbours and its shape (A2-A6, A18)."""

from __future__ import annotations

from itertools import permutations, product

import ml_dtypes
import numpy as np
import pytest

import attnkit as ak

CAUSAL = ak.Mask.causal()
LOWEST = np.finfo(np.float32).min
FLOATS = [np.float16, ml_dtypes.bfloat16, np.float32, np.float64]
EXTRAS = {
    "plain": {},
    "scale": {"scale": 0.3},
    "softcap": {"softcap": 2.0},
    "bias": {"bias": np.linspace(-1, 1, 25, dtype=np.float32).reshape(5, 5)},
    "alibi": {"alibi": np.array([0.5, 0.25], np.float32)},
    "sinks": {"sinks": np.array([0.5, -1], np.float32)},
    "lengths": {"query_lengths": 5, "kv_lengths": 5},
    "offsets": {"query_offset": 7, "key_offset": 7},
}


@pytest.mark.fault("keras-team/keras#23038")
@pytest.mark.parametrize("extra", EXTRAS)
@pytest.mark.parametrize("kv_heads", [1, 2])
@pytest.mark.parametrize("axes", [0, 1])
def test_no_option_turns_causal_off(attend, lab, extra, kv_heads, axes) -> None:
    """Asking for weights, dropout or 3-D inputs left the fused path, which alone knew the causal mask."""
    query, key, value = (array[(0,) * axes] for array in lab.draw(1, 2, 5, 5, kv_heads=kv_heads))
    options = {"mask": CAUSAL, **EXTRAS[extra]}
    before, plain = attend(query, key, value, **options), attend.output(query, key, value, **options)
    key[..., 4, :] += 100
    value[..., 4, :] -= 100
    after = attend(query, key, value, **options)
    lab.same_bits(after.output[..., :4, :], before.output[..., :4, :])
    lab.same_bits(after.lse[..., :4], before.lse[..., :4])
    lab.same_bits(attend.output(query, key, value, **options)[..., :4, :], plain[..., :4, :])


@pytest.mark.fault("pytorch/pytorch#195910")
@pytest.mark.parametrize("dtype", FLOATS, ids=lambda dtype: np.dtype(dtype).name)
def test_causal_at_every_row_in_every_type(attend, lab, dtype) -> None:
    """One mask served four rows of queries, in the 16-bit types only: three of four saw the future."""
    query, key, value = lab.draw(1, 4, 64, 64, head_dim=64, dtype=dtype)
    before = attend(query, key, value, mask=CAUSAL)
    for token in (1, 2, 3, 5, 63):
        key, value = key.copy(), value.copy()
        key[:, :, token] += 50
        value[:, :, token] -= 50
        after = attend(query, key, value, mask=CAUSAL)
        lab.same_bits(after.output[:, :, :token], before.output[:, :, :token])
        lab.same_bits(after.lse[:, :, :token], before.lse[:, :, :token])
        assert (after.output[:, :, token] != before.output[:, :, token]).any()
        before = after


class _Simplest(ak.Backend):
    """Someone's first backend: a function that computes, and nothing declared."""

    name = "simplest"

    def capabilities(self) -> ak.Capabilities:
        return ak.Capabilities()

    def attention(self, query, key, value, operands, request) -> ak.AttentionOutput:
        shown = np.broadcast_to(request.visible(operands), (*query.shape[:3], key.shape[2]))
        return ak.AttentionOutput((shown / shown.sum(axis=-1, keepdims=True)).astype(query.dtype) @ value)

    def from_numpy(self, array):
        return array.copy()

    to_numpy = from_numpy


@pytest.mark.fault("huggingface/transformers#45811")
def test_a_backend_that_declares_nothing(lab) -> None:
    """A custom attention function without a mask builder beside it was called without any mask."""
    query, key, value = lab.level(3, 4)
    arrays = query, key[..., :3, :], value[..., :3, :3]
    backend = _Simplest()
    with pytest.raises(ak.UnsupportedError, match=r"simplest: value_dim must be head_dim \(2\), got 3"):
        ak.attention(*arrays, mask=CAUSAL, backend=backend)
    square = np.zeros((1, 1, 3, 3), np.float32), np.zeros((1, 1, 3, 3), np.float32), arrays[2]
    expected = [[1, 0, 0], [1 / 2, 1 / 2, 0], [1 / 3] * 3]
    lab.close(ak.attention(*square, mask=CAUSAL, backend=backend)[0, 0], expected)
    with pytest.raises(ak.UnsupportedError, match=r"simplest: mask\.window must be absent, got given"):
        ak.attention(*square, mask=CAUSAL & ak.Mask.window(2), backend=backend)


@pytest.mark.fault("flashinfer-ai/flashinfer#1028")
def test_a_call_keeps_nothing_of_the_one_before(attend, lab) -> None:
    """A reusable object kept the custom mask of its last call and applied it to the next, which was causal."""
    arrays = lab.draw(1, 2, 4, 4)
    keep = np.random.default_rng(1).random((2, 4, 4)) < 0.6
    documents = ak.Mask.documents([0, 1, 0, 1], [1, 1, 1, 1])
    masks = [None, CAUSAL, ak.Mask.dense(keep), ak.Mask.dense(~keep), ak.Mask.window(2), documents]
    alone = [attend.checked(*arrays, mask=mask).output for mask in masks]
    for first, second in permutations(range(len(masks)), 2):
        for number in (first, second):
            lab.same_bits(attend(*arrays, mask=masks[number]).output, alone[number])


@pytest.mark.fault("pytorch/pytorch#170400")
def test_true_means_keep(path, attend, lab) -> None:
    """Two functions of one library read a boolean mask in opposite senses, and padding was attended to."""
    arrays, mask, expected = lab.level(1, 3), ak.Mask.dense([[True, True, False]]), [[1 / 2, 1 / 2, 0]]
    assert mask.as_array(1, 3).tolist() == [[True, True, False]]
    lab.close(attend.weights(1, 3, mask=mask), expected)
    for axes in range(3):
        cut = [array[(0,) * axes] for array in arrays]
        found = attend.output(*cut, mask=mask)
        lab.close(found.reshape(1, 3), expected)
    cache = ak.make_cache(ak.KVCacheConfig(num_kv_heads=1, head_dim=2, value_dim=3), backend=path)
    cache[0].append(*arrays[1:])
    lab.close(attend.only_if_taken(lambda: cache[0].attend(arrays[0], mask=mask))[0, 0], expected)
    config = ak.AttentionConfig(num_heads=1, head_dim=3, mask=mask)
    eye, nothing = np.eye(3, dtype=np.float32), np.zeros((3, 3), np.float32)
    module = ak.MultiHeadAttention(config, nothing, nothing, eye, eye, backend=path)
    lab.close(attend.only_if_taken(lambda: module(eye[:1], eye)), expected)


@pytest.mark.fault("huggingface/transformers#38094")
def test_an_additive_mask_is_no_boolean(attend, lab) -> None:
    """An additive mask, 0 for keep, was cast to booleans, which turned it round."""
    for additive in ([[0, 0, LOWEST]], [[0, 0, -np.inf]]):
        additive = np.array(additive, np.float32)
        lab.close(attend.weights(1, 3, bias=additive), [[1 / 2, 1 / 2, 0]])
        with pytest.raises(ak.DTypeError, match=r"True = keep, got float32.*bias="):
            ak.Mask.dense(additive)
    with pytest.raises(ak.DTypeError, match=r"dense needs booleans.*got int64"):
        ak.Mask.dense([[1, 1, 0]])


@pytest.mark.fault("pytorch/pytorch#107084")
@pytest.mark.parametrize("dtype", FLOATS, ids=lambda dtype: np.dtype(dtype).name)
def test_a_bias_keeps_its_values(attend, lab, dtype) -> None:
    """A fast path for inference took any float mask for a boolean one and lost its values."""
    query, key, value = lab.level(1, 2, dtype=dtype)
    output = attend(query, key, value, bias=np.array([[0.5, -0.5]], np.float32)).output
    lab.close(output, [[[[0.731059, 0.268941]]]], np.float64(ml_dtypes.finfo(dtype).eps) + 1e-6)


@pytest.mark.fault("pytorch/pytorch#191612")
@pytest.mark.parametrize("bias_dtype", FLOATS, ids=lambda dtype: f"bias-{np.dtype(dtype).name}")
@pytest.mark.parametrize("dtype", FLOATS, ids=lambda dtype: np.dtype(dtype).name)
def test_a_bias_of_another_type(attend, lab, dtype, bias_dtype) -> None:
    """The bits of a float32 mask beside float16 queries were read as float16."""
    arrays = lab.draw(1, 2, 8, 32, dtype=dtype)
    bias = np.where(np.tri(8, 32, 24, dtype=bool), np.linspace(-2, 2, 32), -np.inf).astype(bias_dtype)
    attend.checked(*arrays, bias=bias)


@pytest.mark.fault("pytorch/pytorch#184180")
def test_a_mask_may_broadcast_along_any_axis(attend, lab) -> None:
    """A mask with a batch but one head was indexed as if it were whole, and other heads got other rows."""
    query, key, value = (array.repeat(4, axis=1).repeat(2, axis=0) for array in lab.level(8, 8))
    full, rng = (2, 4, 8, 8), np.random.default_rng(0)
    shapes = product(*((1, size) for size in full))
    for shape in [*shapes, (8, 8), (1, 8), (8, 1), (4, 8, 8), (1, 8, 8), (4, 1, 8)]:
        keep = rng.random(shape) < 0.6
        whole = np.broadcast_to(keep, full)
        expected = whole / np.maximum(whole.sum(axis=-1, keepdims=True), 1)
        lab.close(attend(query, key, value, mask=ak.Mask.dense(keep)).output, expected)
        bias = np.where(keep, 0, -np.inf).astype(np.float32)
        lab.close(attend(query, key, value, bias=bias).output, expected)


@pytest.mark.fault("jax-ml/jax#28974")
def test_a_padding_mask_alone(attend, lab) -> None:
    """A mask ``[B, 1, 1, S]`` was refused with words about a bias that nobody had passed."""
    arrays = lab.draw(4, 4, 2, 32)
    keep = (np.arange(32) < np.array([32, 1, 7, 0])[:, None])[:, None, None]
    found = attend.checked(*arrays, mask=ak.Mask.dense(keep))
    lab.close(found.output, attend(*arrays, kv_lengths=np.array([32, 1, 7, 0])).output)
    with pytest.raises(ak.ShapeError, match=r"mask\.dense must broadcast to \[B, H, T, S\] = \[4, 4, 2, 32\]"):
        attend(*arrays, mask=ak.Mask.dense(keep[..., 1:]))


@pytest.mark.fault("pytorch/pytorch#187801")
def test_masks_are_joined_by_and(attend, lab) -> None:
    """A mask beside the causal flag was an error by the manual, joined by some paths and refused by others."""
    keep = ak.Mask.dense([[True, True, True], [False, True, True], [True, True, True]])
    for mask in (CAUSAL & keep, keep & CAUSAL):
        lab.close(attend.weights(3, 3, mask=mask), [[1, 0, 0], [0, 1, 0], [1 / 3, 1 / 3, 1 / 3]])
