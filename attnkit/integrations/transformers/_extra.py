"""Says what is missing or too old before an import of this package fails with less to go by."""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, version

from attnkit.integrations.transformers.errors import MissingExtraError

OLDEST = {"torch": (2, 5), "transformers": (5, 24)}


def require(oldest: dict[str, tuple[int, int]]) -> None:
    """Raise ``MissingExtraError`` unless every package is installed and recent enough."""
    complaints = [text for name, numbers in oldest.items() if (text := _complaint(name, numbers))]
    if complaints:
        raise MissingExtraError(
            f"attnkit.integrations.transformers needs {', '.join(complaints)}: "
            "pip install --upgrade 'attnkit[transformers]'"
        )


def _complaint(name: str, oldest: tuple[int, int]) -> str:
    needed = f"{name} >= {oldest[0]}.{oldest[1]}"
    try:
        found = version(name)
    except PackageNotFoundError:
        return f"{needed}, which is not installed"
    numbers = tuple(int(number) for number in re.findall(r"\d+", found)[:2])
    return "" if numbers >= oldest else f"{needed}, found {found}"


require(OLDEST)
