"""What a backend declares, as the plain data that reports hold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import TypeAdapter

import attnkit as ak
from attnkit_conformance.custom import CustomNumerics

_CAPABILITIES = TypeAdapter(ak.Capabilities)


def declared(capabilities: ak.Capabilities) -> dict[str, Any]:
    """Give capabilities as JSON-ready data by field; sets become sorted lists."""
    plain: dict[str, Any] = _CAPABILITIES.dump_python(capabilities, mode="json")
    sets = {name for name in plain if isinstance(getattr(capabilities, name), frozenset)}
    return {name: sorted(value) if name in sets else value for name, value in plain.items()}


def capabilities_of(plain: Mapping[str, Any]) -> ak.Capabilities:
    """Make capabilities of what ``declared`` gave; numerics of its own may come as they are, or as their text.

    Raises
    ------
    ValueError, TypeError
        If it is not that.
    PluginError
        If no backend may declare it.
    """
    told = dict(plain)
    if isinstance(told.get("numerics"), Mapping):
        told["numerics"] = {
            dtype: CustomNumerics.model_validate(one).text if isinstance(one, Mapping) else one
            for dtype, one in told["numerics"].items()
        }
    return _CAPABILITIES.validate_python(told)
