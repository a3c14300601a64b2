"""What attending over a cache must give, against attention over a whole text with a mask that hides what is gone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

import attnkit as ak
from attnkit import reference
from attnkit.numerics import numerics_for
from attnkit_conformance.cache_truth import Places, stored_tolerance, stored_truth
from attnkit_conformance.structures import causal, chunked, prefix, window

RNG = np.random.default_rng(5)
QUERY, KEY, VALUE = (RNG.standard_normal((2, 2, size, 4)) for size in (3, 10, 10))
WHOLE = Places([np.arange(10)] * 2, np.array([10, 10]))
RING = Places([np.arange(4, 10)] * 2, np.array([10, 10]))
PINNED = Places([np.r_[0:2, 5:10]] * 2, np.array([10, 10]), 2)
MASKS = {
    "none": None,
    "causal": causal(),
    "window": window(3),
    "both": window(4, 1) & chunked(5),
    "right": window(None, 1),
    "prefix": prefix(6),
}


def stored(places: Places, options: Mapping[str, Any]) -> reference.Truth:
    held = places.held[0]
    return stored_truth(QUERY, KEY[:, :, held], VALUE[:, :, held], options, places)


def over_the_whole_text(places: Places, options: Mapping[str, Any]) -> reference.Truth:
    """Hide all that is not held, and let pinned tokens be seen outside of the window."""
    p, j = np.arange(7, 10)[:, None], np.arange(10)
    shown = np.ones((3, 10), bool)
    for term in () if options.get("mask") is None else options["mask"].terms:
        one = reference.attention(QUERY, KEY, VALUE, mask=ak.Mask((term,))).problem.shown[0, 0]
        if term[0] == "window":
            one |= (j < places.first) & (True if term[2] is None else j <= p + term[2])
        shown &= one
    shown &= np.isin(j, places.held[0])
    return reference.attention(QUERY, KEY, VALUE, **{**options, "mask": ak.Mask.dense(shown)})


@pytest.mark.parametrize("mask", MASKS.values(), ids=list(MASKS))
@pytest.mark.parametrize("places", [WHOLE, RING, PINNED], ids=["whole", "ring", "pinned"])
@pytest.mark.parametrize("more", [{}, {"alibi": np.array([1.0, 0.25])}, {"softcap": 1.0, "sinks": np.zeros(2)}])
def test_tokens_stand_where_they_stood(places: Places, mask: Any, more: Mapping[str, Any]) -> None:
    options = {"mask": mask, **more}
    found, right = stored(places, options), over_the_whole_text(places, options)
    np.testing.assert_allclose(found.output, right.output, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(found.lse, right.lse, rtol=1e-12)


def test_lengths_of_queries_move_the_first_one() -> None:
    lengths = np.array([3, 1])
    for places in (RING, PINNED):
        found = stored(places, {"mask": causal(), "query_lengths": lengths})
        right = over_the_whole_text(places, {"mask": causal()})
        np.testing.assert_allclose(found.output[0], right.output[0], rtol=1e-12)
        alone = stored_truth(
            QUERY[1:, :, :1],
            KEY[1:, :, places.held[0]],
            VALUE[1:, :, places.held[0]],
            {"mask": causal()},
            Places(places.held[:1], places.counts[:1], places.first),
        )
        np.testing.assert_allclose(found.output[1, :, :1], alone.output[0], rtol=1e-12)
        assert not found.output[1, :, 1:].any()


def test_a_sequence_that_gave_up_everything_still_stands_where_it_stood() -> None:
    places = Places([np.arange(0), np.arange(4, 6)], np.array([7, 6]))
    truth = stored_truth(QUERY, KEY[:, :, :2], VALUE[:, :, :2], {}, places)
    assert truth.problem.key_offset.tolist() == [7, 4]
    assert not truth.output[0].any()


def test_what_is_seen_outside_of_windows_is_one_more_part() -> None:
    numerics = numerics_for("strict-fp32", "float32")
    truth = stored(PINNED, {"mask": causal()})
    bound = stored_tolerance(truth, numerics, PINNED).output
    assert (bound > stored_tolerance(truth, numerics, RING).output).all()
    assert (bound < 2 * stored_tolerance(truth, numerics, RING).output).all()


def test_other_masks_are_not_for_rings() -> None:
    with pytest.raises(NotImplementedError, match="documents"):
        stored(PINNED, {"mask": ak.Mask.documents(np.zeros(3, int), np.zeros(7, int))})
