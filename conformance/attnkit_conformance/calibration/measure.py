"""Measure: errors of a backend in units of their bounds, over many calls."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

import attnkit as ak
from attnkit_conformance.calibration import grid
from attnkit_conformance.calibration.results import Row
from attnkit_conformance.cases import Array, Case, plain
from attnkit_conformance.gradient_cases import GradientCase
from attnkit_conformance.subject import Answer, Subject

Ratios = dict[str, list[tuple[Array, Array]]]
"""For each result: signs of the truth, and errors over bounds."""


def measure_forward(subject: Subject, name: str, dtype: str, seeds: int, *, keys: int) -> Iterator[Row]:
    """Measure output and log-sum-exp."""
    for draw, cases in grid.forward(dtype, seeds, keys=keys):
        yield from _rows(subject, name, dtype, draw, (_forward(subject, case) for case in cases))


def measure_backward(subject: Subject, name: str, dtype: str, seeds: int) -> Iterator[Row]:
    """Measure gradients."""
    for draw, cases in grid.backward(dtype, seeds):
        yield from _rows(subject, name, dtype, draw, (_backward(subject, case) for case in cases))


def _forward(subject: Subject, case: Case) -> Ratios:
    answer = _answer(subject, case)
    if answer is None:
        return {}
    tau, truth = case.tolerance(subject.numerics(case.dtype)), case.truth
    found = {"output": [(np.sign(truth.output), (plain(answer.output) - truth.output) / tau.output)]}
    if answer.lse is not None:
        found["lse"] = [(np.sign(truth.lse), (plain(answer.lse) - truth.lse) / tau.lse)]
    return found


def _answer(subject: Subject, case: Case) -> Answer | None:
    """Ask with a log-sum-exp, then without; give nothing where the call is refused."""
    case = case.on(subject.capabilities)
    for lse in (True, False):
        try:
            return subject.attention(case.arrays, case.options, lse=lse)
        except ak.UnsupportedError:
            continue
    return None


def _backward(subject: Subject, case: GradientCase) -> Ratios:
    try:
        _, found = case.differentiate(subject)
    except ak.UnsupportedError:
        return {}
    exact, bounds = case.gradients, case.gradient_tolerance(subject.numerics(case.dtype))
    ratios = [
        (np.sign(getattr(exact, name)), (plain(gradient) - getattr(exact, name)) / getattr(bounds, name))
        for name, gradient in found.items()
    ]
    return {"gradients": ratios}


def _rows(subject: Subject, name: str, dtype: str, draw: str, measured: Iterable[Ratios]) -> Iterator[Row]:
    gathered: Ratios = {}
    for ratios in measured:
        for what, arrays in ratios.items():
            gathered.setdefault(what, []).extend(arrays)
    for what, arrays in gathered.items():
        signs, errors = (np.concatenate([array.ravel() for array in part]) for part in zip(*arrays, strict=True))
        yield Row.of(name, subject.capabilities.numerics[dtype], dtype, draw, what, signs, errors)
