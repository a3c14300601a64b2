"""Selection: the order of choices, and contexts that are local to threads and tasks (S1, S3)."""

from __future__ import annotations

import asyncio
import threading

import numpy as np
import pytest

import attnkit as ak

NUMPY = (("numpy.ndarray", "cpu"),)


@pytest.fixture
def x():
    return np.ones((1, 2, 3, 4), np.float32)


@pytest.fixture
def ran(x):
    """Give the ``"backend:path"`` that runs a small call, and check that it is the one whose numbers come out."""

    def ran(**options):
        with ak.trace() as calls:
            output = ak.attention(x, x, x, **options)
        (call,) = calls
        assert (output == {"a": 1, "b": 2, "c": 3}[call.backend]).all()
        return f"{call.backend}:{call.path}"

    return ran


# The order of choices


def test_automatic_choice_is_the_last_resort(three, ran) -> None:
    assert ran() == "a:attention"


def test_the_environment_goes_before_automatic_choice(three, ran, monkeypatch) -> None:
    monkeypatch.setenv("ATTNKIT_BACKEND", "b")
    assert ran() == "b:fast"


def test_the_context_goes_before_the_environment(three, ran, monkeypatch) -> None:
    monkeypatch.setenv("ATTNKIT_BACKEND", "b")
    with ak.use_backend("c"):
        assert ran() == "c:attention"
    assert ran() == "b:fast"


def test_the_argument_goes_before_the_context(three, ran, monkeypatch) -> None:
    monkeypatch.setenv("ATTNKIT_BACKEND", "a")
    with ak.use_backend("c"):
        assert ran(backend="b") == "b:fast"
        assert ran() == "c:attention"


def test_the_environment_is_read_at_each_call(three, ran, monkeypatch) -> None:
    assert ran() == "a:attention"
    monkeypatch.setenv("ATTNKIT_BACKEND", "b:exact")
    assert ran() == "b:exact"
    monkeypatch.setenv("ATTNKIT_BACKEND", "")
    assert ran() == "a:attention"


@pytest.mark.parametrize("how", ["argument", "context", "environment"])
class TestExplicit:
    """Each of the three explicit ways takes the same spellings and never falls back."""

    @pytest.fixture
    def chosen(self, how, ran, monkeypatch):
        def chosen(choice):
            if how == "argument":
                return ran(backend=choice)
            if how == "context":
                with ak.use_backend(choice):
                    return ran()
            monkeypatch.setenv("ATTNKIT_BACKEND", choice if isinstance(choice, str) else ", ".join(choice))
            return ran()

        return chosen

    @pytest.mark.parametrize(
        ("choice", "runs"),
        [
            ("c", "c:attention"),
            ("b", "b:fast"),
            ("b:exact", "b:exact"),
            (["c", "a"], "c:attention"),
            (["b:exact", "a"], "b:exact"),
            (("c",), "c:attention"),
        ],
    )
    def test_takes_what_is_named(self, three, chosen, choice, runs) -> None:
        assert chosen(choice) == runs

    @pytest.mark.parametrize("choice", ["nobody", "nobody:path", ["a", "nobody"], ["nobody", "a"]])
    def test_an_unknown_name_is_an_error(self, three, chosen, choice) -> None:
        with pytest.raises(ak.BackendNotFoundError, match="no backend named 'nobody'; available: a, b, c"):
            chosen(choice)

    @pytest.mark.parametrize("choice", ["b:slow", ["b:slow", "a"]])
    def test_an_unknown_path_is_an_error(self, three, chosen, choice) -> None:
        with pytest.raises(ak.BackendNotFoundError, match="'b' has no path 'slow'; available: fast, exact"):
            chosen(choice)

    def test_what_cannot_run_here_is_an_error(self, three, kit, chosen) -> None:
        ak.register(kit.spec("gpu", available=lambda: "no device", install_hint="pip install gpu"))
        with pytest.raises(ak.BackendUnavailableError, match="no device; pip install gpu"):
            chosen("gpu")

    def test_what_does_not_take_the_call_is_an_error(self, three, kit, chosen) -> None:
        ak.register(kit.spec("half", capabilities=lambda _self: ak.Capabilities(dtypes=frozenset({"float16"}))))
        with pytest.raises(ak.UnsupportedError, match="'half' does not take this call") as caught:
            chosen("half")
        assert [reason.code for reason in caught.value.reasons["half"]] == ["dtypes"]

    def test_a_list_goes_on_to_what_takes_the_call(self, three, kit, chosen) -> None:
        ak.register(kit.spec("half", capabilities=lambda _self: ak.Capabilities(dtypes=frozenset({"float16"}))))
        ak.register(kit.spec("gpu", available=lambda: "no device"))
        assert chosen(["half", "gpu", "c", "a"]) == "c:attention"

    def test_a_list_of_which_none_takes_the_call_is_an_error(self, three, kit, chosen) -> None:
        ak.register(kit.spec("half", capabilities=lambda _self: ak.Capabilities(dtypes=frozenset({"float16"}))))
        ak.register(kit.spec("gpu", available=lambda: "no device"))
        with pytest.raises(ak.UnsupportedError, match=r"none of the chosen backends \(half, gpu\)") as caught:
            chosen(["half", "gpu"])
        reasons = caught.value.reasons
        assert {name: [reason.code for reason in why] for name, why in reasons.items()} == {
            "half": ["dtypes"],
            "gpu": ["unavailable"],
        }

    def test_a_list_goes_past_a_plug_in_that_did_not_load(self, three, chosen, monkeypatch) -> None:
        monkeypatch.setattr(three, "_broken", [ak.BackendInfo("bad", "somewhere", False, "ImportError: no")])
        assert chosen(["bad", "c"]) == "c:attention"
        with pytest.raises(ak.BackendUnavailableError, match="'bad' of somewhere failed to load: ImportError: no"):
            chosen("bad")


@pytest.mark.parametrize("choice", [[], (), 5, 0, [["a"], "b"], [5], object(), b"a"])
def test_a_choice_of_another_kind_is_an_error(three, ran, choice) -> None:
    with pytest.raises(ak.BackendNotFoundError, match="backend must be a name, a Backend, or a list of them"):
        ran(backend=choice)
    with pytest.raises(ak.BackendNotFoundError, match="backend must be"), ak.use_backend(choice):
        pass


def test_a_backend_itself_may_be_chosen(three, ran, kit) -> None:
    mine = kit.backend("c", attention=kit.constant(3))
    assert ran(backend=mine) == "c:attention"
    assert ran(backend=[mine, "a"]) == "c:attention"
    with ak.use_backend(mine):
        assert ran() == "c:attention"


def test_a_chosen_backend_need_not_own_the_arrays_nor_be_automatic(three, kit, x) -> None:
    ak.register(kit.spec("shy", automatic=False, attention=kit.constant(7)))
    assert (ak.attention(x, x, x, backend="shy") == 7).all()


def test_an_error_about_the_environment_says_so(three, ran, monkeypatch) -> None:
    monkeypatch.setenv("ATTNKIT_BACKEND", "a, nobody")
    with pytest.raises(ak.BackendNotFoundError, match="ATTNKIT_BACKEND=a, nobody: no backend named 'nobody'"):
        ran()


# Contexts


def test_contexts_nest_and_are_restored_when_an_error_passes(three, ran) -> None:
    with ak.use_backend("b"):
        with pytest.raises(ZeroDivisionError), ak.use_backend("c"):
            raise ZeroDivisionError
        assert ran() == "b:fast"
        with ak.use_backend(["c", "a"]):
            assert ran() == "c:attention"
        assert ran() == "b:fast"
    assert ran() == "a:attention"


def test_an_unknown_name_is_refused_before_the_block_runs(three, ran) -> None:
    entered = []
    with pytest.raises(ak.BackendNotFoundError, match="'nobody'"), ak.use_backend("nobody"):
        entered.append(1)
    assert not entered
    assert ran() == "a:attention"


def test_contexts_are_local_to_threads(three, ran) -> None:
    meet, found = threading.Barrier(3, timeout=60), {}

    def work(name):
        with ak.use_backend(name):
            meet.wait()
            found[name] = ran()
            meet.wait()
        found[name, "after"] = ran()

    threads = [threading.Thread(target=work, args=(name,)) for name in ("b", "c")]
    for thread in threads:
        thread.start()
    meet.wait()
    assert ran() == "a:attention"
    meet.wait()
    for thread in threads:
        thread.join()
    after = {("b", "after"): "a:attention", ("c", "after"): "a:attention"}
    assert found == {"b": "b:fast", "c": "c:attention", **after}


def test_contexts_are_local_to_tasks(three, ran) -> None:
    order = []

    async def work(name):
        with ak.use_backend(name):
            for _ in range(3):
                await asyncio.sleep(0)
                order.append((name, ran()[0]))

    async def main():
        with ak.use_backend("a"):
            await asyncio.gather(work("b"), work("c"))
            return ran()

    assert asyncio.run(main()) == "a:attention"
    assert order == [("b", "b"), ("c", "c")] * 3
