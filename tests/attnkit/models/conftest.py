"""Caches of every layout and codec for tiny models, and texts generated one by one to compare with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from attnkit.models import Llama, Weights, prefill

LAYOUTS: dict[str, dict[str, Any]] = {
    "contiguous": {},
    "fixed": {"max_length": 60},
    "ring": {"layout": "ring", "window": 9, "max_append": 5},
    "pinned": {"layout": "ring", "window": 6, "max_append": 6, "pinned": 3},
    "paged": {"layout": "paged", "page_size": 4},
    "pages of one": {"layout": "paged", "page_size": 1},
    "pool": {"layout": "paged", "page_size": 3, "num_pages": 30},
}
CODECS = ["native", "int8", "int4", "int4/8", "fp8"]


class Recorder:
    """A chooser that takes the most probable token and keeps the logits it was given."""

    def __init__(self) -> None:
        self.logits: list[np.ndarray[Any, Any]] = []

    def __call__(self, logits: Any) -> int:
        self.logits.append(np.array(logits[-1], np.float64))
        return int(np.argmax(self.logits[-1]))


def alone(model: Llama, prompt: Sequence[int], max_tokens: int, **fields: Any) -> tuple[list[int], Any]:
    """Give the greedy text of one prompt by itself: new tokens ``[T]``, and the logits of each, ``[T, V]``."""
    cache, recorder = model.make_cache(**fields), Recorder()
    tokens = [recorder(prefill(model, prompt, cache))]
    while len(tokens) < max_tokens:
        tokens.append(recorder(model.forward(tokens[-1:], cache)))
    return tokens, np.array(recorder.logits)


def rounding(model: Llama, logits: Any) -> float:
    """Bound how far two evaluations of the same logits are apart, whose sums run in different orders.

    Each of ``2 L`` sublayers rounds sums of up to ``F`` products: a relative error of ``u sqrt(F)`` that is as often
    positive as negative, hence ``u sqrt(2 L F)`` over all of them, in either evaluation; and four times that for what
    norms and softmax amplify.
    """
    config, unit = model.config, np.finfo(model.dtype).eps / 2
    return float(2 * 4 * unit * np.sqrt(2 * config.num_layers * config.intermediate_size) * abs(logits).max())


def decided(logits: np.ndarray[Any, Any], error: float) -> int:
    """Give how many tokens are decided by logits ``[T, V]`` that are right within ``error``."""
    second, first = np.sort(logits, axis=-1)[:, -2:].T
    return int(np.append(first - second <= 2 * error, True).argmax())


class Texts:
    """What tests of generation share; under importlib mode they cannot import this file."""

    layouts = LAYOUTS
    codecs = CODECS
    recorder = Recorder
    alone = staticmethod(alone)
    rounding = staticmethod(rounding)
    decided = staticmethod(decided)


@pytest.fixture(scope="session")
def texts() -> type[Texts]:
    return Texts


@pytest.fixture(scope="session")
def tiny(lab: Any) -> Llama:
    """Give a tiny random model in float64, in which hardly a code of a quantised cache is decided by rounding."""
    config = lab.config()
    return Llama(config, Weights.from_arrays(lab.arrays(config)), backend="numpy", dtype="float64")
