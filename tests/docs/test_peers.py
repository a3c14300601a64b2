"""The peers' adapters: within the bounds where definitions are the same, conventions by name where they are not."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from attnkit_conformance.crosscheck import crosscheck
from attnkit_conformance.crosscheck.requests import requests

FOLDER = Path(__file__).parents[2] / "docs" / "examples" / "attnkit-peers"
TOP_LEFT = "the first query stands on the first key (the last valid one on the last valid key)"
MEAN = "a row that sees no key gives the mean of all values (zeros)"


@pytest.fixture(scope="module")
def peers():
    spec = importlib.util.spec_from_file_location("attnkit_peers", FOLDER / "attnkit_peers.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["attnkit_peers"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["attnkit_peers"]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("peer", ["jax", "onnxruntime"])
def test_where_definitions_are_the_same_peers_agree(peers, peer) -> None:
    spec = "b2h2t5s9d16;b1h4k2t7s7d8:causal;b2h2t5s9d16:bias;b1h2t33s33d64:causal,draw=peaked"
    report = crosscheck("numpy", getattr(peers, peer)(), requests(spec, ("float32",), 0))
    assert report.agree, report.findings
    assert report.compared == 4


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("peer", ["jax", "onnxruntime"])
def test_another_alignment_is_a_convention(peers, peer) -> None:
    asked = requests("b2h2t3s11d16:causal;b1h4k2t5s9d8:causal", ("float32",), 0)
    report = crosscheck("numpy", getattr(peers, peer)(), asked)
    assert [finding.conventions for finding in report.findings] == [{"B": [TOP_LEFT]}] * 2


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_rows_without_keys_are_a_convention_of_jax(peers) -> None:
    (case,) = [case for case in requests("dense", ("float32",), 0) if case.label == "dense5"]
    (finding,) = crosscheck("numpy", peers.jax(), [case]).findings
    assert finding.conventions == {"B": [MEAN]}


def test_the_readme_quotes_what_is_said() -> None:
    text = (FOLDER / "README.md").read_text("utf-8")
    assert TOP_LEFT in text
    assert MEAN in text
