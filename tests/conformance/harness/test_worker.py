"""The worker's side of the conversation, without a process."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest

import attnkit as ak
from attnkit_conformance.harness import wire
from attnkit_conformance.harness.local import Harness
from attnkit_conformance.harness.worker import METHODS, Worker, serve
from attnkit_conformance.selftest.plain import Plain

ARRAY = np.arange(24, dtype=np.float32).reshape(1, 2, 3, 4)


@pytest.fixture
def worker() -> Worker:
    backend = Plain()
    return Worker(Harness("plain", backend, backend))


def ask(worker: Worker, method: str, *arguments: Any, released: Any = (), **options: Any) -> Any:
    request = {"method": method, "arguments": list(arguments), "options": options, "released": released}
    answer = worker.answer({"call": 5, **request})
    assert answer["call"] == 5
    assert answer["held"] == len(worker.things)
    return answer


def test_arrays_stay_here_and_numbers_go_back(worker: Worker) -> None:
    made = ask(worker, "array", ARRAY)["result"]
    assert type(made) is wire.Reference
    assert type(worker.things[made.number]) is np.ndarray
    np.testing.assert_array_equal(ask(worker, "numpy", made)["result"], ARRAY)


def test_results_are_things_wherever_they_are(worker: Worker) -> None:
    array = ask(worker, "array", ARRAY)["result"]
    results = ask(worker, "attention", [array] * 3, {"scale": 0.5}, lse=True)["result"]
    assert [type(result) for result in results] == [wire.Reference] * 2
    cache = ask(worker, "make_cache", {"num_kv_heads": 2, "head_dim": 4})["result"]
    assert ask(worker, "cache_call", cache, 0, "append", array, array)["result"] is None
    counter = ask(worker, "cache_counter", cache, 0, "stored")["result"]
    assert type(counter) is wire.Reference
    assert ask(worker, "write", counter, 7)["result"] in (True, False)
    np.testing.assert_array_equal(ask(worker, "cache_count", cache, 0, "stored")["result"], [3])


def test_what_is_released_is_forgotten(worker: Worker) -> None:
    things = [ask(worker, "array", ARRAY)["result"] for _ in range(3)]
    ask(worker, "describe", released=[thing.number for thing in things[:2]])
    assert list(worker.things) == [things[2].number]
    assert ask(worker, "numpy", things[0])["error"]["kind"] == "KeyError"


def test_errors_are_answers(worker: Worker) -> None:
    error = ask(worker, "mask", [["window", 0, 0]])["error"]
    assert error["kind"] == "ShapeError"
    assert ask(worker, "numpy", "no array at all")["result"].shape == ()
    assert ask(worker, "numpy")["error"]["kind"] == "TypeError"


@pytest.mark.parametrize("method", ["allow", "close", "_moved", "__init__", "backend", "eval"])
def test_nothing_else_can_be_asked_for(worker: Worker, method: str) -> None:
    assert ask(worker, method)["error"]["kind"] == "AttributeError"


def test_all_methods_of_a_harness_can_be_asked_for() -> None:
    assert {"describe", "array", "numpy", "mask", "attention", "merge", "vjp", "make_cache", "cache_call"} <= METHODS


def test_a_declaration_crosses(worker: Worker) -> None:
    said = ask(worker, "describe")["result"]
    assert said["capabilities"]["dtypes"] == sorted(Plain.declared.dtypes)
    wire.pack(said)


def test_what_cannot_cross_is_an_error_and_not_the_end() -> None:
    class Lazy(Plain):
        def to_numpy(self, array: Any) -> Any:
            return memoryview(array)

    source, sink = io.BytesIO(), io.BytesIO()
    for call, method, arguments in ((1, "array", [ARRAY]), (2, "numpy", [wire.Reference(0)]), (3, "reasons", [7, 8])):
        request = {"method": method, "arguments": arguments, "options": {}, "released": []}
        wire.write(source, wire.pack({"call": call, **request}))
    source.seek(0)
    serve(Worker(Harness("lazy", Lazy(), Lazy())), source, sink)
    sink.seek(0)
    first, second, third = wire.read(sink), wire.read(sink), wire.read(sink)
    assert (first["call"], second["call"], third["call"]) == (1, 2, 3)
    assert "to_numpy" in second["error"]["message"]
    assert "memoryview" in second["error"]["message"]
    assert third["error"]["kind"] == "TypeError"


def test_the_classes_of_numbers_are_those_that_attention_takes(worker: Worker) -> None:
    """A scale that is a NumPy number stays one: it must not promote anything (A11)."""
    arrays = [ask(worker, "array", ARRAY.astype(np.float16))["result"]] * 3
    (output,) = ask(worker, "attention", arrays, {"scale": np.float64(0.5)})["result"]
    assert worker.things[output.number].dtype == np.float16
    assert isinstance(worker.harness.backend, ak.Backend)
