"""What the neighbours in a batch may do to the bits of a sequence: nothing where that is promised (A14)."""

from __future__ import annotations

import numpy as np
import pytest

import attnkit as ak
from attnkit import reference


@pytest.mark.fault("Dao-AILab/flash-attention#2450")
@pytest.mark.parametrize("rows", [1, 5])
def test_a_sequence_alone_and_among_others(attend, lab, rows) -> None:
    """Into how many parts the keys were split was decided by the whole batch."""
    query, key, value = lab.draw(64, 4, rows, 257, kv_heads=2)
    first = query[:1], key[:1], value[:1]
    alone, truth = attend(*first, mask=ak.Mask.causal()), reference.attention(*first, mask=ak.Mask.causal())
    attend.agree(alone, truth, query.dtype)
    for size in (2, 8, 64):
        for lengths in (None, np.minimum(257, np.arange(257, 257 - 2 * size, -2))):
            arrays = query[:size], key[:size], value[:size]
            output, lse = attend(*arrays, mask=ak.Mask.causal(), kv_lengths=lengths)
            found = ak.AttentionOutput(output[:1], lse[:1])
            attend.agree(found, truth, query.dtype)
            if attend.declared.batch_invariant:
                lab.same_bits(found.output, alone.output)
                lab.same_bits(found.lse, alone.lse)
