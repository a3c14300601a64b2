from __future__ import annotations

import pytest

from attnkit.models import MissingExtraError, _extra


def test_missing_packages_are_named_with_the_command_that_installs_them():
    with pytest.raises(MissingExtraError, match=r"needs nothing_of_that_name: pip install 'attnkit\[models\]'"):
        _extra.require(("pytest", "nothing_of_that_name"))
    _extra.require()
