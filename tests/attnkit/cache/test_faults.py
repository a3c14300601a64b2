"""Exceptions at every allocation, gather and write of every operation leave a cache as it was (C3)."""

from __future__ import annotations

import numpy as np
import pytest

import attnkit as ak

LAYOUTS = {
    "growing": {},
    "fixed": {"max_length": 80},
    "ring": {"layout": "ring", "window": 6, "max_append": 4},
    "pinned": {"layout": "ring", "window": 4, "max_append": 4, "pinned": 3},
    "paged": {"layout": "paged", "page_size": 3},
    "pool": {"layout": "paged", "page_size": 2, "num_pages": 60},
}


class Failing:
    """A backend whose primitives fail at the ``number``-th call from now, after half of the work."""

    def __init__(self, kit):
        self.left = 0
        self.points = 0
        self.backend = kit.backend("failing", **{name: self._point(name) for name in ("allocate", "gather", "write")})

    def _point(self, name):
        def primitive(this, *arguments):
            self.points += 1
            self.left -= 1
            if self.left == 0:
                if name == "write":
                    plane, slots, tokens = arguments
                    half = slots.shape[1] // 2 + 1
                    ak.Backend.write(this, plane, slots[:, :half], tokens[:, :, :half] + 1)
                raise MemoryError(name)
            return getattr(ak.Backend, name)(this, *arguments)

        return primitive


def append(count, lengths=None):
    def run(cache, tokens):
        for layer in cache:
            layer.append(*tokens(count, cache.batch_size), lengths=lengths)

    return run


# What is done, after what; the name of the operation is the first of its steps that can fail.
OPERATIONS = {
    "append": append(1),
    "append many": append(4),
    "append ragged": append(4, [1, 0, 4]),
    "reorder": lambda cache, tokens: cache.reorder([2, 2, 0]),
    "select": lambda cache, tokens: cache.select([1, 1, 1, 0]),
    "repeat": lambda cache, tokens: cache.repeat(2),
    "fork": lambda cache, tokens: cache.fork(1),
    "admit": lambda cache, tokens: cache.admit(),
    "release": lambda cache, tokens: cache.release(0),
    "truncate": lambda cache, tokens: cache.truncate(cache.next_position - 1),
    "drop": lambda cache, tokens: cache.drop(1),
    "reset": lambda cache, tokens: cache.reset(),
    "snapshot": lambda cache, tokens: cache.snapshot(),
}


@pytest.fixture
def tokens(draw):
    return lambda count, batch=3: (draw(batch, 2, count, 4), draw(batch, 2, count, 3))


@pytest.fixture
def failing(kit, nobody):
    return Failing(kit)


@pytest.fixture(params=["native", "int8"])
def filled(request, failing, shelf, tokens, layout):
    """A cache whose sequences share pages, with a little left in the last page; the fork of 1 is sequence 2."""
    config = shelf.config(dtype="float32", batch_size=2, codec=request.param, **LAYOUTS[layout])
    cache = ak.make_cache(config, backend=failing.backend)
    for count in (4, 3, 4):
        append(count)(cache, tokens)
    cache.fork(1)
    return cache


def observed(cache):
    query = np.linspace(-1, 1, cache.batch_size * 4 * 2 * 4, dtype=np.float32).reshape(cache.batch_size, 4, 2, 4)
    seen = [cache.next_position, cache.stored]
    if not hasattr(cache, "pool"):  # a pool may keep the room that a failed append has made
        seen.append(cache.nbytes)
    for layer in cache:
        seen += [layer.next_position, layer.stored, *layer.read(), layer.attend(query, mask=ak.Mask.causal())]
    if hasattr(cache, "pool"):
        numbers = {}  # of a pool that has grown they may be others
        seen += [cache.pool.used, *([numbers.setdefault(page, len(numbers)) for page in row] for row in cache.rows)]
        seen += [cache.pool.free] if not cache.pool.grows else []
    return [np.asarray(item).tobytes() for item in seen]


def fails_everywhere(failing, cache, run):
    """Let ``run`` fail at every point that it has, one after the other; then let it succeed. Gives how many."""
    before = observed(cache)
    for number in range(1, 1000):
        failing.left = number
        try:
            run()
        except MemoryError:
            failing.left = 0
            assert observed(cache) == before, f"after a failure at point {number}"
            cache.check_invariants()
        else:
            failing.left = 0
            return number - 1
    raise AssertionError("it never succeeds")


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_failure_at_any_point_changes_nothing(failing, filled, shelf, tokens, layout, operation) -> None:
    run = OPERATIONS[operation]
    if operation.startswith("append"):  # layer by layer, as what one layer took stays taken
        lengths, count = ([1, 0, 4], 4) if "ragged" in operation else (None, 4 if "many" in operation else 1)
        points = 0
        for layer in filled:
            arrays = tokens(count)
            points += fails_everywhere(failing, filled, lambda: layer.append(*arrays, lengths=lengths))  # noqa: B023
        assert points >= 4
    else:
        fails_everywhere(failing, filled, lambda: run(filled, tokens))
    filled.check_invariants()
    before = [layer.read() for layer in filled]
    shelf.poison(filled)
    for layer, arrays in zip(filled, before, strict=True):
        assert all(map(np.array_equal, layer.read(), arrays))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_going_back_fails_without_a_trace(failing, filled, tokens, layout) -> None:
    snapshot, then = filled.snapshot(), observed(filled)
    append(3)(filled, tokens)
    filled.release(0)
    points = fails_everywhere(failing, filled, lambda: filled.restore(snapshot))
    assert (points > 0) == (not hasattr(filled, "pool"))  # pages are shared with a snapshot, pieces are copied
    assert observed(filled) == then
    filled.restore(snapshot)
    assert observed(filled) == then


def test_the_points_are_really_met(failing, shelf, tokens) -> None:
    cache = ak.make_cache(shelf.config(dtype="float32", layout="paged", page_size=3), backend=failing.backend)
    append(4)(cache, tokens)
    cache.fork(0)
    failing.points = 0
    cache[0].append(*tokens(1, 4))  # the pool grows by copies of both layers, and two tails are copied
    assert failing.points > 8
