"""A package holds calls without a bit lost, and notices every bit that is not its own."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import replace

import numpy as np
import pytest

from attnkit_conformance.cases import Case
from attnkit_conformance.crosscheck.fuzzing import fuzz
from attnkit_conformance.crosscheck.requests import suite
from attnkit_conformance.packages import Package, PackageWriter, case_of, describe, problems
from attnkit_conformance.packages.errors import PackageError
from attnkit_conformance.packages.files import inside, read_array, write_array

DTYPES = ("float32", "float64", "float16", "bfloat16")


def same(one: Case, other: Case) -> bool:
    arrays = all(
        a.dtype == b.dtype and a.tobytes() == b.tobytes() for a, b in zip(one.arrays, other.arrays, strict=True)
    )
    truths = np.array_equal(one.truth.output, other.truth.output, equal_nan=True)
    return arrays and truths and np.array_equal(one.truth.lse, other.truth.lse)


@pytest.fixture
def package(tmp_path):
    path = tmp_path / "package"
    with PackageWriter(
        path, "recording", numerics={"float32": "strict-fp32"}, made_by="tests", texts={"README.md": "A"}
    ) as made:
        for number, case in enumerate(fuzz(6, 1, DTYPES)):
            truth = {"output": case.truth.output, "lse": case.truth.lse}
            made.add(f"case-{number}", case, outputs={"output": case.truth.output.astype(case.dtype)}, truth=truth)
        made.add("refused", Case(label="x"), refused="window")
    return path


def test_every_call_comes_back_bit_for_bit(tmp_path) -> None:
    cases = [*fuzz(150, 2, DTYPES), *suite()[::7]]
    for case in cases:
        told, arrays = describe(case)
        assert same(case, case_of(told.model_validate_json(told.model_dump_json(exclude_none=True)), arrays)), str(case)


def test_a_package_is_read_back(package) -> None:
    opened = Package.open(package)
    assert opened.kind == "recording"
    assert opened.manifest.made_by == "tests"
    assert opened.names == (*(f"case-{n}" for n in range(6)), "refused")
    for name, case in zip(opened.names, fuzz(6, 1, DTYPES), strict=False):
        entry = opened.read(name)
        assert same(entry.case, case)
        assert entry.outputs["output"].dtype.name == case.dtype
        assert np.array_equal(entry.truth["output"], case.truth.output, equal_nan=True)
    assert opened.read("refused").refused == "window"
    assert problems(package) == []


def test_coreutils_agree(package) -> None:
    done = subprocess.run(["sha256sum", "-c", "--quiet", "SHA256SUMS"], cwd=package, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_copy_is_the_package(package, tmp_path) -> None:
    copy = tmp_path / "elsewhere"
    shutil.copytree(package, copy)
    assert problems(copy) == []
    assert same(Package.open(copy).read("case-3").case, Package.open(package).read("case-3").case)


def test_every_file_is_guarded(package) -> None:
    for path in sorted(p for p in package.rglob("*") if p.is_file()):
        content = path.read_bytes()
        name = path.relative_to(package).as_posix()
        for place in sorted({0, len(content) // 2, len(content) - 1} if content else ()):
            path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
            told = problems(package)
            assert told, (name, place)
            assert any(name in line or "SHA256SUMS" in line or "manifest" in line for line in told)
        path.write_bytes(content[:-1])
        assert problems(package) or not content
        path.unlink()
        assert problems(package), name
        path.write_bytes(content)
    assert problems(package) == []
    (package / "case-0" / "more.bin").write_bytes(b"")
    assert problems(package) == ["case-0/more.bin: does not belong to the package"]


def test_the_index_tells_all_arrays(package) -> None:
    head, *rows = [line.split("\t") for line in (package / "index.tsv").read_text().splitlines()]
    assert head == ["case", "role", "dtype", "count", "shape", "file"]
    for _, role, dtype, count, shape, file in rows:
        size = np.dtype({"bfloat16": "uint16"}.get(dtype, dtype)).itemsize
        assert (package / file).stat().st_size == int(count) * size
        assert int(count) == int(np.prod([int(n) for n in shape.split("x")]))
        assert role.partition(".")[0] in {"in", "out", "expected", "tau"}
    assert {row[1] for row in rows} >= {
        "in.query",
        "in.key",
        "in.value",
        "out.output",
        "expected.output",
        "expected.lse",
    }


def test_lines_say_what_the_data_says(package) -> None:
    told = dict(line.split("\t", 1) for line in (package / "case-1" / "case.tsv").read_text().splitlines())
    entry = Package.open(package).read("case-1")
    assert (int(told["batch"]), int(told["keys"])) == (entry.told.batch, entry.told.keys)
    assert float.fromhex(told["scale"]) == entry.told.scale


def test_a_folder_in_use_is_left_alone(package) -> None:
    with pytest.raises(PackageError, match="must be a new or an empty folder"):
        PackageWriter(package, "vectors", numerics={})


def test_nothing_is_left_of_a_package_that_failed(tmp_path) -> None:
    def fail() -> None:
        with PackageWriter(tmp_path / "p", "vectors", numerics={}) as made:
            made.add("one", Case(label="x"))
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError):
        fail()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["", ".", "../x", "a/b", "a" * 200, "-x"])
def test_names_are_names_of_folders(tmp_path, name) -> None:
    with (
        pytest.raises(PackageError, match="must be a new name"),
        PackageWriter(tmp_path / "p", "vectors", numerics={}) as made,
    ):
        made.add(name, Case(label="x"))


@pytest.mark.parametrize("name", ["../secret", "/etc/passwd", "a/../../b", "", "a\\b"])
def test_names_do_not_lead_out(tmp_path, name) -> None:
    with pytest.raises(PackageError, match="must not lead out"):
        inside(tmp_path, name)


def test_sizes_are_checked_before_reading(tmp_path) -> None:
    write_array(tmp_path / "a.bin", np.zeros(3, np.float32))
    with pytest.raises(PackageError, match=r"must be 16 bytes \(float32 \[4\]\), got 12"):
        read_array(tmp_path / "a.bin", "float32", (4,))
    with pytest.raises(PackageError, match="more than an array may have"):
        read_array(tmp_path / "a.bin", "float32", (1 << 20, 1 << 20))
    (tmp_path / "link.bin").symlink_to(tmp_path / "a.bin")
    with pytest.raises(PackageError, match="no such file"):
        read_array(tmp_path / "link.bin", "float32", (3,))


def test_arrays_that_make_no_call_are_told() -> None:
    told, arrays = describe(replace(Case(label="x"), options={}))
    with pytest.raises(PackageError, match="no array 'value'"):
        case_of(told, {name: array for name, array in arrays.items() if name != "value"})
    with pytest.raises(PackageError, match=r"key must be float32 \[2, 2, 6, 16\], got float32 \[2, 2, 6, 15\]"):
        case_of(told, {**arrays, "key": arrays["key"][..., 1:]})
