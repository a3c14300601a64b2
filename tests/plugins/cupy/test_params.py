"""AttentionParams is one thing in Python and in C++."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attnkit_cupy import params
from attnkit_cupy.call import split

KERNELS = Path(params.__file__).parent / "kernels"
PROBE = """#include "params.cuh"
#include "port.cuh"
namespace attn {{
__global__ void offsets(long long* found) {{
  const AttentionParams* p = nullptr;
{lines}
}}
__global__ void copy(const AttentionParams p, AttentionParams* to) {{ *to = p; }}
}}
"""


def test_the_header_is_what_the_fields_say() -> None:
    assert (KERNELS / "params.cuh").read_text() == params.declaration()


def test_no_line_is_too_long() -> None:
    assert max(map(len, params.declaration().splitlines())) <= 120


@pytest.fixture(scope="module")
def probe(tmp_path_factory: pytest.TempPathFactory) -> str:
    names = [field.name for field in params.FIELDS]
    lines = "\n".join(f"  found[{i}] = reinterpret_cast<long long>(&p->{name});" for i, name in enumerate(names))
    source: Path = tmp_path_factory.mktemp("params") / "probe.cu"
    source.write_text(PROBE.format(lines=lines))
    return str(source)


def test_members_lie_where_the_compiler_puts_them(runtime: Any, probe: str) -> None:
    found = np.zeros(len(params.FIELDS), np.int64)
    runtime.module(probe, ("attn::offsets",)).get_function("attn::offsets")((1,), (1,), (found,))
    fields = params.DTYPE.fields
    assert fields is not None
    assert found.tolist() == [fields[field.name][1] for field in params.FIELDS]


def test_what_is_set_arrives(runtime: Any, probe: str) -> None:
    made = params.Params()
    made.set(query=2**63 + 5, left=-1, scale=0.25, queries=7, value_block=3)
    made.fill("key_strides", (2**40, -3, 1))
    made.fill("chunks", (4, 8))
    data = np.zeros(params.DTYPE.itemsize, np.uint8)
    runtime.module(probe, ("attn::copy",)).get_function("attn::copy")((1,), (1,), (made.packed(), data))
    found = data.view(params.DTYPE)
    assert found[0] == made.packed()[0]
    assert found["query"][0] == 2**63 + 5
    assert found["key_strides"][0].tolist() == [2**40, -3, 1]
    assert found["chunks"][0].tolist() == [4, 8, 0, 0]
    assert (found["left"][0], found["scale"][0], found["queries"][0], found["value_block"][0]) == (-1, 0.25, 7, 3)


def test_a_copy_stands_alone() -> None:
    made = params.Params()
    other = made.copy()
    other.set(queries=3)
    assert (made.get("queries"), other.get("queries")) == (0, 3)


def test_members_hold_no_more_than_they_have_room_for() -> None:
    with pytest.raises(ValueError, match="chunks of AttentionParams has fewer than 5 elements"):
        params.Params().fill("chunks", (1, 2, 3, 4, 5))


@pytest.mark.parametrize("number", [0.0, 1.0, -0.3, 3e38, 2.0**-126, 1e-40, -1e-60, 1e40, -1e70])
def test_scales_are_split_without_loss(number: float) -> None:
    rest, power = split(number)
    assert rest * power == number
    tiny, largest = 2.0**-126, float(np.finfo(np.float32).max)
    assert all(tiny <= abs(part) <= largest or part == 0 for part in (rest, power))
    assert power == 1.0 or not tiny <= abs(number) < 2.0**127


@pytest.mark.parametrize("number", [1e300, 1e-300, 5e-324, -1e300])
def test_what_is_beyond_all_floats_stops_at_their_end(number: float) -> None:
    rest, power = split(number)
    assert np.sign(rest) == np.sign(number)
    assert np.isfinite(np.float32(rest))
    assert np.float32(rest) != 0
    assert power in (2.0**127, 2.0**-126)
