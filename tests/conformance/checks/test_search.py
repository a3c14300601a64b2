"""The search climbs, shrinks what it finds, says which call it was, and is the same for a seed."""

from __future__ import annotations

import re

import numpy as np
import pytest

import attnkit as ak
from attnkit_conformance.checks.search import FAMILIES
from attnkit_conformance.features import FEATURES, LENGTHS
from attnkit_conformance.measuring import Mismatch, measuring
from attnkit_conformance.searching import HEAD_DIMS, Climb
from attnkit_conformance.selftest.plain import Array, Plain, unregistered


class BeforeTile(Plain):
    """Drops the last key where one more would fill a tile of 64, in a head of at least 40."""

    def visible(self, operands: ak.Operands, request: ak.AttentionRequest) -> Array:
        keys = operands.key_length
        shown = super().visible(operands, request)
        wrong = keys % 64 == 63 and request.head_dim >= 40
        return shown & (np.arange(keys) < keys - 1) if wrong else shown


def test_it_finds_and_shrinks_a_fault_at_the_edge_of_a_tile() -> None:
    with pytest.raises(Mismatch) as caught:
        Climb(unregistered(BeforeTile()), {"mask": ""}, frozenset({"sinks", "bias", "group"})).run(3, 150)
    message = str(caught.value)
    assert re.match(r"plain-b1h2k2t1s(63|127)d40-float32-seed0: output: ", message)
    assert caught.value.actual.shape == (1, 2, 1, 40)


def test_the_same_seed_finds_the_same_calls() -> None:
    def found(number: int) -> list[tuple[str, float]]:
        with measuring() as notes:
            Climb(unregistered(Plain()), {"mask": "causal"}, frozenset({"draw", "shape"})).run(number, 8)
        return [(note.what, note.ratio) for note in notes]

    assert found(1) == found(1)
    assert found(1) != found(2)
    assert len(found(1)) >= 3 * 8


def test_only_what_is_declared_is_asked_for() -> None:
    modest = type("Modest", (Plain,), {"declared": ak.Capabilities(head_dims=ak.Sizes(64, 80, 16), window=True)})
    climb = Climb(unregistered(modest()), {"mask": "window"}, frozenset(FEATURES))
    climb.run(5, 20)
    assert climb.answered >= 20
    assert climb.values["dtype"] == ["float32"]
    assert climb.values["sinks"] == [""]
    assert climb.values["join"] == ["", "with-window"]


def test_an_error_that_is_not_a_mismatch_is_told_as_it_is() -> None:
    def fails(self: Plain, *_arguments: object) -> ak.AttentionOutput:
        raise ZeroDivisionError("kernel")

    broken = type("Broken", (Plain,), {"attention": fails})
    with pytest.raises(ZeroDivisionError, match="kernel"):
        Climb(unregistered(broken()), {"mask": ""}, frozenset()).run(0, 5)


def test_sizes_stand_around_the_edges_of_tiles() -> None:
    assert {1, 15, 16, 17, 33, 63, 64, 65, 127, 128, 129, 257} <= set(LENGTHS)
    assert {40, 72, 80, 96} <= set(HEAD_DIMS)  # no powers of four


def test_there_is_a_family_for_every_feature() -> None:
    named = {name for family in FAMILIES for name in family.fixed}
    assert named == set(FEATURES) - {"draw", "shape", "lse"}
    assert len({str(family) for family in FAMILIES}) == len(FAMILIES)
