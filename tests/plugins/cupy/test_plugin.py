"""The two backends that the plug-in registers."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

import attnkit as ak
from attnkit_cupy import plugin
from attnkit_cupy.availability import why_not

WITHOUT_CUPY = """
import sys
from importlib.abc import MetaPathFinder

class Hidden(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "cupy":
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Hidden())
import importlib.util
original = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == "cupy" else original(name, *rest)
import numpy as np
import attnkit as ak
"""


def info_of(name: str) -> ak.BackendInfo:
    return next(info for info in ak.backends() if info.name == name)


def test_both_are_listed() -> None:
    cupy, emulated = plugin.attnkit_register_backends()
    assert (cupy.name, cupy.owns, cupy.paths) == ("cupy", (("cupy.ndarray", "cuda"),), ("raw", "dense"))
    assert (emulated.name, emulated.owns, emulated.paths) == ("cuda-emulated", (), ("raw",))
    assert info_of("cupy").reason == (why_not() or "")
    assert info_of("cuda-emulated").available


def test_the_command_is_told_where_a_package_is_what_is_missing(monkeypatch: Any) -> None:
    monkeypatch.setattr(plugin, "find_spec", lambda name: None)
    assert plugin.attnkit_register_backends()[0].install_hint.startswith("pip install 'attnkit[cupy-cuda13]'")
    monkeypatch.setattr(plugin, "find_spec", lambda name: object())
    assert plugin.attnkit_register_backends()[0].install_hint == ""


def test_the_emulator_is_never_chosen_unless_it_is_named() -> None:
    array = np.ones((1, 1, 2, 4), np.float32)
    assert ak.explain(array, array, array).backend != "cuda-emulated"
    assert ak.explain(array, array, array, backend="cuda-emulated").path == "raw"
    assert not ak.get_backend("cuda-emulated").automatic


def test_without_a_compiler_the_emulator_tells_why(monkeypatch: Any) -> None:
    monkeypatch.setattr("attnkit_cupy.emulator.compiler.available", lambda: "no compiler")
    assert plugin.attnkit_register_backends()[1].available() == "no compiler"


@pytest.mark.skipif(why_not() is None, reason="CuPy runs here")
def test_what_cannot_run_is_refused_with_the_reason() -> None:
    array = np.ones((1, 1, 2, 4), np.float32)
    with pytest.raises(ak.BackendUnavailableError) as caught:
        ak.attention(array, array, array, backend="cupy")
    assert str(why_not()) in str(caught.value)


def test_a_broken_cupy_is_told_from_a_broken_backend(monkeypatch: Any) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(ImportError, match="CuPy does not import"):
        plugin.attnkit_register_backends()[0].load()


def test_the_emulator_needs_no_cupy() -> None:
    program = WITHOUT_CUPY + (
        "x = np.ones((1, 1, 2, 4), np.float32)\n"
        "assert (ak.attention(x, x, x, backend='cuda-emulated') == 1).all()\n"
        "(line,) = [info for info in ak.backends() if info.name == 'cupy']\n"
        "assert (line.available, line.reason) == (False, 'CuPy is not installed'), line\n"
        "assert 'cupy' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.skipif(find_spec("cupy") is None, reason="CuPy is not installed")
def test_the_spec_and_the_backend_agree() -> None:
    from attnkit_cupy.backend import CupyBackend

    assert (CupyBackend.name, CupyBackend.paths) == ("cupy", plugin.attnkit_register_backends()[0].paths)
    assert CupyBackend.automatic
