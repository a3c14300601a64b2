"""Table: results as Markdown, for the documentation and for whoever runs a calibration."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from attnkit_conformance.calibration.grid import LONG
from attnkit_conformance.calibration.results import Results, Row

_BEGIN = "<!-- What follows is written by `python -m attnkit_conformance.calibration --page`. -->"
_END = "<!-- What goes before was written by it. -->"
_WHATS = {"output": "output", "lse": "log-sum-exp", "gradients": "gradients"}


def markdown(results: Results) -> str:
    """Say where and when it was measured, and give two tables: what is correct by construction, and the backends."""
    found = results.environment
    versions = ", ".join(f"{name} {found[name]}" for name in ("python", "numpy", "torch") if name in found)
    return "\n".join(
        [
            f"Measured on {results.date}, {found['processor']}, {versions}, {results.seeds} seeds.",
            "",
            *zoo_table(results),
            "",
            "Every path of the first-party backends that ran there, in what it declared then. **A ratio above 1 is a",
            "fault, or a wrong declaration.**",
            "",
            *backends_table(results),
        ]
    )


def refreshed(page: str, results: Results) -> str:
    """Give a page with what stands between its two markers replaced by the results."""
    before, _, rest = page.partition(f"{_BEGIN}\n")
    _, _, after = rest.partition(f"\n{_END}")
    return f"{before}{_BEGIN}\n\n{markdown(results)}\n\n{_END}{after}"


def zoo_table(results: Results) -> Iterator[str]:
    """Give the worst ratios over all algorithms and draws of each profile and element type."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in results.zoo:
        groups.setdefault((row.profile, row.dtype), []).append(row)
    yield from _table(["numerics", "type"], sorted(groups.items()))


def backends_table(results: Results) -> Iterator[str]:
    """Give the worst ratios over all draws of each path and element type."""
    groups: dict[tuple[str, str, str], list[Row]] = {}
    for row in results.backends:
        groups.setdefault((row.name, row.profile, row.dtype), []).append(row)
    yield from _table(["path", "numerics", "type"], groups.items())


def _table(keys: list[str], groups: Iterable[tuple[tuple[str, ...], list[Row]]]) -> Iterator[str]:
    heads = [*keys, *_WHATS.values(), "output 99.9 %", "output rms", "output bias"]
    yield f"| {' | '.join(heads)} |"
    yield "|---" * len(heads) + "|"
    for names, rows in groups:
        cells = [*(_worst(rows, what) for what in _WHATS), *_statistics(rows)]
        yield f"| {' | '.join([*names, *cells])} |"


def _worst(rows: list[Row], what: str) -> str:
    """Name the largest ratio and the draw that it came up on."""
    found = [row for row in rows if row.what == what]
    if not found:
        return "-"
    worst = max(found, key=lambda row: row.most)
    return f"{worst.most:.2f} ({worst.draw})"


def _statistics(rows: list[Row]) -> Iterator[str]:
    """Give the largest of each statistic; in very long rows all errors are alike, and there are few of them."""
    found = [row for row in rows if row.what == "output" and not row.draw.startswith(LONG)]
    yield f"{max(row.high for row in found):.2f}"
    yield f"{max(row.rms for row in found):.2f}"
    yield f"{max((row.bias for row in found), key=abs):+.3f}"
