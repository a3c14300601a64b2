"""Headers: what a report says of the suite, and of the backend that it was run on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from importlib.metadata import version
from typing import Any

from attnkit.capabilities import CONTRACT_VERSION
from attnkit_conformance.items import manifest_digest
from attnkit_conformance.reports.declared import declared
from attnkit_conformance.requirements import digest
from attnkit_conformance.subject import Subject


def suite_facts(manifest: Iterable[str], started: datetime) -> dict[str, Any]:
    """Give the fields of a header that say which items were run, of which suite, and since when."""
    return {
        "suite": version("attnkit"),
        "contract": CONTRACT_VERSION,
        "requirements": digest(),
        "manifest": manifest_digest(manifest),
        "started": started.isoformat(timespec="seconds"),
    }


def backend_facts(subject: Subject) -> dict[str, Any]:
    """Give the fields of a header that say what was under test, and what it ran on."""
    said = subject.description
    return {
        "backend": said.name,
        "path": said.path,
        "paths": said.paths,
        "source": said.source,
        "contract_version": said.contract_version,
        "capabilities": declared(said.capabilities),
        "environment": _environment(subject),
    }


def _environment(subject: Subject) -> Mapping[str, str]:
    """Say what the backend runs on; one that is gone by now is found to be so by its first item."""
    try:
        return subject.harness.environment()
    except Exception:  # whatever a backend may do
        return {}
