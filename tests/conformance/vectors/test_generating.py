from __future__ import annotations

import hashlib

import numpy as np
import pytest

from attnkit_conformance.vectors.catalogue import CORE, HARDWARE, catalogue, filled
from attnkit_conformance.vectors.generating import bell, words

WRAP = 2**64


def word(name: str, index: int) -> int:
    """The pseudo-code of the module, in plain integers."""
    seed = 0xCBF29CE484222325
    for byte in name.encode():
        seed = (seed ^ byte) * 0x100000001B3 % WRAP
    z = (seed + (index + 1) * 0x9E3779B97F4A7C15) % WRAP
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 % WRAP
    z = (z ^ z >> 27) * 0x94D049BB133111EB % WRAP
    return z ^ z >> 31


def test_words_are_those_of_the_pseudo_code() -> None:
    assert words("causal/query", (3, 5)).reshape(-1).tolist() == [word("causal/query", n) for n in range(15)]


def test_words_are_those_of_splitmix64() -> None:
    """The first outputs of SplitMix64 from seed 1234567, as its authors' program gives them."""
    from attnkit_conformance.vectors.generating import _GAMMA, _mixed

    counters = np.uint64(1234567) + np.arange(1, 4, dtype=np.uint64) * _GAMMA
    assert _mixed(counters).tolist() == [6457827717110365317, 3203168211198807973, 9817491932198370423]


def test_inputs_never_change() -> None:
    numbers = bell("causal/query", (2, 2, 5, 16))
    assert (
        hashlib.sha256(numbers.tobytes()).hexdigest()
        == "0b4eae7c505f7b08ddb03a2e689863b8413538c892d9d768926d149ee0e96853"
    )


def test_bell_is_bell_shaped() -> None:
    numbers = bell("x/query", (10_000,))
    assert abs(numbers.mean()) < 0.05
    assert abs(numbers.std() - 1.1524) < 0.03
    assert np.abs(numbers).max() <= 3.75


@pytest.mark.parametrize("case", [*CORE, *HARDWARE, *catalogue("full")[-30:]], ids=lambda case: case.label)
def test_every_type_holds_the_inputs_exactly(case) -> None:
    exact = filled(case, "float64").arrays
    for dtype in ("float32", "float16", "bfloat16"):
        for array, wanted in zip(filled(case, dtype).arrays, exact, strict=True):
            assert np.array_equal(array.astype(np.float64), wanted, equal_nan=True)


def test_labels_differ() -> None:
    labels = [case.label for case in catalogue("full")]
    assert len(set(labels)) == len(labels)


def test_core_asks_for_everything() -> None:
    features = {feature for case in CORE for feature in case.features()}
    assert features == {
        *("gqa", "value_dim", "window", "prefix", "chunked", "documents", "dense"),
        *("bias", "alibi", "softcap", "sinks", "lengths", "offsets", "lse"),
    }
    assert {case.draw for case in CORE} == {"plain", "peaked", "huge", "cancelling", "ascending"}
    assert any(not filled(case, "float32").seeing.all() for case in CORE)
