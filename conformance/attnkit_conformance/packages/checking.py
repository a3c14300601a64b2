"""Checking a package against its own manifest: every flipped, missing, added or cut file by its name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from attnkit_conformance.packages.errors import PackageError
from attnkit_conformance.packages.files import digest, inside
from attnkit_conformance.packages.folder import MANIFEST, SUMS, Package


def problems(path: Path) -> list[str]:
    """Say what is wrong with the files of a package; empty where it is what was written."""
    try:
        return list(_problems(Package.open(path)))
    except PackageError as error:
        return [str(error)]


def _problems(package: Package) -> Iterator[str]:
    known = package.manifest.files
    for name, facts in sorted(known.items()):
        place = inside(package.path, name)
        if place.is_symlink() or not place.is_file():
            yield f"{name}: is missing"
        elif place.stat().st_size != facts.bytes:
            yield f"{name}: must be {facts.bytes} bytes, got {place.stat().st_size}"
        elif digest(place) != facts.sha256:
            yield f"{name}: is not what was written"
    there = {place.relative_to(package.path).as_posix() for place in package.path.rglob("*") if not place.is_dir()}
    for name in sorted(there - set(known) - {MANIFEST, SUMS}):
        yield f"{name}: does not belong to the package"
    yield from _sums(package)


def _sums(package: Package) -> Iterator[str]:
    """Compare ``SHA256SUMS``, which holds the manifest too."""
    place = package.path / SUMS
    wanted = {name: facts.sha256 for name, facts in package.manifest.files.items()}
    wanted[MANIFEST] = digest(package.path / MANIFEST)
    text = "".join(f"{wanted[name]}  {name}\n" for name in sorted(wanted))
    if not place.is_file():
        yield f"{SUMS}: is missing"
    elif place.read_bytes() != text.encode():
        yield f"{SUMS}: does not fit the manifest; one of the two is not what was written"
