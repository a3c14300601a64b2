"""Fuzzing: requests at random, the same ones for the same seed on every machine.

Axes: ``B`` batch, ``H`` query heads, ``T`` query length, ``S`` key length, ``D`` query/key head size.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from attnkit_conformance.cases import Case, plain
from attnkit_conformance.features import GROUPS, LENGTHS, Sizes, fields
from attnkit_conformance.samples import Sample, any_choice, swarm

HEAD_DIMS: Final = (8, 16, 40, 64, 72, 80, 128)
FAR: Final = (2**24 + 1, 2**31 + 1, -(2**33))
"""Positions that 32 bits, or a float, do not hold."""
SCALES: Final = (0.0, np.float64(-0.4), 1.0, np.float64(3.0))
"""Numbers of Python, and of NumPy, which promote what those do not."""
_LOUD: Final = 64
_SMALL: Final = 1500  # scores of most requests; the oracle takes row by row
_LARGE: Final = 40000  # of one in sixteen
_LONG: Final = (1025, 2100)  # keys of one in sixty-four


def fuzz(count: int, seed: int, dtypes: Sequence[str]) -> Iterator[Case]:
    """Give ``count`` requests: any options together, any distribution of numbers, sizes at the edges of tiles."""
    return (_drawn(seed, number, tuple(dtypes)) for number in range(count))


def _drawn(seed: int, number: int, dtypes: tuple[str, ...]) -> Case:
    rng = np.random.default_rng([seed, number])
    # the log-sum-exp is asked of whoever has it
    choice = {**any_choice(rng, swarm(rng)), "dtype": str(rng.choice(dtypes)), "lse": ""}
    if not choice["mask"] or choice["mask"] == choice["join"].removeprefix("with-"):
        choice["join"] = ""
    heads = GROUPS[choice["group"]][0]
    sizes = _long(rng) if number % 64 == 63 else _sizes(rng, heads, large=number % 16 == 15)
    made = fields(choice, sizes, rng)
    made["options"] |= _more(rng, made["options"], sizes.batch, heads)
    case = Sample(**made, seed=number, pinned=("dtype",))
    return _louder(case) if number % 32 == 31 else case


def _louder(case: Sample) -> Case:
    """Let products be larger than float16 holds, before they are scaled."""
    query, key, value = map(plain, case.arrays)
    return replace(case, label=f"{case.label}+loud").holding((_LOUD * query, _LOUD * key, value))


def _sizes(rng: np.random.Generator, heads: int, *, large: bool) -> Sizes:
    room = (_LARGE if large else _SMALL) // heads
    batch = int(rng.choice((1, 2)))
    keys = int(rng.choice([n for n in LENGTHS if n * batch <= room]))
    most = max(1, room // (batch * keys))
    queries = int(rng.choice([1, *(n for n in LENGTHS if n <= most), min(keys, most)]))
    return Sizes(batch, queries, keys, int(rng.choice(HEAD_DIMS)))


def _long(rng: np.random.Generator) -> Sizes:
    return Sizes(1, int(rng.choice((1, 3))), int(rng.choice(_LONG)), int(rng.choice(HEAD_DIMS)))


def _more(rng: np.random.Generator, options: Mapping[str, Any], batch: int, heads: int) -> dict[str, Any]:
    """Draw what the features of the suite do not name: a scale, slopes for each sequence, positions far away."""
    more: dict[str, Any] = {}
    if rng.random() < 0.15:
        more["scale"] = SCALES[rng.integers(len(SCALES))]
    if "alibi" in options and rng.random() < 0.5:
        more["alibi"] = rng.uniform(0, 1.5, (batch, heads)).astype(np.float32)
    if "query_offset" in options and "key_offset" in options and rng.random() < 0.3:
        far = int(rng.choice(FAR))
        more |= {name: np.asarray(options[name]) + far for name in ("query_offset", "key_offset")}
    return more
