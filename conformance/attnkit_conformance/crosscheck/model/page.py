"""Page: a model on two backends, layer by layer, as one HTML page that needs nothing else."""

from __future__ import annotations

from typing import Any

from attnkit_conformance.crosscheck.judging import NAMES
from attnkit_conformance.crosscheck.model.report import ModelReport
from attnkit_conformance.crosscheck.page import BLUE, GREY, RED, drawn, figure_of, rendered

_LEAST, _MOST = 1e-9, 1e9  # of what is drawn


def page(report: ModelReport) -> str:
    """Give a report as a page."""
    return rendered("model.html.j2", {"report": report, "names": NAMES, "drawing": drawn(_layers(report))})


def _layers(report: ModelReport) -> Any:
    figure, (errors, drifts) = figure_of(2, 2.8)
    layers = [line.layer for line in report.layers]
    for name, colour in zip(NAMES, (BLUE, RED), strict=True):
        worst = [_within(line.error[name]) for line in report.layers]
        errors.semilogy(layers, worst, color=colour, marker=".", label=report.sides[name])
    errors.axhline(1, color=GREY, linewidth=0.8)
    errors.set(xlabel="layer", title="error / τ on the same inputs")
    errors.legend(fontsize=6)
    drifts.semilogy(layers, [_within(line.drift) for line in report.layers], color=BLUE, marker=".")
    drifts.set(xlabel="layer", title="drift of free runs, |A − B| / |A|")
    return figure


def _within(number: float) -> float:
    return min(max(number, _LEAST), _MOST)
