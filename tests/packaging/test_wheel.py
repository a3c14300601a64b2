"""What a user gets: the wheel's names and files, and that it works away from the checkout."""

from __future__ import annotations

import tarfile
import zipfile
from pathlib import Path, PurePosixPath

import pytest

PACKAGES = {
    "attnkit": "attnkit",
    "attnkit_conformance": "conformance/attnkit_conformance",
    "attnkit_cupy": "plugins/attnkit_cupy",
    "attnkit_numpy": "plugins/attnkit_numpy",
    "attnkit_torch": "plugins/attnkit_torch",
}


@pytest.fixture(scope="module")
def wheel(checkout, python, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    python("-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(checkout), folder=folder)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def names(wheel) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if ".dist-info/" not in name}


def test_top_level_names_are_exactly_ours(names) -> None:
    assert {name.partition("/")[0] for name in names} == set(PACKAGES)


@pytest.mark.parametrize("package", PACKAGES)
def test_every_package_is_typed(names, package) -> None:
    assert f"{package}/py.typed" in names


@pytest.mark.parametrize(("package", "folder"), PACKAGES.items())
def test_every_source_file_is_in_it(names, checkout, package, folder) -> None:
    root = checkout / folder
    kinds = {".py", ".typed", ".cu", ".cuh", ".hpp", ".json", ".toml"}
    files = {f"{package}/{path.relative_to(root).as_posix()}" for path in root.rglob("*") if path.suffix in kinds}
    assert files - names == set()


def test_sdist_holds_the_project_and_nothing_that_lies_about(checkout, python, tmp_path) -> None:
    python("-m", "build", "--sdist", "--no-isolation", "--outdir", str(tmp_path), str(checkout), folder=tmp_path)
    (built,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(built) as archive:
        paths = [PurePosixPath(name).parts[1:] for name in archive.getnames()]
    project = {"attnkit", "benchmarks", "conformance", "docs", "plugins", "tests", "tools", ".ci"}
    project |= {"CHANGELOG.md", "LICENSE", "README.md", "constraints.txt", "pyproject.toml", ".gitignore", "PKG-INFO"}
    assert {path[0] for path in paths} <= project
    assert (".ci", "run") in paths
    assert not [path for path in paths if "__pycache__" in path]


def test_licence_is_in_it(wheel) -> None:
    with zipfile.ZipFile(wheel) as archive:
        assert [name for name in archive.namelist() if name.endswith(".dist-info/licenses/LICENSE")]


def test_it_works_away_from_the_checkout(wheel, python, tmp_path) -> None:
    target = tmp_path / "site"
    python("-m", "pip", "install", "-q", "--no-deps", "--target", str(target), str(wheel), folder=tmp_path)
    program = (
        "import attnkit, attnkit_numpy as n; print(attnkit.__file__, n.__file__, attnkit.get_backend('numpy').name)"
    )
    core, plugin, name = python("-W", "error", "-c", program, folder=tmp_path, path=target).split()
    assert core == str(target / "attnkit" / "__init__.py")
    assert plugin == str(target / "attnkit_numpy" / "__init__.py")
    assert name == "numpy"
