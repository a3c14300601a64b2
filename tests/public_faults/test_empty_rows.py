"""Rows, sequences and axes without anything in them (A7)."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

import attnkit as ak

CAUSAL = ak.Mask.causal()
LOWEST = np.finfo(np.float32).min


@pytest.mark.fault("pytorch/pytorch#103749")
def test_a_row_that_is_all_false(attend, lab) -> None:
    """Padding as rows of False in a boolean mask gave rows of NaN."""
    query, key, value = np.zeros((1, 1, 6, 8), np.float32), lab.draw(1, 1, 1, 10)[1], lab.level(6, 10)[2]
    keep = np.tri(6, 10, dtype=bool)
    keep[5] = False
    output, lse = attend(query, key, value, mask=ak.Mask.dense(keep), scale=0.125)
    lab.close(output[0, 0, :5], keep[:5] / np.arange(1, 6)[:, None])
    lab.close(lse[0, 0, :5], np.log(np.arange(1, 6)))
    assert not output[0, 0, 5].any()
    assert np.isneginf(lse[0, 0, 5])


@pytest.mark.fault("pytorch/pytorch#110213")
def test_a_very_negative_bias_is_a_number(attend, lab) -> None:
    """A row filled with the most negative finite float gave NaN on one device; only -inf and False take keys away."""
    query, key = (np.array(numbers, np.float32).reshape(1, 1, 3, 1) for numbers in ([1, 1, 0], [0, 1, 2]))
    value = np.array([1, 2, 6], np.float32).reshape(1, 1, 3, 1)
    bias, keep = np.ones((3, 3), np.float32), np.ones((3, 3), bool)
    bias[0], keep[0] = LOWEST, False
    lab.close(attend(query, key, value, scale=1, bias=bias).output[0, 0, :, 0], [3, 4.570933, 3])
    bias[0] = -np.inf
    for hidden in ({"bias": bias}, {"mask": ak.Mask.dense(keep)}):
        output, lse = attend(query, key, value, scale=1, **hidden)
        lab.close(output[0, 0, :, 0], [0, 4.570933, 3])
        assert np.isneginf(lse[0, 0, 0])


@pytest.mark.fault("huggingface/transformers#38690")
def test_an_empty_row_harms_no_later_layer(attend, lab) -> None:
    """NaN rows of padding in one layer became keys and values of the next, and spread from there."""
    query, key, value = lab.draw(1, 2, 4, 4)
    first, second = np.ones((2, 4, 4), bool)
    first[0], second[:, 0] = False, False
    hidden = attend(query, key, value, mask=ak.Mask.dense(first)).output
    output = attend(query, hidden, hidden, mask=ak.Mask.dense(second)).output
    lab.close(output, attend(query, hidden[:, :, 1:], hidden[:, :, 1:]).output)


@pytest.mark.fault("microsoft/onnxruntime#28958")
def test_an_empty_row_is_not_the_mean(attend, lab) -> None:
    """Rows without a key gave the mean of the values, masked scores being large and finite."""
    query, key, value = lab.level(4, 5)
    output, lse = attend(query, key, value + 7, mask=CAUSAL, kv_lengths=2)
    assert not output[0, 0, :2].any()
    assert np.isneginf(lse[0, 0, :2]).all()
    lab.close(output[0, 0, 2:] - 7, [[1, 0, 0, 0, 0], [1 / 2, 1 / 2, 0, 0, 0]])


@pytest.mark.fault("tracel-ai/cubecl#1070")
@pytest.mark.parametrize(("found", "expected"), [(np.nan, 0.0), (0.0, np.nan), (np.nan, np.nan), (np.inf, -np.inf)])
def test_the_comparison_passes_over_nothing(lab, found, expected) -> None:
    """The reference gave NaN, the kernel a number, and the comparison skipped NaN: the test was green."""
    with pytest.raises(AssertionError, match="expected"):
        lab.close([found], [expected])


@pytest.mark.fault("pytorch/pytorch#141218")
def test_no_heads_and_no_sequences(attend, lab) -> None:
    """Zero key/value heads under grouped queries divided by zero and killed the process."""
    query, key, value = lab.draw(2, 4, 3, 5)
    with pytest.raises(ak.ShapeError, match=r"K >= 1.*H = 4, K = 0"):
        attend(query, key[:, :0], value[:, :0])
    for none in (query[:, :0], key[:, :0], value[:, :0]), (query[:, :0], key, value), (query[:0], key[:0], value[:0]):
        output, lse = attend(*none)
        assert output.shape == none[0].shape
        assert lse.shape == none[0].shape[:3]
        assert output.dtype == query.dtype


@pytest.mark.fault("pytorch/pytorch#141219")
@pytest.mark.parametrize("mask", [None, CAUSAL, ak.Mask.window(2), ak.Mask.chunked(2)], ids=repr)
def test_no_queries_and_no_keys(attend, lab, mask) -> None:
    """Sequences of length zero trapped where the kernel counted its blocks."""
    sizes = {"batch": 2, "heads": 2, "rows": 3, "keys": 4}
    for empty in [*combinations(sizes, 1), *combinations(sizes, 2)]:
        shape = sizes | dict.fromkeys(empty, 0)
        output, lse = attend(*lab.draw(**shape, kv_heads=2, value_dim=5), mask=mask)
        assert output.shape == (shape["batch"], shape["heads"], shape["rows"], 5)
        assert not output.any()
        assert np.isneginf(lse).all()
    query, key, value = lab.draw(1, 1, 2, 2)
    with pytest.raises(ak.ShapeError, match="D >= 1, got D = 0"):
        attend(query[..., :0], key[..., :0], value)


@pytest.mark.fault("Dao-AILab/flash-attention#1155")
@pytest.mark.parametrize("lengths", [(3, 0, 2), (0, 3, 2), (3, 2, 0), (0, 0, 0)])
@pytest.mark.parametrize("mask", [None, CAUSAL], ids=repr)
def test_a_sequence_without_keys_among_others(attend, lab, lengths, mask) -> None:
    """A key length of zero in a ragged batch made the kernel write outside its output."""
    query, key, value = lab.draw(3, 2, 2, 3)
    output, lse = attend.checked(query, key, value, mask=mask, kv_lengths=np.array(lengths))
    for sequence, length in enumerate(lengths):
        if length == 0:
            assert not output[sequence].any()
            assert np.isneginf(lse[sequence]).all()


@pytest.mark.fault("flashinfer-ai/flashinfer#1533")
def test_an_empty_row_is_written(attend, lab) -> None:
    """Rows with nothing to see were skipped and showed what the fresh memory held; here it has just held NaN."""
    query, key, value = lab.draw(1, 2, 4, 2)
    for _ in range(8):
        used = [np.full_like(query, np.nan) for _ in range(16)]
        del used
        assert not attend(query, key, value, mask=CAUSAL).output[:, :, :2].any()
