from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import attnkit as ak
from attnkit_conformance.blind import issue, judge
from attnkit_conformance.blind.issuing import Terms, asked
from attnkit_conformance.cli.app import app
from attnkit_conformance.items import items
from attnkit_conformance.packages import Package, PackageError, problems
from attnkit_conformance.packages.files import write_array
from attnkit_conformance.reports.declared import declared
from attnkit_conformance.runner import run_item
from attnkit_conformance.selftest.mutants import MUTANTS
from attnkit_conformance.selftest.plain import EVERYTHING, Plain, unregistered
from attnkit_conformance.subject import codes_of

MODEST = replace(EVERYTHING, gqa=False, window=False, dtypes=frozenset({"float32", "float16"}), sinks=False)
TERMS = Terms(MODEST, 2, 5, 1e5, 0.04)


class Modest(Plain):
    name = "modest"
    declared = MODEST


def answered(questions: Path, folder: Path, backend: ak.Backend) -> Path:
    """Answer as a program elsewhere would: from the files alone."""
    subject, package = unregistered(backend), Package.open(questions)
    for name in package.names:
        entry = package.read(name)
        place = folder / name / "out"
        place.mkdir(parents=True)
        try:
            given = subject.attention(entry.case.arrays, entry.case.options, lse=entry.told.lse)
        except ak.UnsupportedError as error:
            (place / "refused.txt").write_text("\n".join(sorted(codes_of(error))) + "\n")
            continue
        write_array(place / "output.bin", given.output)
        if given.lse is not None:
            write_array(place / "lse.bin", given.lse)
    return folder


@pytest.fixture(scope="module")
def issued(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("blind") / "questions"
    issue(path, TERMS)
    return path


@pytest.fixture(scope="module")
def good(issued: Path, tmp_path_factory) -> Path:
    return answered(issued, tmp_path_factory.mktemp("good") / "answers", Modest())


@pytest.fixture
def questions(issued: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(issued, tmp_path / "questions"))


@pytest.fixture
def answers(good: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(good, tmp_path / "answers"))


def test_questions_hold_no_answers(questions: Path) -> None:
    package = Package.open(questions)
    assert package.kind == "questions"
    assert problems(questions) == []
    assert len(package.names) > 30
    assert all(name.startswith("q") and len(name) == 17 for name in package.names)
    assert not [place for place in questions.rglob("*") if place.parent.name in ("truth", "out")]
    assert not any("truth" in line or "expected" in line for line in (questions / "index.tsv").read_text().splitlines())


def test_right_answers_conform(questions: Path, answers: Path) -> None:
    found = judge(questions, answers)
    assert found.verdict.startswith("CONFORMANT attnkit-contract ")
    assert "offline" in found.verdict
    assert found.conforms
    assert any(result.outcome.startswith("refused") for result in found.results)
    assert all(result.outcome for result in found.results)


@pytest.mark.parametrize("mutant", MUTANTS[:60:6], ids=lambda mutant: mutant.name)
def test_the_verdict_is_that_of_the_suite(issued: Path, tmp_path: Path, mutant) -> None:
    """Item by item, wrong implementations are judged offline as they are at home."""
    subject = mutant.subject()
    terms = Terms(subject.capabilities, 1, 5, 1e6, 0.4)
    issue(tmp_path / "questions", terms)
    found = judge(
        tmp_path / "questions", answered(tmp_path / "questions", tmp_path / "answers", subject.harness.backend)
    )
    by_id = {item.id: item for item in items(terms.level, seed=terms.seed)}
    covered = [result for result in found.results if result.status != "NOT_RUN"]
    assert len(covered) > 20
    for result in covered:
        assert result.status == run_item(by_id[result.id], subject).status, result.id


def test_a_wrong_number_is_found(questions: Path, answers: Path) -> None:
    place = next(place for place in sorted(answers.rglob("output.bin")) if place.stat().st_size)
    place.write_bytes(np.full(place.stat().st_size, 0x42, np.uint8).tobytes())
    found = judge(questions, answers)
    assert found.verdict.startswith("NOT CONFORMANT: 1 failures in 1 requirements")


def test_missing_and_cut_answers_are_named(questions: Path, answers: Path) -> None:
    first, second = sorted(answers.rglob("output.bin"))[:2]
    first.unlink()
    second.write_bytes(second.read_bytes()[:-1])
    messages = "\n".join(result.message for result in judge(questions, answers).results)
    assert f"no answer: {first.parents[1].name}/out/output.bin is missing" in messages
    assert "output.bin: must be" in messages


def test_what_must_be_refused_must_not_be_answered(questions: Path, answers: Path) -> None:
    refusal = sorted(answers.rglob("refused.txt"))[0]
    entry = Package.open(questions).read(refusal.parents[1].name)
    refusal.unlink()
    write_array(refusal.parent / "output.bin", np.zeros(entry.case.output_shape, entry.case.dtype))
    if entry.told.lse:
        write_array(refusal.parent / "lse.bin", np.zeros(entry.case.output_shape[:3], np.float32))
    assert "yet the call gave a result" in "\n".join(result.message for result in judge(questions, answers).results)


def test_a_refusal_for_another_reason_is_wrong(questions: Path, answers: Path) -> None:
    sorted(answers.rglob("refused.txt"))[0].write_text("lazy\n")
    assert "the refusal must carry the codes" in "\n".join(r.message for r in judge(questions, answers).results)


def test_refusing_everything_is_no_way_out(questions: Path, tmp_path: Path) -> None:
    for name in Package.open(questions).names:
        place = tmp_path / "none" / name / "out"
        place.mkdir(parents=True)
        (place / "refused.txt").write_text("dtypes\n")
    assert judge(questions, tmp_path / "none").verdict.startswith("NOT CONFORMANT")


def test_changed_questions_are_noticed(questions: Path, answers: Path) -> None:
    place = sorted(questions.rglob("query.bin"))[3]
    content = place.read_bytes()
    place.write_bytes(bytes([content[0] ^ 1]) + content[1:])
    with pytest.raises(PackageError, match=place.relative_to(questions).as_posix()):
        judge(questions, answers)


def test_questions_that_were_made_easier_are_noticed(tmp_path: Path, answers: Path, questions: Path) -> None:
    """A package whose own sums are right, but which is not what its terms lead to."""
    from attnkit_conformance.packages import PackageWriter

    package = Package.open(questions)
    about = dict(package.manifest.about)
    with PackageWriter(tmp_path / "easy", "questions", numerics={}, about=about) as writer:
        for name in package.names:
            entry = package.read(name)
            zeros = [np.zeros_like(array) for array in entry.case.arrays]
            writer.add(name, entry.case.holding(zeros), lse=entry.told.lse)
    with pytest.raises(PackageError, match="is not the question that was issued"):
        judge(tmp_path / "easy", answers)


def test_terms_decide_the_questions() -> None:
    small = Terms(ak.Capabilities(), 1, 0, 1e4)
    assert [one.item.id for one in asked(small)] == [item.id for item in items(1)]
    sizes = [q.case.batch * q.case.heads * q.case.queries * q.case.keys for one in asked(small) for q in one.questions]
    assert sizes
    assert max(sizes) <= 1e4
    other = {q.name for one in asked(replace(small, seed=1)) for q in one.questions}
    assert not other & {q.name for one in asked(small) for q in one.questions}


def test_command_line(tmp_path: Path) -> None:
    run, file = CliRunner(), tmp_path / "declared.json"
    file.write_text(json.dumps(declared(MODEST)))
    asked_for = ["issue", str(tmp_path / "q"), "--capabilities", str(file), "--max-macs", "100000", "--sample", "0.3"]
    done = run.invoke(app, [*asked_for, "--level", "L1"])
    assert done.exit_code == 0, done.output
    answered(tmp_path / "q", tmp_path / "a", Modest())
    done = run.invoke(app, ["judge", str(tmp_path / "q"), str(tmp_path / "a")])
    assert done.exit_code == 0, done.output
    assert "CONFORMANT" in done.output
    assert "not covered" in done.output

    sorted((tmp_path / "a").rglob("output.bin"))[0].unlink()
    done = run.invoke(app, ["judge", str(tmp_path / "q"), str(tmp_path / "a"), "--json"])
    assert done.exit_code == 1
    assert json.loads(done.output)["verdict"].startswith("NOT CONFORMANT")

    assert run.invoke(app, [*asked_for, "--level", "9"]).exit_code == 2
    assert run.invoke(app, asked_for).exit_code == 2  # the folder is in use
    assert run.invoke(app, ["judge", str(tmp_path / "a"), str(tmp_path / "a")]).exit_code == 2
    file.write_text('{"gqa": "perhaps"}')
    assert run.invoke(app, ["issue", str(tmp_path / "r"), "--capabilities", str(file)]).exit_code == 2
