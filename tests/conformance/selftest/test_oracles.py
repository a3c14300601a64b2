"""The oracles agree, and one that is not there is reported."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from attnkit import reference
from attnkit_conformance.selftest import oracles
from attnkit_conformance.selftest.oracles import CLOSE, FEW, SMALL, Agreement, agreements


def test_three_oracles_agree() -> None:
    found = list(agreements())
    assert [one.oracles for one in found] == ["dense and streaming", "dense and mpmath"]
    assert [one.cases for one in found] == [len(SMALL), len(FEW)]
    assert all(one.ok and one.apart <= CLOSE for one in found), found


def test_every_kind_of_structure_is_asked() -> None:
    kinds = {term[0] for case in SMALL if "mask" in case.options for term in case.options["mask"].terms}
    assert kinds == {"causal", "window", "prefix", "chunked", "documents", "dense"}
    options = {name for case in FEW for name in case.options}
    assert {"bias", "alibi", "sinks", "softcap", "scale"} <= options


def test_a_missing_package_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(oracles, "find_spec", lambda name: None)
    found = list(agreements())[1]
    assert not found.ok
    assert "pip install mpmath" in str(found)


def test_disagreement_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def off(*arrays: object, **options: object) -> reference.Truth:
        truth = reference.attention(*arrays, **options)  # type: ignore[arg-type]
        return dataclasses.replace(truth, output=truth.output + 1e-10)

    monkeypatch.setattr(reference, "streaming_attention", off)
    found = next(agreements())
    assert not found.ok
    assert np.isclose(found.apart, 1e-10, rtol=0.9)


def test_nothing_asked_is_no_agreement() -> None:
    assert not Agreement("one and another", 0, 0.0).ok
