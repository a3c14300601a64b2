"""A tape holds what was asked, whatever becomes of the arrays, and can be made again on another backend."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest

import attnkit as ak
from attnkit_conformance.harness.local import Harness
from attnkit_conformance.repro.tape import Call, Ref, Taped, Thing, UnresolvedError, live, replay
from attnkit_conformance.selftest.plain import Plain


def harness(**members: Any) -> Harness:
    backend = type("Toy", (Plain,), members)()
    return Harness("toy", backend, backend)


@pytest.fixture
def taped() -> Taped:
    return Taped(harness())


def attend(taped: Taped, value: Any) -> Any:
    query = taped.array(np.zeros((1, 1, 1, 1), np.float32))
    key = taped.array(np.zeros((1, 1, 2, 1), np.float32))
    mask = taped.mask((("causal",), ("window", 2, 0)))
    (output,) = taped.attention([query, key, taped.array(value)], {"mask": mask, "kv_lengths": np.array([2])})
    return taped.numpy(output)


def test_it_forwards_and_records(taped: Taped) -> None:
    value = np.array([1, 3], np.float32).reshape(1, 1, 2, 1)
    assert attend(taped, value).item() == 2
    assert taped.describe().name == "toy"
    assert [call.method for call in taped.calls] == ["array", "array", "mask", "array", "attention", "numpy"]
    asked = taped.calls[4]
    assert asked.given["arrays"] == [Ref(0), Ref(1), Ref(3)]
    assert asked.given["options"]["mask"] == Ref(2)
    assert asked.given["lse"] is False
    assert taped.calls[5].given["thing"] == Ref(4, (0,))


def test_what_is_recorded_is_a_copy(taped: Taped) -> None:
    value = np.array([1, 3], np.float32).reshape(1, 1, 2, 1)
    attend(taped, value)
    value[...] = 7
    assert taped.calls[3].arrays[0].ravel().tolist() == [1, 3]


def test_things_of_one_array_keep_their_own_names() -> None:
    same = np.zeros((1, 1, 1, 1), np.float32)
    taped = Taped(harness(from_numpy=lambda self, array: same))
    one, other = taped.array(same), taped.array(same)
    assert one.thing is other.thing
    taped.write(other, 1.0)
    assert taped.calls[-1].changes == (Ref(1),)


def test_a_replay_gives_the_same_on_another_backend(taped: Taped) -> None:
    value = np.array([1, 3], np.float32).reshape(1, 1, 2, 1)
    attend(taped, value)
    assert replay(taped.calls, harness()).values[5].item() == 2
    doubled = harness(finish=lambda self, output, query, request: 2 * output)
    assert replay(taped.calls, doubled).values[5].item() == 4


def test_errors_are_kept_and_do_not_stop_a_replay(taped: Taped) -> None:
    query = taped.array(np.zeros((1, 1, 1, 1), np.float32))
    with pytest.raises(ak.ShapeError):
        taped.attention([query, query, query], {"softcap": -1.0})
    assert taped.numpy(query).item() == 0
    assert isinstance(taped.run.errors[1], ak.ShapeError)
    run = replay((*taped.calls, Call(9, "numpy", {"thing": Ref(1, (0,))})), harness())
    assert isinstance(run.errors[1], ak.ShapeError)
    assert isinstance(run.errors[9], UnresolvedError)
    assert run.values[2].item() == 0


def test_calls_of_a_cache_change_it(taped: Taped) -> None:
    cache = taped.make_cache({"num_kv_heads": 1, "head_dim": 1})
    key = taped.array(np.ones((1, 1, 2, 1), np.float32))
    taped.cache_call(cache, 0, "append", key, key, lengths=None)
    unseen = taped.cache_call(cache, 0, "attend", key)
    taped.cache_call(cache, None, "truncate", 1)
    assert taped.cache_count(cache, 0, "stored").tolist() == [1]
    assert isinstance(unseen, Thing)
    needed = live(taped.calls, [taped.calls[-1].number])
    done = [call.given.get("method", call.method) for call in needed]
    assert done == ["make_cache", "array", "append", "truncate", "cache_count"]


def test_what_nobody_needs_is_left_out(taped: Taped) -> None:
    value = np.array([1, 3], np.float32).reshape(1, 1, 2, 1)
    attend(taped, value)
    attend(taped, value)
    last = taped.calls[-1].number
    assert [call.number for call in live(taped.calls, [last])] == [6, 7, 8, 9, 10, 11]


def test_lists_stay_lists() -> None:
    class Asked(Harness):
        def attention(self, arrays: Any, options: Any, lse: bool = False) -> tuple[Any, ...]:
            return (type(options["kv_lengths"]),)

    taped = Taped(Asked("asked", Plain(), Plain()))
    (found,) = cast(Any, taped).attention([], {"kv_lengths": [1.5, 2.0]})
    assert found.thing is list
