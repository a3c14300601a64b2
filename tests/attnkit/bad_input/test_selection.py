"""Wrong backends: by argument, context, environment and registration."""

from __future__ import annotations

import os
from unittest.mock import patch

import pytest

import attnkit as ak

LOST, BROKEN = ak.BackendNotFoundError, ak.PluginError
FORM = "backend must be a name, a Backend, or a list of them with at least one"


def call(backend):
    return lambda w: ak.attention(*w.arrays, backend=backend)


def inside(choice):
    def run(w):
        with ak.use_backend(choice):
            ak.attention(*w.arrays)

    return run


def environment(value):
    def run(w):
        with patch.dict(os.environ, ATTNKIT_BACKEND=value):
            ak.attention(*w.arrays)

    return run


def register(*arguments):
    return lambda w: ak.register(*arguments)


def spec(name):
    return ak.BackendSpec(name=name, load=lambda: None)


class NoSpec:
    @ak.hookimpl
    def attnkit_register_backends(self):
        return ["numpy"]


class Crash:
    @ak.hookimpl
    def attnkit_register_backends(self):
        raise KeyError("lost")


TABLE = [
    ("unknown", call("nobody"), LOST, "no backend named 'nobody'; available: ", "numpy"),
    ("empty name", call(""), LOST, "no backend named ''; available: "),
    ("upper case", call("NumPy"), LOST, "no backend named 'NumPy'", "numpy"),
    ("two in one name", call("numpy,torch"), LOST, "no backend named 'numpy,torch'"),
    ("unknown path", call("numpy:best"), LOST, "backend 'numpy' has no path 'best'; available: ", "dense"),
    ("empty path", call("numpy:"), LOST, "backend 'numpy' has no path ''; available: ", "dense"),
    ("no name", call(":dense"), LOST, "no backend named ''"),
    ("empty list", call([]), LOST, FORM, "got []"),
    ("a number", call(3), LOST, FORM, "got 3"),
    ("bytes", call(b"numpy"), LOST, FORM, "got b'numpy'"),
    ("a class", call(ak.Backend), LOST, FORM, "attnkit.backend.Backend"),
    ("a number in a list", call(["numpy", 3]), LOST, FORM, "got ['numpy', 3]"),
    ("a list in a list", call([["numpy"]]), LOST, FORM, "got [['numpy']]"),
    ("unknown in a list", call(["numpy", "nobody"]), LOST, "no backend named 'nobody'"),
    ("unknown path in a list", call(["numpy:best"]), LOST, "backend 'numpy' has no path 'best'"),
    ("context unknown", inside("nobody"), LOST, "no backend named 'nobody'"),
    ("context path", inside("numpy:best"), LOST, "backend 'numpy' has no path 'best'"),
    ("context None", inside(None), LOST, FORM, "got None"),
    ("context empty", inside([]), LOST, FORM, "got []"),
    ("environment unknown", environment("nobody"), LOST, "ATTNKIT_BACKEND=nobody", "no backend named 'nobody'"),
    ("environment path", environment("numpy:best"), LOST, "backend 'numpy' has no path 'best'"),
    ("environment list", environment("numpy, nobody"), LOST, "ATTNKIT_BACKEND=numpy, nobody", "'nobody'"),
    ("environment comma", environment(","), LOST, "ATTNKIT_BACKEND=,", "no backend named ''"),
    ("get unknown", lambda w: ak.get_backend("nobody"), LOST, "no backend named 'nobody'; available: ", "numpy"),
    ("get a path", lambda w: ak.get_backend("numpy:dense"), LOST, "no backend named 'numpy:dense'"),
    ("get None", lambda w: ak.get_backend(None), LOST, "no backend named None"),
    ("register None", register(None), BROKEN, "NoneType gives no backend", "attnkit_register_backends"),
    ("register an object", register(object(), "mine"), BROKEN, "plug-in mine gives no backend"),
    ("register no spec", register(NoSpec(), "mine"), BROKEN, "plug-in mine", "must give BackendSpec, got str"),
    ("register a crash", register(Crash(), "mine"), BROKEN, "mine", "KeyError", "lost"),
    ("register a taken name", register(spec("numpy"), "mine"), BROKEN, "'numpy' is claimed by", "mine"),
    ("register capitals", register(spec("Mine")), BROKEN, "lower case", "got 'Mine'"),
    ("register a colon", register(spec("my:own")), BROKEN, "without colon, comma or space, got 'my:own'"),
    ("register no name", register(spec("")), BROKEN, "lower case", "got ''"),
]


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row[0])
def test_backends(world, row, monkeypatch) -> None:
    monkeypatch.delenv("ATTNKIT_BACKEND", raising=False)
    world.refuses(*row)
