from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

import attnkit as ak
from attnkit_conformance.vectors.chain import NAME, STEPS, Chain, chain
from attnkit_conformance.vectors.chain_rule import WINDOW, address, following

STEPS_HERE = 300
MASK = ak.Mask.causal() & ak.Mask.window(WINDOW)


@pytest.fixture(scope="module")
def made() -> Chain:
    return chain("float32", STEPS_HERE)


def run(made: Chain, layer, *, closed: bool, fault: Callable[[int], str] = lambda step: "") -> np.ndarray:
    """Take the steps on a cache as the documentation says; ``fault`` names what is left out at a step."""
    query, key, value = made.case.arrays
    lanes, registers = np.array([0, 1]), np.zeros((2, 2), np.int64)
    outputs = np.zeros(made.case.output_shape)
    for t, step in enumerate(made.steps):
        skipped = fault(t)
        if step.operation == "truncate" and skipped != "truncate":
            layer.cache.truncate(step.tokens - 1)
        if step.operation == "reorder":
            lanes = lanes[::-1]
            if skipped != "reorder":
                layer.cache.reorder(np.array([1, 0]))
        if skipped != "append":
            layer.layer.append(key[lanes][:, :, t : t + 1], value[lanes][:, :, t : t + 1])
        asked = query[:, :, t : t + 1].copy()
        if closed and t:
            asked[:] = 0
            for b, h in np.ndindex(2, 2):
                asked[b, h, 0, address(int(registers[b, h]), step.tokens)] = 1024
        given = layer.layer.attend(np.ascontiguousarray(asked[lanes]), mask=MASK, scale=1.0)
        outputs[:, :, t] = given[np.argsort(lanes)][:, :, 0]
        for b, h in np.ndindex(2, 2):
            registers[b, h] = following(int(registers[b, h]), outputs[b, h, t])
    return outputs


class Cache:
    def __init__(self, **layout) -> None:
        config = ak.KVCacheConfig(num_layers=1, batch_size=2, num_kv_heads=1, head_dim=WINDOW, **layout)
        self.cache = ak.make_cache(config, backend="numpy")
        self.layer = next(iter(self.cache))


LAYOUTS = {
    "contiguous": {"layout": "contiguous"},
    "paged": {"layout": "paged", "page_size": 4},
}


@pytest.mark.parametrize("closed", [False, True], ids=["open", "closed"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_cache_goes_through_the_chain(made: Chain, layout: str, closed: bool) -> None:
    outputs = run(made, Cache(**LAYOUTS[layout]), closed=closed)
    assert np.array_equal(np.rint(8 * outputs), 8 * made.case.truth.output)


def test_a_ring_goes_through_it_up_to_the_first_cut(made: Chain) -> None:
    """It has given up what a cut would make it need again, and says so."""
    cut = next(t for t, step in enumerate(made.steps) if step.operation == "truncate")
    part = Chain(replace(made.case, queries=cut).holding(made.case.arrays), made.steps[:cut])
    outputs = run(part, Cache(layout="ring", window=WINDOW), closed=True)
    assert cut > 2 * WINDOW
    assert np.array_equal(np.rint(8 * outputs), 8 * made.case.truth.output[:, :, :cut])


@pytest.mark.parametrize("operation", ["append", "truncate", "reorder"])
def test_one_fault_derails_all_that_follows(made: Chain, operation: str) -> None:
    at = next(t for t, step in enumerate(made.steps) if step.operation == operation and t > 50)
    outputs = run(made, Cache(layout="contiguous"), closed=True, fault=lambda step: operation if step == at else "")
    right = (np.rint(8 * outputs) == 8 * made.case.truth.output).all(axis=(0, 1, 3))
    assert right[:at].all()
    assert right[at + WINDOW :].mean() < 0.1  # but where the right token is met by chance


def test_the_chain_has_every_event() -> None:
    steps = chain("float32").steps
    counts = {name: sum(step.operation == name for step in steps) for name in ("append", "truncate", "reorder")}
    assert len(steps) == STEPS
    assert counts["truncate"] > 30
    assert counts["reorder"] > 30
    assert steps[-1].tokens > 20 * WINDOW


def test_each_type_holds_the_chain() -> None:
    wide = chain("float64", 100).case.arrays
    for dtype in ("float16", "bfloat16"):
        for array, wanted in zip(chain(dtype, 100).case.arrays, wide, strict=True):
            assert np.array_equal(array.astype(np.float64), wanted)


def test_lines_tell_the_steps(made: Chain) -> None:
    head, *rows = [line.split("\t") for line in made.lines().splitlines()]
    assert head == ["step", "operation", "tokens"]
    assert len(rows) == STEPS_HERE
    assert all(int(row[1].split()[1]) == int(row[2]) - 1 for row in rows if row[1].startswith("truncate"))
    assert made.case.label == NAME
