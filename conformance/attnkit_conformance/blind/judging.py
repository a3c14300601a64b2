"""Judge: the checks of the suite, run on answers that were written down elsewhere.

Nothing of the questions is believed: they are made again from what they follow from, and compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

import attnkit as ak
from attnkit.errors import Reason
from attnkit_conformance.blind.asking import Asking, Question, Results
from attnkit_conformance.blind.issuing import Asked, Terms, asked
from attnkit_conformance.items import manifest_digest
from attnkit_conformance.packages import Package, PackageError, describe, problems
from attnkit_conformance.packages.folder import given_in
from attnkit_conformance.reports.declared import capabilities_of
from attnkit_conformance.results import GOOD, Result
from attnkit_conformance.runner import not_run, run_item
from attnkit_conformance.subject import Subject
from attnkit_conformance.verdict import is_conformant, word_for


class _About(BaseModel):
    """What questions follow from, as their manifest has it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    capabilities: dict[str, Any]
    level: int = Field(ge=0, le=3)
    seed: int = Field(ge=0)
    max_macs: float
    sample: float = Field(gt=0, le=1)
    manifest: str


@dataclass(frozen=True, slots=True)
class Judgement:
    """What the answers come down to.

    Attributes
    ----------
    verdict
        As of ``conform run``, but of the items that questions can cover, and stamped ``offline``.
    results
        One for each item; those that are not covered are not run.
    """

    verdict: str
    results: tuple[Result, ...]

    @property
    def conforms(self) -> bool:
        """Whether everything that was asked is right."""
        return is_conformant(self.verdict)


def judge(questions: Path | str, answers: Path | str) -> Judgement:
    """Judge answers.

    Parameters
    ----------
    questions
        What ``issue`` wrote.
    answers
        A folder of ``CASE/out/output.bin``, ``lse.bin`` or ``refused.txt``.

    Raises
    ------
    PackageError
        If the questions are not those that were issued, or there is no such folder.
    """
    package, folder = Package.open(Path(questions)), Path(answers)
    if package.kind != "questions":
        raise PackageError(f"{questions}: must be a package of questions, got one of {package.kind}")
    if not folder.is_dir():
        raise PackageError(f"{answers}: must be a folder of CASE/out/output.bin, there is none")
    terms, manifest = _terms(package)
    found = list(asked(terms))
    if manifest != manifest_digest(one.item.id for one in found):
        raise PackageError(f"{questions}: issued by another version of the suite, {package.manifest.suite}")
    _compare(package, found)
    results = tuple(_result(one, terms, folder) for one in found)
    return Judgement(_verdict(results, package), results)


class _Reading(Asking):
    """Gives the answers of a folder in place of right ones."""

    def __init__(self, one: Asked, terms: Terms, folder: Path) -> None:
        super().__init__(terms.capabilities, one.item, terms.most)
        self._known, self._folder = {question.name: question for question in one.questions}, folder

    def answered(self, question: Question, right: Callable[[], Results]) -> Results:
        """Read the answer to a question."""
        del right
        known = self._known.get(question.name)
        if known is None or known.digest != question.digest:
            raise AssertionError("after these answers the check asks what it did not ask before")
        place = self._folder / question.name / "out"
        refusal = place / "refused.txt"
        if refusal.is_file():
            codes = refusal.read_bytes()[:400].decode("utf-8", "replace").replace(",", " ").split()
            reasons = tuple(Reason(code, code, "declared", "asked for") for code in codes)
            raise ak.UnsupportedError(f"{question.name}: refused", {"offline": reasons})
        return self._given(question, place)

    def _given(self, question: Question, place: Path) -> tuple[np.ndarray[Any, Any], ...]:
        try:
            given = given_in(place, describe(question.case, lse=question.lse)[0])
        except PackageError as error:
            raise AssertionError(str(error)) from error
        wanted = ("output", "lse") if question.lse else ("output",)
        missing = [name for name in wanted if name not in given]
        if missing:
            raise AssertionError(f"no answer: {question.name}/out/{missing[0]}.bin is missing")
        return tuple(given[name] for name in wanted)


def _result(one: Asked, terms: Terms, folder: Path) -> Result:
    if one.why_not:
        return not_run(one.item, f"offline: {one.why_not}")
    return run_item(one.item, Subject(_Reading(one, terms, folder)))


def _terms(package: Package) -> tuple[Terms, str]:
    damage = problems(package.path)
    if damage:
        raise PackageError(f"the questions are not as they were issued: {'; '.join(damage[:5])}")
    try:
        about = _About.model_validate(dict(package.manifest.about))
        capabilities = capabilities_of(about.capabilities)
    except (ValueError, TypeError, ak.AttnkitError) as error:
        raise PackageError(f"{package.path}: the manifest does not say what was asked for: {error}") from error
    return Terms(capabilities, about.level, about.seed, about.max_macs, about.sample), about.manifest


def _compare(package: Package, found: Sequence[Asked]) -> None:
    """Compare the questions with those that must have been issued, number by number."""
    wanted = {question.name: question for one in found for question in one.questions}
    strange = sorted(set(wanted) ^ set(package.names))
    changed = (name for name in package.names if name in wanted and not _same(package, wanted[name]))
    for name in (*strange, *changed):
        raise PackageError(f"{name}: is not the question that was issued")


def _same(package: Package, question: Question) -> bool:
    entry = package.read(question.name)
    told, arrays = describe(question.case, lse=question.lse)
    there = describe(entry.case, lse=entry.told.lse)[1]
    same = all(arrays[role].tobytes() == there[role].tobytes() for role in arrays) and set(arrays) == set(there)
    return same and entry.told == told


def _verdict(results: Sequence[Result], package: Package) -> str:
    covered = [result for result in results if result.status != "NOT_RUN"]
    bad = [result for result in covered if result.status not in GOOD]
    if bad:
        count = len({result.requirement for result in bad})
        return f"NOT CONFORMANT: {len(bad)} failures in {count} requirements / offline"
    if not any(result.outcome == "answered" for result in covered):
        return "NO VERDICT: nothing was answered / offline"
    return " / ".join(_conformant(covered, len(results), package))


def _conformant(covered: Sequence[Result], total: int, package: Package) -> Iterator[str]:
    about = package.manifest.about
    yield f"{word_for(about['capabilities'])} attnkit-contract {package.manifest.contract}"
    yield f"suite {package.manifest.suite}"
    yield f"L{about['level']}"
    yield f"offline, {len(covered)} of {total} items"
    yield f"manifest {about['manifest'][:12]}"
