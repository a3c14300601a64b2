"""Page: a cross-check as one HTML page that needs nothing else; its plots are drawings inside it."""

from __future__ import annotations

import io
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from attnkit_conformance.crosscheck.judging import NAMES
from attnkit_conformance.crosscheck.picture import EDGES, Picture
from attnkit_conformance.crosscheck.report import CrossReport, DriftPoint

BLUE, RED, GREY = "#326f9f", "#b3261e", "#7a8691"


def page(report: CrossReport) -> str:
    """Give a report as a page; everything that comes from a side is escaped."""
    told = {
        "report": report,
        "names": NAMES,
        "drift": drawn(_drift(report)) if report.drift else "",
        "pictures": [drawn(_picture(f.picture)) if f.picture is not None else "" for f in report.findings],
    }
    return rendered("page.html.j2", told)


def rendered(template: str, told: dict[str, Any]) -> str:
    """Fill a template in."""
    environment = Environment(
        loader=PackageLoader("attnkit_conformance.crosscheck"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(template).render(told) + "\n"


def figure_of(columns: int, height: float) -> tuple[Any, Any]:
    """Give a figure of some axes in a row; nothing is drawn on a screen."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("matplotlib not installed; pip install 'attnkit[conformance]'") from error
    figure = Figure(figsize=(3.6 * columns, height), layout="constrained")
    return figure, figure.subplots(1, columns, squeeze=False)[0]


def _drift(report: CrossReport) -> Any:
    figure, axes = figure_of(2, 2.8)
    for name, colour in zip(NAMES, (BLUE, RED), strict=True):
        for dtype, style in zip(sorted({point.dtype for point in report.drift}), ("-", "--", ":", "-."), strict=False):
            points = [point for point in report.drift if point.dtype == dtype]
            label = f"{report.sides[name].name}, {dtype}"
            for axis, of in zip(axes, (_worst, _rms), strict=True):
                numbers = [max(of(point, name), 1e-9) for point in points]
                axis.loglog([point.keys for point in points], numbers, style, color=colour, label=label, marker=".")
    for axis, title in zip(axes, ("worst error / τ", "root mean square / τ"), strict=True):
        axis.axhline(1, color=GREY, linewidth=0.8)
        axis.set(xlabel="keys", title=title)
    axes[1].legend(fontsize=6)
    return figure


def _worst(point: DriftPoint, name: Any) -> float:
    return point.error[name]


def _rms(point: DriftPoint, name: Any) -> float:
    return point.rms[name]


def _picture(picture: Picture) -> Any:
    figure, (over, heat, bars) = figure_of(3, 2.6)
    worst = [max(column) for column in zip(*picture.heads, strict=True)]
    places = [n * picture.queries for n in range(len(worst))]
    over.semilogy(places, [max(number, 1e-6) for number in worst], color=BLUE, marker="." if len(worst) < 40 else "")
    over.axhline(1, color=RED, linewidth=0.8)
    over.set(xlabel="query", title="largest error / τ")
    shown = [[min(max(number, 1e-3), 1e3) for number in row] for row in picture.heads]
    image = heat.imshow(shown, aspect="auto", norm="log", vmin=1e-3, vmax=1e3, cmap="RdYlBu_r", interpolation="nearest")
    heat.set(xlabel=f"query / {picture.queries}" if picture.queries > 1 else "query", title="error / τ by head")
    heat.set_ylabel("sequence × head")
    figure.colorbar(image, ax=heat)
    names = [f"{low:g}" if low < 2**20 else "≥2²⁰" for low in EDGES[:-1]]
    bars.bar(range(len(picture.ulps)), picture.ulps, color=BLUE)
    bars.set_xticks(range(len(names)), names, fontsize=6, rotation=60)
    bars.set(xlabel="units in the last place, from", title="elements", yscale="symlog")
    return figure


def drawn(figure: Any) -> Markup:
    """Draw a figure as SVG, without the head of a file."""
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    drawing = text.getvalue()
    return Markup(drawing[drawing.index("<svg") :])  # made here, of numbers
