"""The registry: availability, loading, and the version of the contract (S4, S5)."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import attnkit as ak


def fail(error):
    def load():
        raise error

    return load


def lines(registry):
    return {info.name: info for info in registry.infos()}


# Availability


def test_what_cannot_run_here_is_listed_with_what_mends_it(nobody, kit) -> None:
    ak.register(
        kit.spec("gpu", available=lambda: "no device", install_hint="pip install gpu", load=fail(AssertionError))
    )
    info = lines(nobody)["gpu"]
    assert (info.available, info.reason, info.install_hint) == (False, "no device", "pip install gpu")
    with pytest.raises(ak.BackendUnavailableError, match="'gpu' cannot run here: no device; pip install gpu"):
        ak.get_backend("gpu")


def test_an_availability_check_that_raises_is_a_reason(nobody, kit) -> None:
    ak.register(kit.spec("gpu", available=fail(OSError("driver too old"))))
    assert "its availability check failed: OSError: driver too old" in lines(nobody)["gpu"].reason
    with pytest.raises(ak.BackendUnavailableError, match="driver too old"):
        ak.get_backend("gpu")


def test_a_backend_that_becomes_available_is_loaded(nobody, kit) -> None:
    state = ["not yet"]
    ak.register(kit.spec("late", available=lambda: state[0]))
    with pytest.raises(ak.BackendUnavailableError, match="not yet"):
        ak.get_backend("late")
    state[0] = None
    assert ak.get_backend("late").name == "late"


# Loading


def test_loading_happens_once(nobody, kit) -> None:
    loads = []

    def load():
        loads.append(1)
        return kit.backend("one")

    ak.register(kit.spec("one", load=load))
    assert ak.get_backend("one") is ak.get_backend("one")
    assert loads == [1]


def test_loading_happens_once_in_many_threads(nobody, kit) -> None:
    loads, found, start = [], [], threading.Barrier(8, timeout=60)

    def load():
        loads.append(1)
        threading.Event().wait(0.02)
        return kit.backend("one")

    def ask():
        start.wait()
        found.append(ak.get_backend("one"))

    ak.register(kit.spec("one", load=load))
    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert loads == [1]
    assert len(found) == 8
    assert len(set(map(id, found))) == 1


@pytest.mark.parametrize(
    ("load", "error", "message"),
    [
        (
            fail(ImportError("no torch")),
            ak.BackendUnavailableError,
            "'one' failed to import: no torch; pip install one",
        ),
        (fail(RuntimeError("boom")), ak.PluginError, "'one' of hand failed to load: RuntimeError: boom"),
        (lambda: None, ak.PluginError, "load() must give a Backend, got NoneType"),
        (lambda: object, ak.PluginError, "load() must give a Backend, got type"),
    ],
)
def test_a_backend_that_does_not_load(nobody, kit, load, error, message) -> None:
    ak.register(kit.spec("one", load=load, install_hint="pip install one"), "hand")
    with pytest.raises(error) as caught:
        ak.get_backend("one")
    assert message in str(caught.value)


def test_a_backend_bears_the_name_of_its_spec(nobody, kit) -> None:
    ak.register(kit.spec("one", load=lambda: kit.backend("two")), "hand")
    with pytest.raises(ak.PluginError, match="its name must be that of its spec, got 'two'"):
        ak.get_backend("one")


@pytest.mark.parametrize("declare", [lambda _self: None, lambda _self: {"gqa": True}, lambda _self: 1 / 0])
def test_capabilities_that_are_none(nobody, kit, declare) -> None:
    ak.register(kit.spec("one", capabilities=declare), "hand")
    with pytest.raises(ak.PluginError, match=r"'one' of hand: capabilities\(\) must give Capabilities"):
        ak.get_backend("one")


def test_a_backend_that_fails_to_load_does_not_hide_another_owner(nobody, kit) -> None:
    claim = ((kit.toy_name, "cpu"),)
    ak.register(kit.spec("bad", owns=claim, priority=9, load=fail(RuntimeError("boom"))))
    ak.register(kit.spec("worse", owns=claim, priority=9, capabilities=lambda _self: 1 / 0))
    ak.register(kit.spec("good", owns=claim))
    x = np.ones((2, 4), np.float32).view(kit.Toy)
    assert ak.explain(x, x, x).backend == "good"


# The version of the contract


@pytest.mark.parametrize("version", ["0.9", "2.0", "11.0", "", "one"])
def test_another_major_version_is_refused_at_load(nobody, kit, version) -> None:
    ak.register(kit.spec("old", contract_version=version), "hand")
    assert "old" in nobody.names()
    with pytest.raises(ak.PluginError, match=f"'old' of hand is written for contract {version}"):
        ak.get_backend("old")


@pytest.mark.parametrize("version", ["1.0", "1.7", "1.99.3", "1"])
def test_any_minor_version_loads(nobody, kit, version) -> None:
    ak.register(kit.spec("new", contract_version=version))
    assert ak.get_backend("new").contract_version == version


def test_a_newer_minor_version_loads_with_its_new_options_undeclared(nobody, kit) -> None:
    def declare(_self):
        return ak.Capabilities.declare("1.7", lse=True, dropout=True, rotary=True)

    ak.register(kit.spec("new", contract_version="1.7", capabilities=declare))
    capabilities = ak.get_backend("new").capabilities()
    assert capabilities.lse
    assert not hasattr(capabilities, "dropout")


def test_an_unknown_option_of_our_own_version_is_refused(nobody, kit) -> None:
    ak.register(kit.spec("typo", capabilities=lambda _self: ak.Capabilities.declare("1.0", softcp=True)))
    with pytest.raises(ak.PluginError, match=r"unknown fields \['softcp'\] for contract 1.0"):
        ak.get_backend("typo")


# The names that people ask for


@pytest.mark.parametrize("name", ["nobody", "", "one:dense", "ONE"])
def test_an_unknown_name_lists_the_known_ones(nobody, kit, name) -> None:
    ak.register(kit.spec("one"))
    ak.register(kit.spec("two"))
    with pytest.raises(ak.BackendNotFoundError, match=f"no backend named '{name}'; available: one, two"):
        ak.get_backend(name)
    with pytest.raises(LookupError):
        ak.get_backend(name)


def test_the_installed_plug_ins_are_listed() -> None:
    assert {"cupy", "numpy", "torch"} <= {info.name for info in ak.backends()}


# Plug-ins that misbehave later than at import


@pytest.mark.parametrize("owns", [("numpy.ndarray", "cpu"), (("numpy.ndarray",),), ((1, "cpu"),), "numpy", None])
def test_claims_that_are_no_pairs_are_refused_at_once(nobody, kit, owns) -> None:
    with pytest.raises(ak.PluginError, match=r"owns of backend 'flat' must be a tuple of \(array type, device kind\)"):
        ak.register(kit.spec("flat", owns=owns))
    assert nobody.names() == []


def test_exits_of_a_plug_in_are_reasons(nobody, kit, plain) -> None:
    ak.register(kit.spec("leaves", available=fail(SystemExit(4))))
    ak.register(kit.spec("quits", load=fail(SystemExit(3))))
    assert "SystemExit: 4" in lines(nobody)["leaves"].reason
    with pytest.raises(ak.PluginError, match="SystemExit: 3"):
        ak.get_backend("quits")
    x = np.ones((2, 3), np.float32)
    assert ak.explain(x, x, x).backend == "plain"


def test_an_availability_check_gives_text(nobody, kit) -> None:
    ak.register(kit.spec("odd", available=lambda: 3))
    assert lines(nobody)["odd"].reason == "its availability check must give a text or None, got 3"


@pytest.mark.parametrize(
    ("attribute", "value", "words"),
    [
        ("paths", "attention", "paths must be a tuple of names"),
        ("paths", (), "paths must be a tuple of names"),
        ("priority", None, "priority must be an int, got None"),
        ("priority", "9", "priority must be an int, got '9'"),
    ],
)
def test_attributes_of_the_wrong_type_are_refused_at_load(nobody, kit, monkeypatch, attribute, value, words) -> None:
    backend = kit.backend("odd")
    monkeypatch.setattr(type(backend), attribute, value)
    ak.register(kit.spec("odd", load=lambda: backend))
    with pytest.raises(ak.PluginError, match=words):
        ak.get_backend("odd")


@pytest.mark.parametrize(
    ("method", "replacement", "words"),
    [
        ("preference", lambda _request: 1 / 0, "failed to plan: ZeroDivisionError"),
        ("preference", lambda _request: ("nope",), "preference\\(\\) gives 'nope'"),
        ("plan", lambda _request, _path: 1 / 0, "failed to plan: ZeroDivisionError"),
        ("plan", lambda _request, _path: None, "plan\\(\\) must give a Plan, got NoneType"),
    ],
)
def test_a_backend_that_fails_to_plan_is_named(nobody, kit, monkeypatch, method, replacement, words) -> None:
    backend = kit.backend("odd")
    monkeypatch.setattr(backend, method, replacement)
    x = np.ones((2, 3), np.float32)
    with pytest.raises(ak.PluginError, match=words):
        ak.attention(x, x, x, backend=backend)
    assert "odd" in ak.explain(x, x, x, backend=backend).error


def test_paths_must_be_those_that_the_spec_tells(kit, nobody) -> None:
    nobody.register(ak.BackendSpec("told", lambda: kit.backend("told", paths=("other",)), paths=("fast", "exact")))
    nobody.register(ak.BackendSpec("untold", lambda: kit.backend("untold", paths=("own",))))
    assert {info.name: info.paths for info in nobody.infos()} == {"told": ("fast", "exact"), "untold": ()}
    assert ak.get_backend("untold").paths == ("own",)
    with pytest.raises(ak.PluginError, match=r"'told' of .*its paths must be those of its spec, \('fast', 'exact'\)"):
        ak.get_backend("told")
