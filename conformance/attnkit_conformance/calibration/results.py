"""Results: what was measured, where and when, as they are written to ``results.json``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

import numpy as np
from pydantic import BaseModel, ConfigDict

Array = np.ndarray[Any, Any]
_HALVES = ("bfloat16", "float16")


class Row(NamedTuple):
    """Errors over bounds of one algorithm on one distribution.

    Attributes
    ----------
    name
        The algorithm, or the path of a backend.
    profile, dtype
        The numerics that it declares for an element type.
    draw
        The distribution.
    what
        ``"output"``, ``"lse"`` or ``"gradients"``.
    numbers
        How many were compared.
    most, high, rms, bias
        The largest, the 99.9th percentile, the root of the mean square, and the mean signed by the truth.
    """

    name: str
    profile: str
    dtype: str
    draw: str
    what: str
    numbers: int
    most: float
    high: float
    rms: float
    bias: float

    @classmethod
    def of(cls, name: str, profile: str, dtype: str, draw: str, what: str, signs: Array, errors: Array) -> Self:
        """Sum up errors over bounds."""
        size = np.abs(errors)
        found = size.max(), np.quantile(size, 0.999), np.sqrt(np.square(errors).mean()), (signs * errors).mean()
        return cls(name, profile, dtype, draw, what, errors.size, *(_short(number) for number in found))

    @property
    def limit(self) -> float:
        """The largest ratio that is accepted of a correct algorithm.

        What is rounded once or twice and is no sum comes up to its bound: outputs of 16 bits out of float32, and
        gradients of 16 bits that a single row makes.
        """
        only_rounded = self.profile.startswith("fp32P-16") or (self.what == "gradients" and self.dtype in _HALVES)
        return 1.0 if only_rounded else 0.9


class Results(BaseModel):
    """A whole calibration.

    Attributes
    ----------
    date
        The day, ISO 8601.
    environment
        Versions and hardware.
    seeds
        How many seeds each call was drawn with.
    zoo
        Rows of algorithms that are correct by construction.
    backends
        Rows of installed backends. One above 1 has a fault, or declares the wrong numerics.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal["attnkit-calibration/1"] = "attnkit-calibration/1"
    date: str
    environment: Mapping[str, str]
    seeds: int
    zoo: tuple[Row, ...]
    backends: tuple[Row, ...]

    def dump(self) -> str:
        """Give it as JSON, one row a line."""
        head = self.model_dump(exclude={"zoo", "backends"})
        lines = [f"{json.dumps(name)}: {json.dumps(value)}" for name, value in head.items()]
        for name, rows in (("zoo", self.zoo), ("backends", self.backends)):
            lines.append(f'"{name}": [\n' + ",\n".join(json.dumps(row) for row in rows) + "\n]")
        return "{\n" + ",\n".join(lines) + "\n}\n"

    def rejected(self) -> list[Row]:
        """Give the correct algorithms that the bounds do not accept: there must be none."""
        return [row for row in self.zoo if row.most > row.limit]


PATH = Path(str(files("attnkit_conformance.calibration") / "results.json"))
"""The calibration that comes with the package."""


def committed() -> Results:
    """Give the calibration that comes with the package."""
    return Results.model_validate_json(PATH.read_text("utf-8"))


def _short(number: float) -> float:
    return float(f"{number:.3g}")
