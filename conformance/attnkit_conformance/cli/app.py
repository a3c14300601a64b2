"""The commands of ``attnkit conform`` put together."""

from __future__ import annotations

import typer

from attnkit.cli.output import reports_errors
from attnkit_conformance.blind.cli import issue, judge
from attnkit_conformance.cli.catalogue import catalogue
from attnkit_conformance.cli.diff import diff
from attnkit_conformance.cli.explain import explain
from attnkit_conformance.cli.report import report
from attnkit_conformance.cli.run import run
from attnkit_conformance.cli.selftest import selftest
from attnkit_conformance.cli.verify_report import verify_report

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,  # as in attnkit itself
    help="Hold a backend to the contract. Exit codes: 0 conformant, 1 not, 2 wrong use.",
)
app.command("list")(reports_errors(catalogue))
for _command in (explain, run, report, verify_report, diff, selftest, issue, judge):
    app.command()(reports_errors(_command))
