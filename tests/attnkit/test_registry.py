"""The registry: entry points, isolation of broken plug-ins, duplicates, registration by hand (S4, S5)."""

from __future__ import annotations

import sys
import threading
from importlib.metadata import PathDistribution
from types import SimpleNamespace

import numpy as np
import pytest

import attnkit as ak
from attnkit.registry import Registry

PLUGIN = """
import attnkit as ak

@ak.hookimpl
def attnkit_register_backends():
    return ak.BackendSpec(name={name!r}, load=lambda: None, summary="From a file.")
"""


class Point:
    """An entry point whose ``load`` does what the test wants."""

    def __init__(self, name, plugin, source="other-plugins", value="other.plugin"):
        self.name, self.plugin, self.value = name, plugin, value
        self.dist = SimpleNamespace(name=source, version="1.2") if source else None

    def load(self):
        return self.plugin() if callable(self.plugin) else self.plugin


def plugin(*specs):
    """A plug-in that gives these."""

    @ak.hookimpl
    def attnkit_register_backends():
        return specs[0] if len(specs) == 1 else list(specs)

    return SimpleNamespace(attnkit_register_backends=attnkit_register_backends)  # unhashable, and none the worse for it


def raising(error):
    def hook():
        raise error

    return SimpleNamespace(attnkit_register_backends=ak.hookimpl(hook, specname="attnkit_register_backends"))


def fail(error):
    def load():
        raise error

    return load


@pytest.fixture
def discovered(nobody, monkeypatch):
    """Give a registry that discovers these entry points."""

    def make(*points) -> Registry:
        monkeypatch.setattr("attnkit.registry.entry_points", lambda group: list(points))
        return nobody

    return make


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Put a distribution with one module on the path."""
    monkeypatch.syspath_prepend(tmp_path)
    modules = []

    def write(distribution, module, name, text=None, entry=None):
        (tmp_path / f"{module}.py").write_text(PLUGIN.format(name=name) if text is None else text)
        folder = tmp_path / f"{distribution.replace('-', '_')}-3.1.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 3.1\n")
        (folder / "entry_points.txt").write_text(f"[attnkit]\n{entry or name} = {module}\n")
        modules.append(module)

    yield write
    for module in modules:
        sys.modules.pop(module, None)


def lines(registry):
    return {info.name: info for info in registry.infos()}


# Discovery


def test_a_distribution_is_found_through_its_entry_point(install) -> None:
    install("attnkit-third", "third_party_plugin", "third")
    info = lines(Registry())["third"]
    assert info.available
    assert info.source == "attnkit-third 3.1 (third_party_plugin)"
    assert info.summary == "From a file."


def test_distributions_that_fail_are_listed_beside_those_that_do_not(install) -> None:
    install("attnkit-good", "good_plugin", "good")
    install("attnkit-raises", "raises_plugin", "raises", "raise OSError('no such driver')")
    install("attnkit-syntax", "syntax_plugin", "syntax", "def")
    install("attnkit-empty", "empty_plugin", "empty", "")
    install("attnkit-gone", "gone_plugin", "gone", "import a_package_that_nobody_has")
    found = lines(Registry())
    assert found["good"].available
    assert "OSError: no such driver" in found["raises"].reason
    assert "SyntaxError" in found["syntax"].reason
    assert "gives no backend; implement attnkit_register_backends with attnkit.hookimpl" in found["empty"].reason
    assert "a_package_that_nobody_has" in found["gone"].reason
    assert [found[name].available for name in ("raises", "syntax", "empty", "gone")] == [False] * 4
    assert found["raises"].source == "attnkit-raises 3.1 (raises_plugin)"


def test_two_distributions_of_one_name_are_both_named(install) -> None:
    install("attnkit-first", "first_plugin", "twin")
    install("attnkit-second", "second_plugin", "twin")
    install("attnkit-only", "only_plugin", "only")
    registry = Registry()
    with pytest.raises(ak.PluginError) as caught:
        registry.load("twin")
    assert "attnkit-first 3.1" in str(caught.value)
    assert "attnkit-second 3.1" in str(caught.value)
    assert "uninstall one" in str(caught.value)
    assert registry.spec("only").name == "only"
    info = lines(registry)["twin"]
    assert not info.available
    assert "attnkit-first 3.1" in info.reason
    assert "attnkit-second 3.1" in info.reason


def test_the_entry_point_metadata_is_of_the_kind_that_installers_write(install, tmp_path) -> None:
    install("attnkit-third", "third_party_plugin", "third")
    points = PathDistribution(tmp_path / "attnkit_third-3.1.dist-info").entry_points
    assert [(point.group, point.name, point.value) for point in points] == [("attnkit", "third", "third_party_plugin")]


def test_discovery_happens_once_and_not_before_it_is_asked_for(discovered, kit) -> None:
    loads = []

    def load():
        loads.append(1)
        return plugin(kit.spec("one"))

    registry = discovered(Point("one", load))
    assert loads == []
    registry.names()
    registry.infos()
    registry.spec("one")
    assert loads == [1]


def test_discovery_happens_once_in_many_threads(discovered, kit) -> None:
    loads, found, start = [], [], threading.Barrier(8, timeout=60)

    def load():
        loads.append(1)
        threading.Event().wait(0.02)
        return plugin(kit.spec("one"))

    registry = discovered(Point("one", load))

    def ask():
        start.wait()
        found.append(registry.names())

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert loads == [1]
    assert found == [["one"]] * 8


def test_discovery_that_fails_as_a_whole_is_tried_again(nobody, monkeypatch, kit) -> None:
    monkeypatch.setattr("attnkit.registry.entry_points", lambda group: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        nobody.names()
    monkeypatch.setattr("attnkit.registry.entry_points", lambda group: [Point("one", plugin(kit.spec("one")))])
    assert nobody.names() == ["one"]


def test_discovery_that_is_interrupted_starts_again(nobody, monkeypatch, kit) -> None:
    interrupted = []

    def load():
        if not interrupted:
            interrupted.append(1)
            raise KeyboardInterrupt
        return plugin(kit.spec("two"))

    points = [Point("one", lambda: plugin(kit.spec("one"))), Point("two", load)]
    monkeypatch.setattr("attnkit.registry.entry_points", lambda group: points)
    with pytest.raises(KeyboardInterrupt):
        nobody.names()
    assert nobody.names() == ["one", "two"]


def test_a_distribution_without_metadata_hides_no_other(install, tmp_path) -> None:
    install("attnkit-good", "good_plugin", "good")
    install("attnkit-left", "left_plugin", "left")
    (tmp_path / "attnkit_left-3.1.dist-info" / "METADATA").unlink()
    found = lines(Registry())
    assert found["good"].available
    assert "left_plugin" in found["left"].source


def test_discovery_loads_no_backend(discovered, kit) -> None:
    registry = discovered(Point("one", plugin(kit.spec("one", load=fail(AssertionError("loaded"))))))
    assert lines(registry)["one"].available


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (fail(ImportError("no module")), "ImportError: no module"),
        (fail(SystemExit(3)), "SystemExit: 3"),
        (raising(ValueError("bad hook")), "ValueError: bad hook"),
        (raising(KeyError("x")), "KeyError: 'x'"),
        (plugin(None), "gives no backend"),
        (plugin(5), "TypeError"),
        (plugin("numpy"), "must give BackendSpec, got str"),
        (plugin([]), "gives no backend"),
        (plugin(["x"]), "must give BackendSpec, got str"),
        (SimpleNamespace(), "gives no backend"),
        (None, "gives no backend"),
        (plugin(ak.BackendSpec(name="", load=fail(AssertionError))), "a backend's name is lower case"),
        (plugin(ak.BackendSpec(name="Loud", load=fail(AssertionError))), "got 'Loud'"),
        (plugin(ak.BackendSpec(name="a:b", load=fail(AssertionError))), "without colon"),
        (plugin(ak.BackendSpec(name="a,b", load=fail(AssertionError))), "without colon, comma"),
        (plugin(ak.BackendSpec(name="a b", load=fail(AssertionError))), "comma or space"),
    ],
)
def test_a_broken_plug_in_hides_no_other(discovered, kit, broken, message) -> None:
    registry = discovered(
        Point("first", plugin(kit.spec("first"))),
        Point("middle", broken),
        Point("one", plugin(kit.spec("one"))),
    )
    found = lines(registry)
    assert found["first"].available
    assert found["one"].available
    assert not found["middle"].available
    assert message in found["middle"].reason
    assert "other-plugins 1.2 (other.plugin)" in found["middle"].source
    with pytest.raises(ak.BackendUnavailableError, match=r"'middle' of other-plugins 1\.2"):
        registry.load("middle")


def test_two_broken_plug_ins_of_one_name_are_both_listed(discovered) -> None:
    registry = discovered(
        Point("bad", fail(ValueError("one")), "dist-a"), Point("bad", fail(ValueError("two")), "dist-b")
    )
    assert [info.source.split()[0] for info in registry.infos()] == ["dist-a", "dist-b"]
    with pytest.raises(ak.BackendUnavailableError, match=r"dist-a .*one.*dist-b .*two"):
        registry.load("bad")


def test_a_plug_in_may_give_several_backends(discovered, kit) -> None:
    registry = discovered(Point("pair", plugin(kit.spec("left"), kit.spec("right"))))
    assert registry.names() == ["left", "right"]
    assert registry.load("left").name == "left"


def test_a_plug_in_that_gives_one_bad_spec_gives_none(discovered, kit) -> None:
    registry = discovered(Point("pair", plugin(kit.spec("left"), kit.spec("Right"))))
    assert registry.names() == []
    assert "got 'Right'" in lines(registry)["pair"].reason


def test_two_plug_ins_of_one_name_leave_the_others_alone(discovered, kit) -> None:
    registry = discovered(
        Point("a", plugin(kit.spec("twin"), kit.spec("only")), "dist-a"), Point("b", plugin(kit.spec("twin")), "dist-b")
    )
    for ask in (registry.load, registry.spec):
        with pytest.raises(ak.PluginError, match=r"dist-a 1.2 .*and dist-b 1.2"):
            ask("twin")
    assert registry.load("only").name == "only"


def test_several_third_parties_are_eligible_at_once(discovered, kit) -> None:
    discovered(
        Point("a", plugin(kit.spec("low", owns=((kit.toy_name, "cpu"),)))),
        Point("b", plugin(kit.spec("high", owns=((kit.toy_name, "cpu"),), priority=1))),
    )
    x = np.ones((2, 4), np.float32).view(kit.Toy)
    assert ak.explain(x, x, x).backend == "high"
    assert {"low", "high"} == {info.name for info in ak.backends() if info.available}


def test_a_source_without_a_distribution_is_its_module(discovered, kit) -> None:
    registry = discovered(Point("one", plugin(kit.spec("one")), source=None))
    assert lines(registry)["one"].source == "other.plugin"


def test_a_plug_in_may_ask_for_the_backends_while_it_is_discovered(discovered, kit) -> None:
    def load():
        ak.backends()
        return plugin(kit.spec("curious"))

    assert discovered(Point("curious", load)).names() == ["curious"]


# Registration by hand


def test_register_a_spec_a_module_and_an_object(nobody, kit) -> None:
    ak.register(kit.spec("spec"))
    ak.register(plugin(kit.spec("module")), "my module")
    ak.register(plugin(kit.spec("object")))
    assert [info.name for info in ak.backends()] == ["module", "object", "spec"]
    assert lines(nobody)["module"].source == "my module"
    assert ak.get_backend("object").name == "object"


def test_unregister_takes_it_out_and_lets_it_in_again(nobody, kit) -> None:
    mine = plugin(kit.spec("mine"))
    ak.register(mine)
    before = ak.get_backend("mine")
    nobody.unregister("mine")
    with pytest.raises(ak.BackendNotFoundError, match="no backend named 'mine'; available: none"):
        ak.get_backend("mine")
    ak.register(mine)
    assert ak.get_backend("mine") is not before


def test_unregister_knows_what_is_installed(discovered, kit) -> None:
    registry = discovered(Point("one", plugin(kit.spec("one"))))
    registry.unregister("one")
    assert registry.names() == []


def test_unregister_of_a_stranger_is_an_error(nobody) -> None:
    with pytest.raises(ak.BackendNotFoundError):
        nobody.unregister("stranger")


@pytest.mark.parametrize(
    "again", [lambda kit: kit.spec("mine"), lambda kit: plugin(kit.spec("other"), kit.spec("mine"))]
)
def test_register_refuses_a_taken_name_and_registers_nothing(nobody, kit, again) -> None:
    ak.register(kit.spec("mine"), "the first")
    first = ak.get_backend("mine")
    generation = nobody.generation
    with pytest.raises(ak.PluginError, match="'mine' is claimed by the first and the second"):
        ak.register(again(kit), "the second")
    assert nobody.names() == ["mine"]
    assert ak.get_backend("mine") is first
    assert nobody.generation == generation


def test_register_refuses_two_of_one_name_in_one_plug_in(nobody, kit) -> None:
    with pytest.raises(ak.PluginError, match="'twin' is claimed by"):
        ak.register(plugin(kit.spec("twin"), kit.spec("twin")))
    assert nobody.names() == []


@pytest.mark.parametrize("broken", [raising(ValueError("bad")), plugin(5), plugin("x"), SimpleNamespace(), 5, None])
def test_register_refuses_what_is_no_plug_in(nobody, broken) -> None:
    with pytest.raises(ak.PluginError, match="plug-in hand-made"):
        ak.register(broken, "hand-made")
    assert nobody.names() == []


def test_registering_one_plug_in_twice_is_a_clash(nobody, kit) -> None:
    mine = plugin(kit.spec("mine"))
    ak.register(mine)
    with pytest.raises(ak.PluginError, match="is claimed by"):
        ak.register(mine)


def test_two_plug_ins_of_one_class_are_two_plug_ins(nobody, kit) -> None:
    ak.register(plugin(kit.spec("left")))
    ak.register(plugin(kit.spec("right")))
    assert nobody.names() == ["left", "right"]
