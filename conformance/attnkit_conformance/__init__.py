"""The conformance suite: what the contract promises, as checks that any backend can be held to."""

from __future__ import annotations

import importlib
import typing

if typing.TYPE_CHECKING:
    from attnkit_conformance.conformance import Check, iter_checks, run_conformance
    from attnkit_conformance.harness.targets import TargetError
    from attnkit_conformance.results import Report, Result
    from attnkit_conformance.verdict import verdict_of
    from attnkit_conformance.waivers import Waiver, WaiverError, load_waivers

__all__ = [
    "Check",
    "Report",
    "Result",
    "TargetError",
    "Waiver",
    "WaiverError",
    "iter_checks",
    "load_waivers",
    "run_conformance",
    "verdict_of",
]
_HOMES = {
    **dict.fromkeys(("Check", "iter_checks", "run_conformance"), "conformance"),
    **dict.fromkeys(("Report", "Result"), "results"),
    **dict.fromkeys(("Waiver", "WaiverError", "load_waivers"), "waivers"),
    "TargetError": "harness.targets",
    "verdict_of": "verdict",
}


def __getattr__(name: str) -> object:
    """Import what is asked for and no more: pytest loads a plug-in of this package, whatever it tests."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
