from __future__ import annotations

import attnkit.models


def test_the_public_names_are_sorted_and_exist():
    assert attnkit.models.__all__ == sorted(attnkit.models.__all__)
    assert all(hasattr(attnkit.models, name) for name in attnkit.models.__all__)
