"""Atomic replacement of files: whatever happens, there is the old file or the new one, whole."""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Give a new file to write to, which takes the place of ``path`` once the block is done and all is on the disk.

    It lies beside ``path`` under a name that nothing else uses, ``.NAME.RANDOM.tmp``: a process that is killed leaves
    that behind, which may be deleted. Permissions are those of the file that it replaces, or of any new file. A
    symbolic link is followed.

    Raises
    ------
    OSError
        If the folder is none, or cannot be written to. Then, and if the block fails, the old file stays.
    """
    target = Path(os.path.realpath(path))
    if target.is_dir():
        raise IsADirectoryError(f"{target} is a folder; give the path of a file")
    beside = target.with_name(f".{target.name[:50]}.{secrets.token_hex(8)}.tmp")
    try:
        with open(beside, "xb") as file:
            with suppress(FileNotFoundError):
                os.chmod(beside, stat.S_IMODE(target.stat().st_mode))
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, target)
    except BaseException:
        with suppress(FileNotFoundError):
            beside.unlink()
        raise
    _settle(target.parent)


def _settle(folder: Path) -> None:
    """Make the names in a folder last through a power failure, where the system can."""
    if hasattr(os, "O_DIRECTORY"):
        number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(number)
        finally:
            os.close(number)
