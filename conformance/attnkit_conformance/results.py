"""Results: what came of every item, and the report of a run, as frozen pydantic models with a JSON schema."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, FiniteFloat, PlainSerializer, WithJsonSchema

Status = Literal["PASS", "FAIL", "ERROR", "CRASH", "TIMEOUT", "NOT_RUN", "WAIVED", "XPASS"]
"""What came of an item.

``PASS``: answered and right, or refused as it must be. ``FAIL``: wrong. ``ERROR``: the suite itself broke, or compared
nothing. ``CRASH``, ``TIMEOUT``: the backend's process died or hung. ``NOT_RUN``: a device or a means to ask is absent.
``WAIVED``: fails, as a waiver says. ``XPASS``: passes although a waiver says that it fails.
"""
GOOD = frozenset({"PASS", "WAIVED"})
_MODEL = ConfigDict(frozen=True, extra="forbid", json_schema_serialization_defaults_required=True)


def _json_number(value: float) -> float | str:
    return value if math.isfinite(value) else {"inf": "Infinity", "-inf": "-Infinity"}.get(str(value), "NaN")


Real = Annotated[
    float,
    PlainSerializer(_json_number, when_used="json"),
    WithJsonSchema({"anyOf": [{"type": "number"}, {"enum": ["Infinity", "-Infinity", "NaN"]}]}),
]
"""A number that may be infinite or NaN; JSON has no such numbers, so that they are strings there."""


class Worst(BaseModel):
    """The worst comparison of an item.

    Attributes
    ----------
    what
        What was compared, in words.
    ratio
        The largest error in units of its bound tau; infinity where every bit had to be the same.
    rms, bias
        The root of the mean square of the errors in units of tau, and the mean of their signs times them.
    at
        Index of the worst element: ``[b, h, i, e]`` or ``[b, h, i]``.
    expected, actual, tau
        What stands there.
    term
        For an output that fails: the term that its bound is mostly made of.
    """

    model_config = _MODEL

    what: str
    exact: bool = False
    ratio: Real = 0.0
    rms: Real = 0.0
    bias: Real = 0.0
    at: tuple[int, ...] = ()
    expected: Real = 0.0
    actual: Real = 0.0
    tau: Real = 0.0
    term: str = ""


class Result(BaseModel):
    """What came of one item.

    Attributes
    ----------
    id
        The item's.
    requirement, level
        What it is about.
    dtype
        Element type of its case, as it was run.
    status
        See ``Status``.
    outcome
        For ``PASS``: ``"answered"``, ``"refused CODES"``, ``"outside LIMIT"``. For ``NOT_RUN``: why.
    message
        For everything that is not good: what went wrong, and where.
    seconds
        Wall time.
    comparisons, elements
        How many arrays and numbers were compared.
    worst
        The comparison with the largest ratio, of those within a bound if there are any.
    repro
        The folder of its reproducer, relative to the report.
    """

    model_config = _MODEL

    id: str
    requirement: str
    level: int
    dtype: str
    status: Status
    outcome: str = ""
    message: str = ""
    seconds: FiniteFloat = 0.0
    comparisons: int = 0
    elements: int = 0
    worst: Worst | None = None
    repro: str = ""


class Header(BaseModel):
    """What was run, where, and how.

    Attributes
    ----------
    suite, contract
        Versions of the suite (the distribution's) and of the contract that it checks.
    requirements, manifest
        SHA-256 of the requirements, and of these and the ids of all items of the run.
    backend, path, paths, source, contract_version
        See ``attnkit_conformance.harness.local.Description``.
    capabilities
        What the backend declares, by field.
    level, seed, sample
        What was asked for; a sample below 1 is only a share of the items.
    partial
        The run was filtered in a way that its level, seed and sample do not tell.
    isolated
        The backend ran in a process of its own. Only then can there be a verdict.
    environment
        Versions of Python, libraries, operating system and processor.
    waivers
        The waivers that were given, as they were written.
    started
        Time of the start, ISO 8601 in UTC.
    """

    model_config = _MODEL

    format: Literal["attnkit-conformance/1"] = "attnkit-conformance/1"
    suite: str
    contract: str
    requirements: str
    manifest: str
    backend: str
    path: str | None = None
    paths: tuple[str, ...] = ()
    source: str = ""
    contract_version: str = ""
    capabilities: Mapping[str, Any] = {}
    level: int = 2
    seed: int = 0
    sample: FiniteFloat = 1.0
    partial: bool = False
    isolated: bool = False
    environment: Mapping[str, str] = {}
    waivers: tuple[Mapping[str, Any], ...] = ()
    started: str = ""


class Footer(BaseModel):
    """How a run ended; a report without one was cut short.

    Attributes
    ----------
    counts
        How many results of each status.
    seconds
        Wall time.
    verdict
        The verdict in one line.
    """

    model_config = _MODEL

    counts: Mapping[Status, int]
    seconds: FiniteFloat
    verdict: str


class Report(BaseModel):
    """A whole run: ``report.json``."""

    model_config = _MODEL

    header: Header
    results: tuple[Result, ...]
    footer: Footer | None = None

    def counts(self) -> Counter[Status]:
        """Count the results by status."""
        return Counter(result.status for result in self.results)
