"""Comparing: one model on two backends: each layer on the same inputs, and both left to themselves.

On the same inputs the bounds hold, so that a fault is found in its layer, head and token, and blamed. Left to
themselves the two drift apart with every layer, correct as they may be: how far is shown, and what it does to the
answer.

Axes: ``H`` query heads, ``T`` tokens, ``E`` value head size, ``V`` vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

import attnkit as ak
from attnkit.numerics import numerics_for
from attnkit.tracing import Answered, observing
from attnkit_conformance.cases import Case
from attnkit_conformance.crosscheck.judging import NAMES, Judgement, Name, Part, judge
from attnkit_conformance.crosscheck.model.report import Effect, LayerLine, ModelReport, Place
from attnkit_conformance.crosscheck.sides import Failed, Given
from attnkit_conformance.packages.calls import case_of_call
from attnkit_conformance.recording.recorder import on_host
from attnkit_conformance.subject import Answer

if TYPE_CHECKING:
    from attnkit.models import Llama

Array = np.ndarray[Any, Any]


class Run(NamedTuple):
    """One pass over a text: each layer's call and what came of it, and the logits ``[T, V]``."""

    cases: list[Case]
    outputs: list[Array]
    logits: Array


def compare(a: Llama, b: Llama, ids: Sequence[int], *, model: str = "") -> ModelReport:
    """Run a text through a model on two backends.

    Parameters
    ----------
    a, b
        The same model twice.
    ids
        Token ids of the text, ``[T]``, at least two.
    model
        Its name.
    """
    tokens = np.asarray(ids)
    runs: dict[Name, Run] = {"A": _run(a, tokens), "B": _run(b, tokens)}
    choices: dict[Name, Llama] = {"A": a, "B": b}
    judged = [_judged(layer, runs, choices) for layer in range(len(runs["A"].cases))]
    return ModelReport(
        sides={name: _name(choices[name]) for name in NAMES},
        model=model,
        tokens=len(tokens),
        dtype=a.dtype,
        layers=[_line(layer, judgement, runs) for layer, judgement in enumerate(judged)],
        first={name: place for name in NAMES if (place := _first(judged, name)) is not None},
        parted=_parted(judged, runs),
        effect=_effect(runs, tokens),
    )


def _run(model: Llama, ids: Array) -> Run:
    cases, outputs = list[Case](), list[Array]()

    def see(call: Answered) -> None:
        query, key, value, output = on_host(call)
        cases.append(case_of_call(query, key, value, call.operands, call.request, f"layer-{len(cases)}"))
        outputs.append(output)

    with observing(see):
        logits = model.to_numpy(model.forward(ids, all_logits=True))
    return Run(cases, outputs, np.asarray(logits, np.float64))


def _judged(layer: int, runs: dict[Name, Run], models: dict[Name, Llama]) -> Judgement:
    """Judge a layer of both sides on what A's run gave it."""
    case = runs["A"].cases[layer]
    given: dict[Name, Given] = {"A": Answer(runs["A"].outputs[layer], None), "B": _asked(models["B"], case)}
    numerics = {
        name: numerics_for(model.backend.capabilities().numerics[case.dtype], case.dtype)
        for name, model in models.items()
    }
    return judge(case, given, numerics)


def _asked(model: Llama, case: Case) -> Given:
    try:
        arrays = map(model.backend.from_numpy, case.arrays)
        return Answer(model.to_numpy(ak.attention(*arrays, **case.options, backend=model.choice)), None)
    except Exception as error:  # a backend may raise anything
        return Failed("error", f"{type(error).__name__}: {error}")


def _line(layer: int, judgement: Judgement, runs: dict[Name, Run]) -> LayerLine:
    part = judgement.parts[0]
    one, other = (np.asarray(runs[name].outputs[layer], np.float64) for name in NAMES)
    size = float(np.linalg.norm(one))
    drift = float(np.linalg.norm(one - other)) / size if size else 0.0
    error = {name: part.worst(name) if name not in _failed(judgement) else float("inf") for name in NAMES}
    return LayerLine(layer=layer, error=error, apart=part.worst_apart, drift=drift)


def _failed(judgement: Judgement) -> set[Name]:
    return {name for name in NAMES if judgement.parts[0].given[name] is None}


def _first(judged: Sequence[Judgement], name: Name) -> Place | None:
    """Give the first layer in which a side is wrong, and where in it most."""
    for layer, judgement in enumerate(judged):
        if name in judgement.complaints:
            error = judgement.parts[0].error[name]
            return Place(layer=layer, head=0, token=0) if error is None else _place(layer, error)
    return None


def _place(layer: int, error: Array) -> Place:
    _, head, token, _ = (int(n) for n in np.unravel_index(int(error.argmax()), error.shape))
    return Place(layer=layer, head=head, token=token)


def _parted(judged: Sequence[Judgement], runs: dict[Name, Run]) -> Place | None:
    """Give the first layer and token where the two runs are further apart than the bounds of that layer."""
    for layer, judgement in enumerate(judged):
        tau = sum(_tau(judgement.parts[0]))
        one, other = (np.asarray(runs[name].outputs[layer], np.float64) for name in NAMES)
        beyond = np.abs(one - other) > tau
        if beyond.any():
            _, head, token, _ = (int(n) for n in min(np.argwhere(beyond), key=lambda at: (at[2], at[1])))
            return Place(layer=layer, head=head, token=token)
    return None


def _tau(part: Part) -> list[Array]:
    known = list(part.tau.values())
    return known if len(known) == len(NAMES) else [*known, *known]


def _effect(runs: dict[Name, Run], ids: Array) -> Effect:
    one, other = (_log_probabilities(runs[name].logits) for name in NAMES)
    targets = ids[1:]
    rows = np.arange(len(targets))
    return Effect(
        largest=float(np.abs(runs["A"].logits - runs["B"].logits).max()),
        divergence=float((np.exp(one) * (one - other)).sum(axis=-1).mean()),
        flips=int((one.argmax(axis=-1) != other.argmax(axis=-1)).sum()),
        nll={name: float(-told[rows, targets].mean()) for name, told in zip(NAMES, (one, other), strict=True)},
    )


def _log_probabilities(logits: Array) -> Array:
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True)))


def _name(model: Llama) -> str:
    return model.choice if isinstance(model.choice, str) else model.choice.name
