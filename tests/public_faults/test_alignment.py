"""Where the causal triangle stands when there are not as many queries as keys: bottom-right, always (A3)."""

from __future__ import annotations

import numpy as np
import pytest

import attnkit as ak

CAUSAL = ak.Mask.causal()


@pytest.mark.fault("Dao-AILab/flash-attention#282")
def test_the_last_query_stands_on_the_last_key(attend, lab) -> None:
    """Two queries over five keys: the first query saw key 0 alone, and the convention changed between releases."""
    expected = [[1 / 4] * 4 + [0], [1 / 5] * 5]
    lab.close(attend.weights(2, 5, mask=CAUSAL), expected)
    query, key, value = (array[0].swapaxes(0, 1) for array in lab.level(2, 5))
    packed = attend.only_if_taken(
        lambda: ak.attention_packed(query, key, value, [0, 2], [0, 5], mask=CAUSAL, backend=attend.path)
    )
    lab.close(packed[:, 0], expected)


@pytest.mark.fault("pytorch/pytorch#108108")
def test_rows_before_every_key_are_empty(attend, lab) -> None:
    """The triangle stood in the top-left corner, so that a decoding query saw key 0 alone."""
    output, lse = attend(*lab.level(5, 2), mask=CAUSAL)
    assert not output[0, 0, :3].any()
    assert np.isneginf(lse[0, 0, :3]).all()
    lab.close(output[0, 0, 3:], [[1, 0], [1 / 2, 1 / 2]])
    lab.close(attend.weights(1, 4, mask=CAUSAL), [[1 / 4] * 4])


@pytest.mark.fault("ml-explore/mlx#2967")
@pytest.mark.parametrize(("rows", "keys"), [(3, 7), (7, 7), (7, 3)])
def test_one_formula_whatever_is_longer(attend, rows, keys) -> None:
    """The triangle was bottom-right with fewer queries than keys and top-left with more."""
    seen = attend.weights(rows, keys, mask=CAUSAL) > 0
    assert seen.tolist() == [[j <= i + keys - rows for j in range(keys)] for i in range(rows)]


@pytest.mark.fault("microsoft/onnxruntime#29020")
def test_every_path_aligns_alike(attend, lab) -> None:
    """One query over borrowed keys, without a cache: two implementations of one operator chose opposite corners."""
    lab.close(attend.weights(1, 4, mask=CAUSAL), [[1 / 4] * 4])
    lab.close(attend.weights(2, 4, mask=CAUSAL, query_lengths=1), [[1 / 4] * 4, [0] * 4])
