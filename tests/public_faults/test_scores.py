"""Scale, soft-cap, windows, ALiBi and element types: what happens to a score on its way (A1, A2, A4, A11, A12)."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import attnkit as ak

CAUSAL = ak.Mask.causal()


def column(*numbers: float, dtype=np.float32):
    return np.array(numbers, dtype).reshape(1, 1, -1, 1)


@pytest.mark.fault("huggingface/transformers#39408")
def test_a_window_counts_the_token_itself(attend, lab) -> None:
    """A window that counts the current token met a kernel that counts those before it: one key too many."""
    lab.close(attend.weights(6, 6, mask=CAUSAL & ak.Mask.window(3))[5], [0, 0, 0, 1 / 3, 1 / 3, 1 / 3])
    for size in (1, 2, 5, 6, 7):
        for mask in (CAUSAL & ak.Mask.window(size), ak.Mask.window(size)):
            seen = (attend.weights(6, 6, mask=mask) > 0).sum(axis=1)
            assert seen.tolist() == [min(row + 1, size) for row in range(6)]


@pytest.mark.fault("unslothai/unsloth#8253")
def test_the_special_windows(attend, lab) -> None:
    """A window of 0 was none to one part, nothing or the token itself to others."""
    for size in (0, -1):
        with pytest.raises(ak.ShapeError, match=f"left must be >= 1 or None for unlimited, got {size}"):
            ak.Mask.window(size)
    unlimited = attend.weights(4, 4, mask=CAUSAL & ak.Mask.window(None))
    lab.same_bits(unlimited, attend.weights(4, 4, mask=CAUSAL))


@pytest.mark.fault("Dao-AILab/flash-attention#1116")
def test_a_negative_right_window_is_refused(attend, lab) -> None:
    """A negative right window was taken as unlimited."""
    with pytest.raises(ak.ShapeError, match="right must be >= 0 or None for unlimited, got -3"):
        ak.Mask.window(None, -3)
    lab.close(attend.weights(2, 3, mask=ak.Mask.window(1, None)), [[0, 1 / 2, 1 / 2], [0, 0, 1]])


@pytest.mark.fault("tlc-pack/libflash_attn#11")
def test_a_window_longer_than_the_context(attend, lab) -> None:
    """A window that reached past the context was switched off, and causal with it."""
    query, key, value = lab.draw(1, 2, 4, 4)
    mask = CAUSAL & ak.Mask.window(16)
    before = attend(query, key, value, mask=mask).output
    lab.close(before, attend(query, key, value, mask=CAUSAL).output)
    key[:, :, 3] += 9
    value[:, :, 3] += 9
    lab.same_bits(attend(query, key, value, mask=mask).output[:, :, :3], before[:, :, :3])


@pytest.mark.fault("onnx/onnx#7865")
def test_the_cap_comes_before_the_mask(attend, lab) -> None:
    """The specification capped after masking, which made -cap of -inf and gave hidden keys weight."""
    query, key, _ = lab.level(4, 6)
    value = np.broadcast_to(column(1, 1, 1, 1, 1000, 1000), (1, 1, 6, 1))
    keep = np.arange(6) < 4
    bias = np.where(keep, 0, -np.inf).astype(np.float32)[None]
    for hidden in ({"mask": ak.Mask.dense(keep[None])}, {"bias": bias}, {"kv_lengths": 4}):
        lab.close(attend(query, key, value, softcap=0.5, **hidden).output, np.ones((1, 1, 4, 1)))
    bias = np.array([[0, 2, -3]], np.float32)
    expected = np.exp(bias) / np.exp(bias).sum()
    lab.close(attend.weights(1, 3, softcap=0.5, bias=bias), expected)


@pytest.mark.fault("unslothai/unsloth-zoo#593")
def test_the_cap_is_a_cap(attend, lab) -> None:
    """x * tanh(x / cap) stood where cap * tanh(x / cap) belongs: nothing was capped beyond twice the cap."""
    for score, capped in ((124, 29.984583), (-124, -29.984583), (1e30, 30), (3, 2.990039)):
        lab.close(attend(column(1), column(score), column(1), scale=1, softcap=30).lse, [[[capped]]], 1e-5)


@pytest.mark.fault("pytorch/pytorch#105202")
def test_any_finite_scale(attend, lab) -> None:
    """Query and key were each multiplied by the root of the scale: NaN for a negative one."""
    query, key, value = column(1), column(0, 2), np.eye(2, dtype=np.float32)[None, None]
    lab.close(attend(query, key, value, scale=-0.5).output, [[[[0.731059, 0.268941]]]])
    for scale in (None, 1, -0.5, 0, 1e-4, 16, 1e-300, -16):
        found = attend.checked(query, key, value, scale=scale)
        odds = np.exp(-2.0 * (1 if scale is None else scale))
        lab.close(found.output, [[[[odds / (1 + odds), 1 / (1 + odds)]]]])
    lab.close(attend.weights(3, 3, scale=0, mask=CAUSAL), np.tri(3) / np.array([[1], [2], [3]]))


@pytest.mark.fault("pytorch/pytorch#184122")
def test_a_plan_is_not_reused_for_another_scale(attend, lab) -> None:
    """A compiled graph was cached without its scale, and the second call used the first one's."""
    query, value = np.ones((1, 1, 1, 4), np.float32), np.eye(2, dtype=np.float32)[None, None]
    key = np.stack([np.zeros(4), np.ones(4)]).astype(np.float32)[None, None]
    for _ in range(2):
        lab.close(attend(query, key, value).output, [[[[0.119203, 0.880797]]]])
        lab.close(attend(query, key, value, scale=2.0).output, [[[[0.000335, 0.999665]]]])
        lab.close(attend(query, key, value, scale=2.0, softcap=2.0).output, [[[[0.119344, 0.880656]]]])


@pytest.mark.fault("pytorch/pytorch#60939")
def test_float16_products_beyond_its_range(attend, lab) -> None:
    """In float16 q.k was infinite before it was scaled, and the softmax NaN."""
    query, key = (np.full((1, 1, rows, 64), 60, np.float16) for rows in (1, 2))
    output, lse = attend(query, key, column(1, 3, dtype=np.float16))
    lab.close(output, [[[[2]]]])
    lab.close(lse, [[[28800 + np.log(2)]]], 0.01)


@pytest.mark.fault("PaddlePaddle/Paddle#41933")
@pytest.mark.parametrize("rows", [1, 3])
def test_float16_scaled_inside_the_product(attend, lab, rows) -> None:
    """The factor inside the matrix product was applied after its float16 result had overflowed."""
    query, key = (np.full((1, 1, size, 192), 24, np.float16) for size in (rows, 5))
    attend.checked(query, key, lab.draw(1, 1, 1, 5, dtype=np.float16)[2])


@pytest.mark.fault("pytorch/pytorch#121558")
@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float32])
def test_a_single_key_gives_its_value(attend, lab, dtype) -> None:
    """Huge bfloat16 inputs gave NaN on one path of three."""
    large = np.full((1, 1, 1, 64), 133120, dtype)
    lab.same_bits(attend(large, large, large).output, large)
    lab.same_bits(attend(large, -large, large).output, large)


@pytest.mark.fault("numpy/numpy#10899")
@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64])
def test_sums_of_small_types(attend, lab, dtype) -> None:
    """einsum added the bits of a float16 sum as an integer: 2.0 became 32770."""
    query, key = np.ones((1, 1, 1, 2), dtype), np.eye(2, dtype=dtype)[None, None]
    output, lse = attend(query, key, column(2, 4, dtype=dtype), scale=1)
    lab.close(output, [[[[3]]]])
    lab.close(lse, [[[1.693147]]])
    assert output.dtype == np.dtype(dtype)
    assert lse.dtype == (np.float64 if dtype is np.float64 else np.float32)


@pytest.mark.fault("numpy/numpy#25098")
def test_a_number_promotes_no_array(attend, lab) -> None:
    """NumPy 2 lets a float64 scalar promote float32 arrays, and a Python float not."""
    for dtype in (np.float16, ml_dtypes.bfloat16, np.float32):
        arrays = lab.draw(1, 2, 2, 3, dtype=dtype)
        expected = attend(*arrays, scale=0.125, softcap=4.0)
        for kind in (np.float16, np.float32, np.float64):
            found = attend(*arrays, scale=kind(0.125), softcap=kind(4))
            lab.same_bits(found.output, expected.output)
            lab.same_bits(found.lse, expected.lse)
        wide = np.linspace(0, 1, 6).reshape(2, 3)
        assert attend.checked(*arrays, bias=wide, alibi=wide[:, 1], sinks=wide[:, 0]).lse.dtype == np.float32
    with pytest.raises(ak.DTypeError, match="scale must be a real number or None, got ndarray"):
        attend(*arrays, scale=np.array(0.125))


@pytest.mark.fault("numpy/numpy#25098")
@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32])
def test_a_number_promotes_no_array_of_the_backend(attend, lab, dtype) -> None:
    """The same with arrays of the backend's own library, whose scalars are not NumPy's."""
    own, numpy = attend.backend.from_numpy, attend.backend.to_numpy
    arrays = [own(array) for array in lab.draw(1, 2, 2, 3, dtype=dtype)]
    expected = attend(*arrays, scale=0.125, softcap=4.0)
    assert (expected.output.dtype, expected.lse.dtype) == (arrays[0].dtype, own(np.zeros(1, np.float32)).dtype)
    for number in (int, np.float16, np.float32, np.float64):
        found = attend(*arrays, scale=number(1) / 8, softcap=number(4))
        lab.same_bits(numpy(found.output), numpy(expected.output))
        lab.same_bits(numpy(found.lse), numpy(expected.lse))
    with pytest.raises(ak.DTypeError, match="scale must be a real number or None"):
        attend(*arrays, scale=own(np.array(0.125)))


@pytest.mark.fault("ml-explore/mlx#343")
def test_the_published_slopes() -> None:
    """One geometric formula served every head count; the published rule differs where it is no power of two."""
    assert ak.alibi_slopes(6).tolist() == [0.25, 0.0625, 0.015625, 0.00390625, 0.5, 0.125]
    for heads in range(1, 17):
        lower = max(power for power in (1, 2, 4, 8, 16) if power <= heads)
        base = [2 ** (-8 * h / lower) for h in range(1, lower + 1)]
        more = [2 ** (-4 * h / lower) for h in range(1, 2 * lower + 1, 2)]
        np.testing.assert_allclose(ak.alibi_slopes(heads), (base + more)[:heads], rtol=1e-6)


@pytest.mark.fault("keras-team/keras-hub#2861")
def test_alibi_while_decoding(path, attend, lab) -> None:
    """The bias was built for as many keys as queries: a decoding query got no ALiBi at all."""
    slope, expected = np.array([0.5], np.float32), [0.058012, 0.095646, 0.157694, 0.259993, 0.428656]
    lab.close(attend.weights(1, 5, alibi=slope), [expected])
    query, key, value = lab.level(5, 5)
    whole = attend(query, key, value, alibi=slope, mask=CAUSAL).output
    lab.close(whole[0, 0, 4], expected)
    cache = ak.make_cache(ak.KVCacheConfig(num_kv_heads=1, head_dim=2, value_dim=5), backend=path)
    for token in range(5):
        now = slice(token, token + 1)
        cache[0].append(key[:, :, now], value[:, :, now])
        lab.close(cache[0].attend(query[:, :, now], alibi=slope, mask=CAUSAL), whole[:, :, now])
