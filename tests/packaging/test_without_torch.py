"""Machines where torch is missing or broken: the torch backend says so, and everything else works (S4)."""

from __future__ import annotations

import json
import site
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

COMMAND = "pip install 'attnkit[torch]'"
OURS = ("attnkit", "attnkit_conformance", "attnkit_cupy", "attnkit_numpy", "attnkit_torch")
TORCH = {"torch", "torchgen", "functorch"}
BROKEN = {
    "a library is missing": "ImportError('libtorch_cpu.so: cannot open shared object file')",
    "a DLL does not load": "OSError('[WinError 126] error loading c10.dll')",
    "built for another Python": "RuntimeError('module compiled against ABI version 0x1000009')",
}
PROGRAM = """
import json, numpy, attnkit as ak

x = numpy.ones((1, 2, 3, 4), "float32")

def attend(choice):
    try:
        return bool((ak.attention(x, x, x, backend=choice) == x).all())
    except ak.AttnkitError as error:
        return f"{type(error).__name__}: {error}"

chosen = {name: attend(name) for name in ("numpy", "torch", "torch:tiled")}
chosen |= {"automatic": attend(None), "torch, then numpy": attend(["torch", "numpy"])}
explained = ak.explain(x, x, x).to_dict()
print(json.dumps({"chosen": chosen, "explained": explained}))
"""


def link_packages(folder: Path) -> Path:
    """Fill a folder with links to all installed packages, ours among them, but torch."""
    for package in OURS:
        spec = find_spec(package)
        assert spec is not None
        assert spec.origin is not None
        (folder / package).symlink_to(Path(spec.origin).parent)
    for entry in (entry for packages in site.getsitepackages() for entry in Path(packages).glob("*")):
        hidden = entry.name.partition("-")[0] in TORCH or entry.suffix == ".pth"
        if not hidden and not (folder / entry.name).exists():
            (folder / entry.name).symlink_to(entry)
    return folder


class Machine:
    """This Python with the packages of one folder and none besides."""

    def __init__(self, python: Callable[..., str], packages: Path) -> None:
        self._python, self._packages = python, packages
        self.tells: dict[str, Any] = json.loads(self("-c", PROGRAM))

    def __call__(self, *arguments: str) -> str:
        """Run it with arguments; gives its output."""
        folder = self._packages.parent
        return self._python("-S", "-W", "error", *arguments, folder=folder, path=self._packages)

    def listed(self, name: str) -> dict[str, Any]:
        """Give a backend's line of ``attnkit backends``, loaded where it can be."""
        lines = json.loads(self("-m", "attnkit", "backends", "--load", "--json"))
        return next(line for line in lines if line["name"] == name)


@pytest.fixture(scope="module")
def bare(python, tmp_path_factory) -> Machine:
    return Machine(python, link_packages(tmp_path_factory.mktemp("bare")))


@pytest.fixture(scope="module", params=BROKEN)
def broken(request, python, tmp_path_factory) -> tuple[Machine, str]:
    """A machine whose torch fails to import, and the words it fails with."""
    folder, failure = link_packages(tmp_path_factory.mktemp("broken")), BROKEN[request.param]
    (folder / "torch").mkdir()
    (folder / "torch" / "__init__.py").write_text(f"raise {failure}\n", "utf-8")
    return Machine(python, folder), failure.split("'")[1]


def test_it_is_listed_with_the_reason_and_the_command(bare) -> None:
    table = bare("-m", "attnkit", "backends")
    assert "torch does not run here: torch is not installed" in table
    assert f"try: {COMMAND}" in table
    line = bare.listed("torch")
    assert (line["available"], line["reason"], line["install_hint"]) == (False, "torch is not installed", COMMAND)


def test_numpy_works_without_it(bare) -> None:
    assert bare.tells["chosen"]["automatic"] is True
    assert bare.tells["explained"]["backend"] == "numpy"


@pytest.mark.parametrize("choice", ["torch", "torch:tiled"])
def test_to_ask_for_it_is_an_error_with_the_command(bare, choice) -> None:
    message = "backend 'torch' cannot run here: torch is not installed"
    assert bare.tells["chosen"][choice] == f"BackendUnavailableError: {message}; {COMMAND}"


def test_an_explanation_names_the_reason_and_the_command(bare) -> None:
    (reason,) = bare.tells["explained"]["rejected"]["torch"]
    assert (reason["code"], reason["actual"], reason["hint"]) == ("unavailable", "torch is not installed", COMMAND)


def test_a_preference_goes_on_to_the_next(bare) -> None:
    assert bare.tells["chosen"]["torch, then numpy"] is True


def test_a_broken_one_is_listed_with_its_own_words(broken) -> None:
    machine, words = broken
    line = machine.listed("torch")
    assert not line["available"]
    assert words in line["reason"]


def test_a_broken_one_hides_no_other(broken) -> None:
    machine, words = broken
    assert machine.tells["chosen"]["automatic"] is machine.tells["chosen"]["numpy"] is True
    assert machine.tells["explained"]["backend"] == "numpy"
    (reason,) = machine.tells["explained"]["rejected"]["torch"]
    assert reason["code"] == "unavailable"
    assert words in reason["actual"]


@pytest.mark.parametrize("choice", ["torch", "torch:tiled"])
def test_to_ask_for_a_broken_one_is_an_error_with_its_words(broken, choice) -> None:
    machine, words = broken
    assert words in machine.tells["chosen"][choice]


def test_a_preference_goes_past_a_broken_one(broken) -> None:
    machine, _ = broken
    assert machine.tells["chosen"]["torch, then numpy"] is True
