"""The page of a verification: one HTML file that needs nothing else."""

from __future__ import annotations

from html import escape
from typing import Final

from attnkit_conformance.vectors.verifying import Finding, Verification, summary

_PAGE: Final = """\
<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Golden vectors</title>
<style>
body {{ font: 15px/1.5 system-ui, sans-serif; max-width: 75em; margin: 2em auto; padding: 0 1em }}
table {{ border-collapse: collapse }} td, th {{ padding: .2em .8em; text-align: left; vertical-align: top }}
tr {{ border-bottom: 1px solid #8884 }} .wrong, .missing {{ color: #b00020 }} .right {{ color: #1b6e2b }}
</style></head><body>
<h1>{verdict}</h1>
<p>{counts}</p>
{damage}
<table><tr><th>case</th><th>array</th><th></th><th>error / bound</th><th>what</th></tr>
{rows}
</table></body></html>
"""


def page(found: Verification) -> str:
    """Give the page; what is wrong comes first."""
    order = sorted(found.findings, key=lambda finding: finding.status == "right")
    counts = summary(found)["counts"]
    return _PAGE.format(
        verdict="Verified" if found.agrees else "Not verified",
        counts=", ".join(f"{number} {status}" for status, number in counts.items()),
        damage="".join(f"<p class=wrong>{escape(line)}</p>" for line in found.damage),
        rows="\n".join(map(_row, order)),
    )


def _row(finding: Finding) -> str:
    cells = (finding.case, finding.role, finding.status, f"{finding.ratio:.3g}", finding.message)
    return f"<tr class={finding.status}>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>"
