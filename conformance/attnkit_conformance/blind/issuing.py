"""Issue: the questions that the checks of a level ask an implementation of given capabilities."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import attnkit as ak
from attnkit_conformance.blind.asking import Asking, Nudging, Question
from attnkit_conformance.items import Item, items, manifest_digest
from attnkit_conformance.packages import PackageWriter
from attnkit_conformance.reports.declared import declared
from attnkit_conformance.subject import Subject

README: Final = """\
# Questions

Every folder in here is one call of attention: `case.tsv` (and `case.json`) says what it is, `in/` holds its arrays,
raw, little-endian and row-major. Write what your implementation gives into `OUT/CASE/out/output.bin` in the element
type of the call, and where `lse` is 1 in `case.tsv` `OUT/CASE/out/lse.bin` (float32, or float64 for float64). Some
calls are beyond what you declare, and must be refused: write the names of the capabilities that say no into
`OUT/CASE/out/refused.txt`. docs/vectors.md of attnkit explains the format.
"""


@dataclass(frozen=True, slots=True, eq=False)
class Terms:
    """What questions follow from.

    Attributes
    ----------
    capabilities
        What the implementation declares.
    level, seed, sample
        As of ``conform run``.
    most
        Multiplications that one call may need.
    """

    capabilities: ak.Capabilities
    level: int
    seed: int
    most: float
    sample: float = 1.0


@dataclass(frozen=True, slots=True, eq=False)
class Asked:
    """One item as questions, or why it is none."""

    item: Item
    questions: tuple[Question, ...]
    why_not: str


def asked(terms: Terms) -> Iterator[Asked]:
    """Give every item of the level as questions; always the same ones for the same terms and the same suite."""
    for item in items(terms.level, seed=terms.seed, sample=terms.sample):
        harness = Asking(terms.capabilities, item, terms.most)
        why_not = _run(harness)
        if not why_not:
            nudged = Nudging(terms.capabilities, item, terms.most)
            _run(nudged)
            if any(a.digest != b.digest for a, b in zip(harness.questions, nudged.questions, strict=False)):
                why_not = "its calls depend on earlier answers"
        yield Asked(item, () if why_not else tuple(harness.questions), why_not)


def issue(path: Path | str, terms: Terms) -> tuple[int, int]:
    """Write the questions; give how many items they cover, and how many there are.

    Raises
    ------
    PackageError
        If the folder is in use.
    """
    found = list(asked(terms))
    about = {
        "capabilities": declared(terms.capabilities),
        "level": terms.level,
        "seed": terms.seed,
        "max_macs": terms.most,
        "sample": terms.sample,
        "manifest": manifest_digest(one.item.id for one in found),
    }
    numerics = dict(terms.capabilities.numerics)
    with PackageWriter(Path(path), "questions", numerics=numerics, about=about, texts={"README.md": README}) as writer:
        for question in sorted((q for one in found for q in one.questions), key=lambda question: question.name):
            writer.add(question.name, question.case, lse=question.lse)
    return sum(not one.why_not for one in found), len(found)


def _run(harness: Asking) -> str:
    """Run the item of a harness; give why it cannot be put as questions, if so."""
    try:
        harness.item.run(Subject(harness))
    except Exception as error:  # a check stops where its question cannot be put, or its answer was nudged
        return harness.why_not or f"it cannot be asked: {type(error).__name__}"
    return harness.why_not or ("" if harness.questions else "it makes no call")
