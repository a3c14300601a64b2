"""Where kernels lie, and where what was built of them is kept."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

ENVIRONMENT = "ATTNKIT_CACHE"
KERNELS = Path(__file__).parent / "kernels"


def cache_folder() -> Path:
    """Give the folder of built kernels: in ``ATTNKIT_CACHE``, else in the user's cache."""
    if named := os.environ.get(ENVIRONMENT):
        return Path(named) / "kernels"
    user = os.environ.get("XDG_CACHE_HOME")
    return (Path(user) if user else Path.home() / ".cache") / "attnkit" / "kernels"


def texts(folders: Iterable[Path]) -> list[bytes]:
    """Give all sources in some folders, by name: what a build depends on."""
    files = [file for folder in folders for file in sorted(folder.iterdir())]
    return [file.name.encode() + b"\0" + file.read_bytes() for file in files if file.suffix in (".cu", ".cuh", ".hpp")]
