"""Packed sequences: keys and values are read where they lie, queries go into a padded batch and results come out of it.

So there are as few launches as for one call, however many sequences there are.

Axes: ``N`` queries of all sequences, ``B`` sequences, ``H`` query heads, ``K`` key/value heads, ``T`` longest query
length, ``D`` and ``E`` head sizes.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Final

import numpy as np

from attnkit import AttentionOutput, Operands, Plan
from attnkit_cupy.layout import readable
from attnkit_cupy.runtime import Array, Runtime
from attnkit_cupy.storage import gather, write
from attnkit_cupy.stored import Stored

Starts = tuple[Sequence[int], Sequence[int]]
_MOST_PADDED: Final = 8  # rows of the batch for each query
_MOST_KEYS: Final = 2**31 - 1  # slots of a page table are 32-bit integers


def is_worth_it(starts: Starts) -> bool:
    """Tell whether a padded batch of the queries is not much larger than they are."""
    queries, keys = starts
    longest = max(stop - start for start, stop in pairwise(queries))
    return (len(queries) - 1) * longest <= _MOST_PADDED * queries[-1] and keys[-1] <= _MOST_KEYS


def attend(
    runtime: Runtime, query: Array, key: Array, value: Array, starts: Starts, operands: Operands, plan: Plan
) -> AttentionOutput:
    """Attend over ``[N, H, D]``, ``[M, K, D]`` and ``[M, K, E]``; gives ``[N, H, E]``."""
    xp = runtime.xp
    slots = xp.asarray(_slots(starts[0], operands.query_length))
    batch = gather(runtime, readable(query.transpose(1, 0, 2), xp), slots)
    stored = Stored.of_packed(key, value, starts[1], runtime)
    padded = plan.run(batch, stored, stored, operands).output
    output = xp.empty((*query.shape[:2], value.shape[2]), query.dtype)
    write(runtime, output.transpose(1, 0, 2), slots, padded)
    return AttentionOutput(output)


def _slots(starts: Sequence[int], longest: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Give the place of each query of a padded batch, ``[B, T]``; ``-1`` for padding."""
    first, last = np.array(starts[:-1], np.int64)[:, None], np.array(starts[1:], np.int64)[:, None]
    places = first + np.arange(longest)
    return np.where(places < last, places, -1)
