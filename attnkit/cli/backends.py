"""``attnkit backends``: every backend, and what it takes to run the ones that cannot run here."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import typer

from attnkit.cli.output import print_json, print_line, print_table
from attnkit.errors import AttnkitError
from attnkit.registry import BackendInfo, registry


def backends(
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    load: Annotated[bool, typer.Option("--load", help="Import each one and its library: does it really load?")] = False,
) -> None:
    """List every backend: where it comes from, whether it can run here, and what mends it if not."""
    records = [_record(info, load) for info in registry.infos()]
    if json:
        print_json(records)
        return
    print_table(("backend", "runs here", "from", "paths", "owns", "summary"), map(_row, records))
    for record in records:
        if not record["available"]:
            print_line(f"\n{record['name']} does not run here: {record['reason']}")
            if record["install_hint"]:
                print_line(f"  try: {record['install_hint']}")


def _record(info: BackendInfo, load: bool) -> dict[str, Any]:
    """Give the line of ``attnkit.backends()``, and what only a loaded backend tells."""
    record: dict[str, Any] = asdict(info) | {"contract_version": None, "automatic": None}
    if load and info.available:
        try:
            backend = registry.load(info.name)
        except AttnkitError as error:
            return record | {"available": False, "reason": str(error)}
        record |= {
            "paths": list(backend.paths),
            "contract_version": backend.contract_version,
            "automatic": backend.automatic,
        }
    return record


def _row(record: dict[str, Any]) -> tuple[str, ...]:
    owns = ", ".join(f"{array_type} on {device}" for array_type, device in record["owns"])
    state = "yes" if record["available"] else "no"
    source = record["source"].partition(" (")[0]  # without the module; --json has it
    return record["name"], state, source, ", ".join(record["paths"]), owns, record["summary"]
