"""The third-party route: a distribution of its own is installed, discovered, and passes the suite."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def example(checkout, tmp_path_factory) -> Path:
    """A copy of the example's folder, outside of the checkout."""
    return shutil.copytree(
        checkout / "docs/examples/attnkit-example", tmp_path_factory.mktemp("third-party") / "example"
    )


@pytest.fixture(scope="module")
def site(example, python) -> Path:
    """The folder that the example is installed into."""
    target = example.parent / "site"
    install = ("-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation", "--no-index")
    python(*install, "--target", str(target), ".", folder=example)
    return target


def test_it_is_discovered(example, site, python) -> None:
    listed = json.loads(python("-m", "attnkit", "backends", "--json", folder=example.parent, path=site))
    line = next(line for line in listed if line["name"] == "example")
    assert line["available"]
    assert line["source"].startswith("attnkit-example 0.1.0")


def test_it_passes_the_suite(example, site, python) -> None:
    (example / "attnkit_example.py").unlink()  # so that the installed one is tested
    output = python("-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider", folder=example, path=site)
    assert " passed" in output
    assert " failed" not in output


def test_it_is_short(checkout) -> None:
    lines = (checkout / "docs/examples/attnkit-example/attnkit_example.py").read_text("utf-8").splitlines()
    assert len(lines) <= 60
