"""A backend that cannot run here."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import attnkit as ak
from attnkit.registry import registry


@pytest.fixture
def absent() -> Iterator[str]:
    """The name of a backend whose library is not installed."""

    def load() -> ak.Backend:
        raise AssertionError("never loaded")

    ak.register(
        ak.BackendSpec(
            name="absent",
            load=load,
            owns=(("absent.Array", "*"),),
            available=lambda: "the package absent is not installed",
            install_hint="pip install 'attnkit-absent[all]'",
            summary="Never there.",
        )
    )
    yield "absent"
    registry.unregister("absent")
