"""What a package exports is what its ``__all__`` says, sorted."""

from __future__ import annotations

import importlib
import pkgutil
from types import ModuleType

import pytest

ROOTS = ("attnkit", "attnkit_conformance", "attnkit_cupy", "attnkit_numpy", "attnkit_torch")


def packages() -> list[str]:
    found = list(ROOTS)
    for root in ROOTS:
        package = importlib.import_module(root)
        found += [module.name for module in pkgutil.walk_packages(package.__path__, f"{root}.") if module.ispkg]
    return sorted(found)


@pytest.mark.parametrize("name", packages())
def test_all_is_sorted_and_complete(name) -> None:
    package = importlib.import_module(name)
    declared = list(getattr(package, "__all__", []))
    lazy = set(declared) if "__getattr__" in vars(package) else set()  # what it imports when it is asked for
    assert all(hasattr(package, key) for key in declared)
    bound = {key for key, value in vars(package).items() if not key.startswith("_") and not _is_plumbing(value)}
    public = bound | lazy
    assert declared == sorted(declared)
    assert {key for key in declared if not key.startswith("_")} == public


def _is_plumbing(value: object) -> bool:
    """Submodules and ``from __future__ import annotations`` are bound by Python, not exported by us."""
    return isinstance(value, ModuleType) or type(value).__module__ == "__future__"
