"""Importing attnkit is cheap and has no side effect (S3)."""

from __future__ import annotations

import json

import pytest

ARRAY_LIBRARIES = {"cupy", "jax", "mlx", "onnxruntime", "tensorflow", "torch"}
FOR_OTHERS = {"gguf", "hypothesis", "pytest", "rich", "safetensors", "tokenizers", "typer"}


@pytest.fixture(scope="module")
def loaded(python, tmp_path_factory):
    """Give the top-level modules that a program has loaded."""

    def run(program: str) -> set[str]:
        program = f"{program}\nimport sys, json; print(json.dumps(sorted(sys.modules)))"
        output = python("-W", "error", "-c", program, folder=tmp_path_factory.mktemp("empty"))
        return {name.partition(".")[0] for name in json.loads(output.splitlines()[-1])}

    return run


def test_import_loads_no_array_library_but_numpy(loaded) -> None:
    names = loaded("import attnkit")
    assert "numpy" in names
    assert names & ARRAY_LIBRARIES == set()


def test_import_loads_nothing_of_the_command_line_the_models_or_the_suite(loaded) -> None:
    assert loaded("import attnkit") & (FOR_OTHERS | {"attnkit_conformance"}) == set()


def test_import_loads_no_plug_in(loaded) -> None:
    assert loaded("import attnkit") & {"attnkit_cupy", "attnkit_numpy", "attnkit_torch"} == set()


def test_discovery_loads_no_array_library_but_numpy(loaded) -> None:
    names = loaded("import attnkit; assert attnkit.backends()")
    assert "attnkit_torch" in names
    assert names & ARRAY_LIBRARIES == set()


@pytest.mark.parametrize("command", ["backends", "backends --json"])
def test_listing_loads_no_array_library_but_numpy(loaded, command) -> None:
    program = f"import contextlib, sys; from attnkit.cli import main; sys.argv[1:] = {command.split()}"
    names = loaded(f"{program}\nwith contextlib.suppress(SystemExit): main()")
    assert "attnkit_torch" in names
    assert names & ARRAY_LIBRARIES == set()


def test_running_on_numpy_loads_no_other_array_library(loaded) -> None:
    program = "import attnkit, numpy; x = numpy.ones((2, 3, 4), 'float32'); attnkit.attention(x, x, x)"
    assert loaded(program) & ARRAY_LIBRARIES == set()


def test_import_starts_no_thread_and_leaves_the_environment_alone(python, tmp_path) -> None:
    program = (
        "import os, threading, warnings, random, numpy; "
        "before = dict(os.environ), list(warnings.filters), random.getstate(), numpy.geterr(); import attnkit; "
        "after = dict(os.environ), list(warnings.filters), random.getstate(), numpy.geterr(); "
        "print(before == after, threading.active_count())"
    )
    assert python("-c", program, folder=tmp_path).split() == ["True", "1"]
