"""Says which packages are missing before an import of this package fails with less to go by."""

from __future__ import annotations

from importlib.util import find_spec

from attnkit.models.errors import MissingExtraError

PACKAGES = ("gguf", "platformdirs", "safetensors", "tokenizers")


def require(packages: tuple[str, ...] = PACKAGES) -> None:
    """Raise ``MissingExtraError`` if a package is not installed."""
    missing = [name for name in packages if find_spec(name) is None]
    if missing:
        raise MissingExtraError(f"attnkit.models needs {', '.join(missing)}: pip install 'attnkit[models]'")


require()
