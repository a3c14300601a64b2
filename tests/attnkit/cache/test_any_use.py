"""Any use of caches is that of plain lists: every operation, layout, codec and backend (C1-C11).

10,044 random steps in all; ``python -m benchmarks soak`` takes as many as one likes. And what is wrong on purpose is
found, from a seed, and told in few steps that do it again.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import numpy as np
import pytest

import attnkit as ak
from attnkit.cache import pieces
from attnkit.cache.counters import Counters
from attnkit.cache.frames import Frames
from attnkit.cache.paged import PagedCache
from attnkit.cache.pieces import PieceCache
from attnkit.cache.pool import PagePool
from attnkit.cache.ring import RingCache
from attnkit_conformance.soaking import OPERATIONS, replay, settings, soak
from attnkit_conformance.soaking.setting import CODECS, LAYOUTS

BACKENDS = ("numpy", "torch")
STEPS = 93
SETTINGS = {setting.name: setting for setting in settings(BACKENDS)}


@pytest.mark.parametrize("name", SETTINGS)
def test_any_use_is_that_of_plain_lists(name) -> None:
    taken = soak(SETTINGS[name], 20260101, STEPS)
    assert taken.total() == STEPS


def test_these_are_ten_thousand_steps_over_everything() -> None:
    assert len(SETTINGS) == len(LAYOUTS) * len(CODECS) * len(BACKENDS)
    assert STEPS * len(SETTINGS) >= 10_000
    configs = [setting.config for setting in SETTINGS.values()]
    assert {config.layout for config in configs} == {"contiguous", "ring", "paged"}
    kinds = {codec.kind for config in configs for codec in (config.key_codec, config.value_codec)}
    assert kinds == {"native", "int8", "int4", "fp8"}
    assert {config.dtype for config in configs} == {"float16", "bfloat16", "float32", "float64"}


def test_every_operation_comes() -> None:
    taken = soak(SETTINGS["pool-native-numpy"], 5, 250)
    assert set(taken) == set(OPERATIONS)


def test_a_seed_is_a_history() -> None:
    setting = SETTINGS["ring-native-numpy"]
    assert soak(setting, 1, 60) == soak(setting, 1, 60) != soak(setting, 2, 60)


# What is wrong on purpose


def one_less(method):
    """Give a method whose result is one less where it is above 0."""
    return lambda self, *arguments: np.maximum(method(self, *arguments) - 1, 0)


def nothing(*_arguments):
    return None


def without_lengths(self, layer, taken, gone, ragged):
    return AFTER_APPEND(self, layer, taken, gone, None)


def keeping_page_tails(self):
    """Truncate by counters alone."""


AFTER_APPEND = Counters.after_append
# Where, what, whose cache shows it, and what is then said.
FAULTS = {
    "a copy without its bytes": (pieces, "copy_pages", nothing, "growing-native-numpy", "holds tokens"),
    "a ring that evicts one token too few": (
        RingCache,
        "gone_after",
        one_less(RingCache.gone_after),
        "ring-native-numpy",
        "stored of layer",
    ),
    "a ring that goes back too far": (
        RingCache,
        "gone_within",
        lambda self, name, kept: np.where(kept <= self.pinned, 0, self.counters.gone),
        "pinned-native-numpy",
        "ShapeError must be raised",
    ),
    "forks that share a page and write to it": (
        Frames,
        "holders",
        lambda self, page: 1,
        "paged-native-numpy",
        "holds tokens",
    ),
    "pages that are found by their old text": (
        PagePool,
        "forget",
        nothing,
        "shared-pool-native-numpy",
        "holds tokens|entered for other tokens",
    ),
    "pages that are not given back": (PagedCache, "trim", keeping_page_tails, "paged-native-numpy", "pages of"),
    "lengths that do not follow": (Counters, "after_append", without_lengths, "fixed-native-numpy", "output of layer"),
    "tokens that are encoded again": (
        ak.Pages,
        "copy",
        lambda self, store, source, target, slots: [
            new.write(store, slots, old.read(store, source))
            for old, new in ((self.key, target.key), (self.value, target.value))
        ],
        "growing-fp8-numpy",
        "other bits than were first read",
    ),
    "a snapshot that is the cache itself": (
        PieceCache,
        "hold",
        lambda self: self.pieces,
        "fixed-native-numpy",
        "holds tokens",
    ),
}


def found(setting):
    """Soak until something fails, and give what is said."""
    for seed in range(40):
        try:
            soak(setting, seed, 60)
        except AssertionError as error:
            return str(error)
    raise AssertionError("nothing was found in 2400 steps")


@pytest.mark.parametrize("fault", FAULTS)
def test_what_is_wrong_is_found_and_told_in_few_steps(monkeypatch, fault) -> None:
    owner, name, wrong, setting, words = FAULTS[fault]
    monkeypatch.setattr(owner, name, wrong)
    told = found(SETTINGS[setting])
    assert re.search(words, told.splitlines()[0]), told
    steps = ast.literal_eval(told[told.index("replay(setting, ") + len("replay(setting, ") : -1])
    assert 1 <= len(steps) <= 20, told
    assert " = ak.make_cache(config, backend=" in told
    with pytest.raises(Exception, match=words):
        replay(SETTINGS[setting], steps)
    monkeypatch.undo()
    replay(SETTINGS[setting], steps)


def test_files_are_left_nowhere(monkeypatch, tmp_path) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    taken = soak(SETTINGS["paged-native-numpy"], 0, 150)
    assert taken["save_and_load"]
    assert list(Path(tmp_path).iterdir()) == []
