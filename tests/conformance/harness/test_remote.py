"""A backend in a process of its own: it gives what it gives in this one, sees no answers, and may do what it likes."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import attnkit as ak
from attnkit_conformance.harness import wire
from attnkit_conformance.harness.failures import BackendDied, BackendError, BackendGone, BackendHung
from attnkit_conformance.harness.local import Harness
from attnkit_conformance.harness.remote import RemoteHarness
from attnkit_conformance.harness.targets import TargetError, UnavailableError, open_target
from attnkit_conformance.items import Item, items
from attnkit_conformance.runner import run_item
from attnkit_conformance.subject import Subject

Open = Callable[..., RemoteHarness]
ARRAY = np.random.default_rng(3).standard_normal((1, 2, 5, 8)).astype(np.float32)
PRINTING, LEAVING, FALLING, HANGING, WRITING, RAISING, EXITING, SILENT, WITH_A_CHILD = range(1, 10)


@pytest.fixture(scope="module")
def numpy_backend() -> Iterator[RemoteHarness]:
    harness = RemoteHarness("numpy")
    yield harness
    harness.close()


def call(harness: Harness, scale: float = 1.0) -> np.ndarray[Any, Any]:
    (output,) = harness.attention([harness.array(ARRAY)] * 3, {"scale": scale})
    return harness.numpy(output)


def sample(share: float) -> list[Item]:
    return items(2, seed=11, sample=share)


def test_it_is_described_as_in_this_process(numpy_backend: RemoteHarness) -> None:
    assert numpy_backend.describe() == open_target("numpy").describe()
    here, there = open_target("numpy").environment(), numpy_backend.environment()
    assert {**here, "threads": ""} == {**there, "threads": ""}


@pytest.mark.parametrize("item", sample(0.01), ids=str)
def test_items_come_to_the_same_in_both(numpy_backend: RemoteHarness, item: Item) -> None:
    there = run_item(item, Subject(numpy_backend))
    here = run_item(item, Subject(open_target("numpy")))
    assert there.model_copy(update={"seconds": 0}) == here.model_copy(update={"seconds": 0})


def test_no_answer_crosses(numpy_backend: RemoteHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every array that is sent is an argument of the call: what the oracle says never leaves this process."""
    sent: list[np.ndarray[Any, Any]] = []
    pack = wire.pack

    def spy(value: object) -> wire.Frame:
        wire.mapped(lambda leaf: sent.append(leaf) if isinstance(leaf, np.ndarray) else None, value)
        return pack(value)

    monkeypatch.setattr(wire, "pack", spy)
    item = next(item for item in items(2) if "bias" in item.case.options and item.test.startswith("TestOptions::"))
    case = item.case
    assert run_item(item, Subject(numpy_backend)).status == "PASS"
    given = [*case.arrays, *(option for option in case.options.values() if isinstance(option, np.ndarray))]
    assert len(sent) >= 3
    for array in sent:
        assert any(array.dtype == one.dtype and np.array_equal(array, one) for one in given), array.shape
    for answer in (
        case.truth.output,
        case.truth.lse,
        case.tolerance(Subject(numpy_backend).numerics("float32")).output,
    ):
        assert not any(array.shape == answer.shape and np.allclose(array, answer) for array in sent)


def test_names_of_items_do_not_cross(numpy_backend: RemoteHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    frames: list[bytes] = []
    write = wire.write
    monkeypatch.setattr(wire, "write", lambda stream, frame: (frames.append(bytes(frame[0])), write(stream, frame))[1])
    for item in sample(0.01):
        run_item(item, Subject(numpy_backend))
        assert frames
        assert not any(word.encode() in b"".join(frames) for word in (item.id, item.test, "ATTN-"))
        frames.clear()


def test_what_is_not_held_here_is_released_there(numpy_backend: RemoteHarness) -> None:
    kept = numpy_backend.array(ARRAY)
    before = None
    for _ in range(5):
        for _ in range(20):
            call(numpy_backend)
        gc.collect()
        numpy_backend.needs_grad(kept)
        before = before or numpy_backend.held
        assert numpy_backend.held == before
    np.testing.assert_array_equal(numpy_backend.numpy(kept), ARRAY)


def test_things_of_another_process_are_refused(numpy_backend: RemoteHarness, remote: Open) -> None:
    other = remote("numpy")
    with pytest.raises(ValueError, match="lives in another process"):
        other.numpy(numpy_backend.array(ARRAY))
    assert other.gone is None


def test_what_cannot_cross_is_the_suites_own_error(numpy_backend: RemoteHarness) -> None:
    with pytest.raises(wire.WireError, match="no way to cross"):
        numpy_backend.write(numpy_backend.array(ARRAY), object())  # type: ignore[arg-type]  # on purpose
    assert call(numpy_backend).shape == ARRAY.shape


def test_it_may_print(odd: str, remote: Open) -> None:
    harness = remote(f"{odd}:Odd")
    np.testing.assert_array_equal(call(harness, PRINTING), call(harness, PRINTING))
    with pytest.raises(BackendDied) as caught:
        call(harness, LEAVING)
    for line in ("printed by print", "printed by a child", "printed to the descriptor", "about to leave"):
        assert line in str(caught.value)


def test_a_crash_is_told(odd: str, remote: Open) -> None:
    harness = remote(f"{odd}:Odd")
    with pytest.raises(BackendDied, match="exit status 3"):
        call(harness, LEAVING)
    assert isinstance(harness.gone, BackendDied)
    with pytest.raises(BackendDied, match="exit status 3"):
        call(harness, SILENT)


@pytest.mark.skipif(os.name == "nt", reason="Windows has no signals")
def test_a_signal_has_its_name(odd: str, remote: Open) -> None:
    with pytest.raises(BackendDied, match="signal SIGSEGV") as caught:
        call(remote(f"{odd}:Odd"), FALLING)
    assert "in falling" in str(caught.value), "the place of the crash is among the last lines"


@pytest.mark.parametrize("how", [HANGING, WITH_A_CHILD])
def test_a_hang_is_ended(odd: str, remote: Open, how: int) -> None:
    harness = remote(f"{odd}:Odd")
    harness.allow(0.5)
    started = time.perf_counter()
    with pytest.raises(BackendHung, match="no answer"):
        call(harness, how)
    assert time.perf_counter() - started < 30
    assert isinstance(harness.gone, BackendHung)


def test_the_time_of_the_suite_does_not_count(odd: str, remote: Open) -> None:
    harness = remote(f"{odd}:Odd")
    harness.allow(5.0)
    call(harness)
    left = harness._left
    time.sleep(0.3)
    assert harness._left == left
    call(harness)
    assert 0 < harness._left < left < 5.0


def test_garbage_on_the_wire_is_a_crash(odd: str, remote: Open) -> None:
    harness = remote(f"{odd}:Odd")
    with pytest.raises(BackendDied, match="no answer"):
        call(harness, WRITING)


def test_leaving_politely_is_a_crash_too(odd: str, remote: Open) -> None:
    with pytest.raises(BackendDied, match=r"exit status 1[\s\S]*enough"):
        call(remote(f"{odd}:Odd"), EXITING)


def test_an_odd_error_does_not_end_it(odd: str, remote: Open) -> None:
    harness = remote(f"{odd}:Odd")
    with pytest.raises(BackendError, match="OwnError: as odd as can be") as caught:
        call(harness, RAISING)
    assert type(caught.value) is BackendError
    assert "in raising" in caught.value.__notes__[0]
    assert call(harness).shape == ARRAY.shape


def test_refusals_come_with_their_reasons(numpy_backend: RemoteHarness) -> None:
    things = [numpy_backend.foreign(ARRAY)] * 3
    with pytest.raises(ak.UnsupportedError) as caught:
        numpy_backend.attention(things, {})
    assert {reason.code for why in caught.value.reasons.values() for reason in why} >= {"libraries"}
    with pytest.raises(ak.ShapeError):
        numpy_backend.attention([numpy_backend.array(ARRAY)] * 3, {"query_lengths": np.zeros(9, int)})


@pytest.mark.parametrize(
    ("target", "kind", "text"),
    [
        ("cupy", UnavailableError, "cupy"),
        ("{odd}:absent", UnavailableError, "no such chip here; buy one"),
        ("{odd}:broken", TargetError, "RuntimeError: no driver"),
        ("{odd}:Missing", TargetError, "Missing"),
        ("{odd}:Mumbling", TargetError, "what can I do"),
        ("{odd}:Undecided", TargetError, "poison"),
        ("numpy:nowhere", TargetError, "paths of numpy"),
        ("nobody", TargetError, "no backend named 'nobody'"),
        ("{odd}:leaving", BackendGone, "exit status 5"),
    ],
)
def test_what_cannot_be_opened(target: str, kind: type[Exception], text: str, odd: str) -> None:
    with pytest.raises(kind, match=text) as caught:
        RemoteHarness(target.format(odd=odd))
    assert type(caught.value) in (kind, BackendDied)


def test_opening_has_a_limit(remote: Open) -> None:
    with pytest.raises(BackendHung, match=r"0\.001 s"):
        remote("numpy", start=0.001)


def test_arrays_lie_on_the_device_that_was_asked_for(remote: Open) -> None:
    harness = remote("numpy", "cpu")
    assert call(harness).shape == ARRAY.shape
    assert harness.environment()["device"] == "cpu"
    with pytest.raises(UnavailableError, match="no device 'cuda:7' here"):
        RemoteHarness("numpy", "cuda:7")


def test_nothing_tells_the_backend_that_it_is_tested(odd: str, remote: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATTNKIT_BACKEND", "torch")
    monkeypatch.setenv("LEFT_ALONE", "1")
    harness = remote(f"{odd}:environment")
    with pytest.raises(ak.UnsupportedError) as caught:
        harness.attention([harness.foreign(ARRAY)] * 3, {})
    names = " ".join(caught.value.reasons)
    assert "LEFT_ALONE" in names
    assert "ATTNKIT" not in names
    assert "PYTEST" not in names
