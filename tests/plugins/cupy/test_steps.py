"""Captured decoding: launches of one step, replayed in later ones, read nothing but what ``begin_step`` writes.

Axes: ``B`` sequences, ``H`` query heads, ``K`` key/value heads, ``T`` new tokens, ``D`` head size.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import attnkit as ak
from attnkit import reference
from attnkit.numerics import numerics_for
from attnkit_cupy.backend import EmulatedBackend
from attnkit_cupy.emulator import CapturingRuntime

BATCH, HEADS, KV_HEADS, SIZE, LAYERS = 3, 4, 2, 16, 2
LAYOUTS: dict[str, dict[str, Any]] = {
    "contiguous": {"layout": "contiguous", "max_length": 400},  # room for several splits
    "paged": {"layout": "paged", "max_length": 90, "page_size": 16},
    "small pages": {"layout": "paged", "max_length": 90, "page_size": 3},
    "ring": {"layout": "ring", "window": 12, "max_append": 4},
}


class Captured:
    """A stack whose steps are captured once, and a plain history of what it was given."""

    def __init__(self, runtime: Any, layout: dict[str, Any], tokens: int = 1, **changed: Any) -> None:
        self.backend = EmulatedBackend()
        self.backend.runtime = CapturingRuntime(runtime)
        sizes = {"num_layers": LAYERS, "batch_size": BATCH, "num_kv_heads": KV_HEADS, "head_dim": SIZE}
        self.cache = ak.make_cache(ak.KVCacheConfig(**sizes, **layout, **changed), backend=self.backend)
        self.mask = ak.Mask.window(layout["window"]) if "window" in layout else ak.Mask.causal()
        self.window = layout.get("window")
        self.rng = np.random.default_rng(0)
        self.history = [[([], []) for _ in range(BATCH)] for _ in range(LAYERS)]
        heads = (HEADS, KV_HEADS, KV_HEADS)
        self.inputs = [[np.zeros((BATCH, n, tokens, SIZE), np.float32) for n in heads] for _ in range(LAYERS)]

    def draw(self, counts: Any = None) -> None:
        """Write new numbers into the arrays that captured work reads."""
        for layer, arrays in enumerate(self.inputs):
            for array in arrays:
                array[...] = self.rng.standard_normal(array.shape)
            for row in range(BATCH):
                count = arrays[0].shape[2] if counts is None else counts[row]
                for held, array in zip(self.history[layer][row], arrays[1:], strict=True):
                    held.append(array[row, :, :count].copy())

    def work(self, step: ak.Step) -> list[ak.AttentionOutput]:
        found = []
        for layer, (query, key, value) in zip(step, self.inputs, strict=True):
            layer.append(key, value)
            found.append(layer.attend_with_lse(query, mask=self.mask))
        return found

    def check(self, found: list[ak.AttentionOutput], counts: Any = None) -> None:
        for layer, output in enumerate(found):
            for row in range(BATCH):
                count = output.output.shape[2] if counts is None else counts[row]
                key, value = (np.concatenate(held, axis=1)[None] for held in self.history[layer][row])
                query = self.inputs[layer][0][row : row + 1, :, :count]
                truth = reference.attention(query, key, value, mask=self.mask)
                bound = truth.tolerance(numerics_for("strict-fp32+sequential", "float32"))
                assert (np.abs(output.output[row : row + 1, :, :count] - truth.output) <= bound.output).all()
                assert (np.abs(output.lse[row : row + 1, :, :count] - truth.lse) <= bound.lse).all()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_replayed_steps_give_what_attention_is(runtime, layout) -> None:
    made = Captured(runtime, LAYOUTS[layout])
    made.draw()
    first = made.cache.begin_step()
    with made.backend.runtime.capture() as graph:
        found = made.work(first)
    assert len(graph) >= 4 * LAYERS  # keys and values stored, attention, mending
    graph.launch()
    made.check(found)
    for _ in range(40):
        made.draw()
        assert made.cache.begin_step() is first
        graph.launch()
        made.check(found)
    made.cache.check_invariants()
    assert made.cache.next_position.tolist() == [41] * BATCH


def test_captured_work_reads_mirrors_alone(runtime) -> None:
    """What is not written anew shows: the very launches, without ``begin_step`` before, store over the last token."""
    made = Captured(runtime, LAYOUTS["paged"])
    made.draw()
    step = made.cache.begin_step()
    with made.backend.runtime.capture() as graph:
        found = made.work(step)
    graph.launch()
    before = found[0].output.copy()
    made.draw()
    graph.launch()
    assert not np.array_equal(found[0].output, before)  # it saw the new token in the place of the old one
    with pytest.raises(AssertionError):
        made.check(found)


@pytest.mark.parametrize("layout", ["contiguous", "small pages", "ring"])
def test_sequences_take_tokens_of_their_own_number(runtime, layout) -> None:
    made = Captured(runtime, LAYOUTS[layout], tokens=3)
    step = graph = None
    for counts in ([3, 1, 2], [1, 3, 3], [2, 2, 0], [3, 3, 1], [1, 1, 2]):
        made.draw(counts)
        begun = made.cache.begin_step(3, lengths=counts)
        if step is None:
            with made.backend.runtime.capture() as graph:
                found = made.work(begun)
        assert step in (None, begun)
        step = begun
        graph.launch()
        made.check(found, counts)
    assert made.cache.next_position.tolist() == [10, 10, 8]


def test_eager_calls_between_steps_do_not_disturb_replay(runtime) -> None:
    made = Captured(runtime, LAYOUTS["small pages"])
    made.draw()
    step = made.cache.begin_step()
    with made.backend.runtime.capture() as graph:
        found = made.work(step)
    graph.launch()
    made.cache.drop(1)  # speculation that failed
    for layer in made.history:
        for row in layer:
            for held in row:
                held.pop()
    for count in (5, 1):
        for number, layer in enumerate(made.cache):
            key, value = (made.rng.standard_normal((BATCH, KV_HEADS, count, SIZE)).astype("f4") for _ in range(2))
            layer.append(key, value)
            for row in range(BATCH):
                made.history[number][row][0].append(key[row])
                made.history[number][row][1].append(value[row])
        made.draw()
        assert made.cache.begin_step() is step
        graph.launch()
        made.check(found)


def test_forks_diverge_under_replay(runtime) -> None:
    """Shared pages are copied by ``begin_step``, outside of what is captured."""
    made = Captured(runtime, LAYOUTS["small pages"])
    for number, layer in enumerate(made.cache):
        key, value = (made.rng.standard_normal((BATCH, KV_HEADS, 7, SIZE)).astype("f4") for _ in range(2))
        key[1:], value[1:] = key[:1], value[:1]
        layer.append(key, value)
        for row in range(BATCH):
            made.history[number][row][0].append(key[0])
            made.history[number][row][1].append(value[0])
    made.cache.reorder([0, 0, 0])
    step = graph = None
    for _ in range(6):
        made.draw()
        begun = made.cache.begin_step()
        if step is None:
            with made.backend.runtime.capture() as graph:
                found = made.work(begun)
        step = begun
        graph.launch()
        made.check(found)
    made.cache.check_invariants()


def test_codes_are_read_by_captured_work(runtime) -> None:
    """NumPy encodes at once, so that appending is not captured here; attending to what ``read`` gives is."""
    made = Captured(runtime, LAYOUTS["paged"], codec="int8")
    step = graph = None
    for _ in range(20):
        made.draw()
        begun = made.cache.begin_step()
        for layer, (_, key, value) in zip(begun, made.inputs, strict=True):
            layer.append(key, value)
        if step is None:
            with made.backend.runtime.capture() as graph:
                found = [
                    layer.attend_with_lse(q, mask=made.mask) for layer, (q, *_) in zip(begun, made.inputs, strict=True)
                ]
        step = begun
        graph.launch()
        for number, layer in enumerate(made.cache):
            for row in made.history[number]:
                row[0].clear(), row[1].clear()
            key, value = layer.read()
            for row in range(BATCH):
                made.history[number][row][0].append(key[row])
                made.history[number][row][1].append(value[row])
        made.check(found)


def test_other_storage_is_another_step(runtime) -> None:
    made = Captured(runtime, {"layout": "paged", "page_size": 4})
    steps = []
    for _ in range(30):
        step = made.cache.begin_step()
        made.work(step)
        steps.append(step)
    rooms = [step.tables.room for step in steps]
    assert len({id(step) for step in steps}) < 10
    assert steps[-1] is steps[-2]
    assert rooms[-1] == 32
    assert all(step.is_over for step in steps[:-1] if step is not steps[-1])


def test_mirrors_are_two_arrays(runtime) -> None:
    made = Captured(runtime, LAYOUTS["ring"])
    mirrors = made.cache.begin_step().mirrors
    assert mirrors is not None
    for part in (mirrors.slots.array, mirrors.kv_lengths, mirrors.key_offset, mirrors.positions):
        assert np.shares_memory(part, mirrors.table.integers)
        assert part.flags.c_contiguous
    assert mirrors.query_lengths is None
