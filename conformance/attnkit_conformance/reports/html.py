"""HTML: the report as one page that needs nothing else, neither a network nor a script."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Final

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from attnkit_conformance.reports import page as shown
from attnkit_conformance.reports.kinds import KINDS, Kind
from attnkit_conformance.reports.matrix import State, rows
from attnkit_conformance.requirements import LEVELS
from attnkit_conformance.results import Report

MOST: Final = 12
"""How many failures of one requirement are shown in full."""
SIGNS: Final[dict[Kind, str]] = {
    "failed": "✗",
    "not run": "○",
    "waived": "!",
    "answered": "✓",
    "refused": "–",
    "outside": "⊘",
}
_STATES: Final[dict[State, tuple[str, str]]] = {
    "holds": ("✓", "k-answered"),
    "refused": ("–", "k-refused"),
    "fails": ("✗", "k-failed"),
    "not measured": ("·", "k-not-run"),
}
_CODE = re.compile("(`{1,2})(.+?)\\1")


def html_text(report: Report) -> str:
    """Give a report as a page; everything that comes from the backend is escaped."""
    environment = Environment(
        loader=PackageLoader("attnkit_conformance.reports"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"code": code, "ratio": shown.ratio_text, "number": number, "index": index}
    environment.filters |= {"moment": shown.moment_text, "duration": shown.duration_text}
    environment.filters |= {"kebab": kebab, "breaks": breaks}
    environment.globals |= {"shown": shown, "levels": LEVELS, "kinds": KINDS, "signs": SIGNS, "states": _STATES}
    page = environment.get_template("report.html.j2")
    told = {"page": shown.Page(report), "header": report.header, "footer": report.footer, "most": MOST}
    return page.render(**told, support=rows(report)) + "\n"


def code(text: str) -> Markup:
    """Show what stands between backticks as code."""
    return Markup(_CODE.sub(r"<code>\2</code>", str(escape(text))))


def breaks(name: str) -> Markup:
    """Let the name of an item break where its parts meet."""
    return Markup(re.sub(r"(::|\[|-)", r"\1<wbr>", str(escape(name))))


def kebab(kind: str) -> str:
    """Make a kind a name that CSS takes."""
    return kind.replace(" ", "-")


def number(value: float) -> str:
    """Write a number with as many digits as float32 has."""
    if math.isfinite(value):
        return f"{value:.9g}"
    return "NaN" if math.isnan(value) else "∞" if value > 0 else "−∞"


def index(at: Sequence[int]) -> str:
    """Write an index with the names of its axes, where it is that of an output or a log-sum-exp."""
    names = {4: "bhie", 3: "bhi"}.get(len(at), "")
    return "[" + ", ".join(f"{name}={place}" for name, place in zip(names, at, strict=True)) + "]" if names else str(at)
