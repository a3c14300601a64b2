"""The log-sum-exp is natural, complete and -inf for nothing (A10); a sink takes part in it and in the maximum (A2)."""

from __future__ import annotations

import numpy as np
import pytest

import attnkit as ak

CAUSAL = ak.Mask.causal()


@pytest.mark.fault("pytorch/pytorch#181645")
def test_the_logarithm_is_natural(attend, lab) -> None:
    """The LSE of one path was natural already, and was converted from base 2 once more."""
    for keys in (1, 2, 3, 4):
        lab.close(attend(*lab.level(1, keys)).lse, [[[np.log(keys)]]])
    lab.close(attend(*lab.level(1, 4)).lse, [[[1.386294]]])
    lab.close(attend(*lab.level(4, 4), mask=CAUSAL).lse, [[np.log([1, 2, 3, 4])]])


@pytest.mark.fault("sgl-project/sglang#40903")
def test_very_unequal_parts_merge(attend, lab) -> None:
    """Base-2 LSEs met a natural merge, and the short new part got a fifth of its weight."""
    query, key = np.zeros((1, 1, 1, 2), np.float32), np.zeros((1, 1, 3136, 2), np.float32)
    value = (np.arange(3136) >= 3072).astype(np.float32).reshape(1, 1, 3136, 1)
    parts = [attend(query, key[:, :, cut], value[:, :, cut]) for cut in (slice(3072), slice(3072, None))]
    whole = attend(query, key, value)
    for order in (parts, parts[::-1]):
        output, lse = ak.merge(*order)
        lab.close(output, [[[[64 / 3136]]]])
        lab.close(lse, whole.lse, 1e-5)


@pytest.mark.fault("flashinfer-ai/flashinfer#4452")
def test_the_lse_of_an_empty_row(attend, lab) -> None:
    """Empty rows had output 0 and a finite LSE of about -5e4, which a merge then believed."""
    query, key, value = lab.draw(1, 1, 4, 2)
    found = attend(query, key, value, mask=CAUSAL)
    scores = (query @ key.swapaxes(-1, -2))[0, 0] / np.sqrt(8)
    lab.close(found.lse[0, 0], [-np.inf, -np.inf, scores[2, 0], np.logaddexp(*scores[3])], 1e-5)
    output, lse = ak.merge(attend(query, key, value), found)
    lab.same_bits(output[:, :, :2], attend(query, key, value).output[:, :, :2])
    lab.same_bits(lse[:, :, :2], attend(query, key, value).lse[:, :, :2])


@pytest.mark.fault("Dao-AILab/flash-attention#2752")
def test_a_sink_takes_part_in_the_maximum(attend, lab) -> None:
    """The sink was left out of the maximum: a large one gave an infinite LSE, an empty row one of NaN."""
    query, key, value = np.zeros((1, 1, 1, 1), np.float32), np.zeros((1, 1, 1, 1), np.float32), np.ones((1, 1, 1, 1))
    value = value.astype(np.float32)
    output, lse = attend(query, key, value, sinks=np.array([100], np.float32))
    lab.close(lse, [[[100]]])
    lab.close(output, [[[[0]]]], 1e-40)
    output, lse = attend(query, key[:, :, :0], value[:, :, :0], sinks=np.array([0.5], np.float32))
    lab.close(lse, [[[0.5]]])
    assert not output.any()


@pytest.mark.fault("Dao-AILab/flash-attention#2752")
@pytest.mark.parametrize("sink", [-1e4, 0, 100, 1e4, -np.inf])
@pytest.mark.parametrize("keys", [0, 1, 40])
def test_sinks_of_every_size(attend, lab, sink, keys) -> None:
    """The same over the range of a logit, beside rows that see no key, one and many; -inf is no sink."""
    arrays = lab.draw(1, 2, 2, keys)
    sinks = np.array([sink, 0.25], np.float32)
    attend.checked(*arrays, sinks=sinks)
    attend.checked(*arrays, sinks=sinks, mask=CAUSAL & ak.Mask.window(1))
    attend.checked(*arrays, sinks=sinks, mask=ak.Mask.dense(np.zeros((2, keys), bool)))
