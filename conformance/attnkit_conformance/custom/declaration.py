"""CustomNumerics: arithmetic that no profile describes, told stage by stage, and the bounds that follow from it.

What is assumed of an implementation, in this order, for each query row::

    input        query, key and value are stored                       q, k, v
    product      dot products are summed up                            d_j = sum_c q_c k_jc
    score        they are scaled, added to, and stored                 s_j = scale d_j + bias ...
    exp          the largest is subtracted, the exponential taken      w_j = exp(s_j - m)
    accumulator  exponentials are summed up                            l = sum_j w_j
    reciprocal   is taken                                              r = 1 / l
    weight       what is multiplied with the values is stored          P_j = w_j, or w_j r
    accumulator  products are summed up                                sum_j P_j v_j
    output       the result, times r or not, is stored                 o
    logarithm    m + log(l) is stored, where it is asked for

With ``keys_per_tile`` the largest score is that of the keys so far, and what is summed is scaled anew for each tile.
The bounds are rigorous: no random walk is assumed of rounding errors, and what is of second order is bounded too.

Axes: ``n`` keys of a row, ``D`` key head size, ``E`` value head size.
"""

from __future__ import annotations

import hashlib
import json
import tomllib
from functools import cached_property
from pathlib import Path
from typing import Final, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator

from attnkit.tolerance import FloatArray, RowFacts
from attnkit_conformance.custom.budget import Budget, Stages
from attnkit_conformance.custom.formats import Block

VERDICT: Final = "CUSTOM"


class CustomNumerics(BaseModel):
    """Numerics of one's own.

    Attributes
    ----------
    name
        Of the implementation, in words.
    dtype
        Element type of the arrays that go in and come out.
    stages
        What is done where; a stage that is left out does not round.
    division
        Whether the sum of weighted values is divided, or each weight before.
    keys_per_tile
        Keys whose scores are known before the first is weighted; by default all.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(min_length=1)
    dtype: Literal["float16", "bfloat16", "float32", "float64"]
    stages: Stages
    division: Literal["after", "before"] = "after"
    keys_per_tile: int | None = Field(default=None, ge=1)

    @model_validator(mode="after")
    def _is_meant(self) -> CustomNumerics:
        if self.division == "before" and self.keys_per_tile is not None:
            raise ValueError("division: weights are divided before only where all are known; leave out keys_per_tile")
        for name in ("product", "accumulator"):
            if isinstance(getattr(self.stages, name).format, Block):
                raise ValueError(f"stages.{name}: a running sum cannot be held in block floating point")
        return self

    @classmethod
    def load(cls, path: Path | str) -> CustomNumerics:
        """Read a declaration: TOML where the name ends so, else JSON.

        Raises
        ------
        ValueError
            If it is none; the message tells every place.
        """
        text = Path(path).read_text("utf-8")
        return cls.model_validate(tomllib.loads(text) if str(path).endswith(".toml") else json.loads(text))

    @property
    def text(self) -> str:
        """The declaration as JSON on one line: what ``Capabilities.numerics`` and manifests hold."""
        return json.dumps(self.model_dump(mode="json", exclude_defaults=True), sort_keys=True)

    @property
    def declared(self) -> dict[str, str]:
        """What a backend declares as its ``Capabilities.numerics``."""
        return {self.dtype: self.text}

    @cached_property
    def verdict(self) -> str:
        """What stands in the place of a profile: ``"CUSTOM"`` and a hash of the whole declaration."""
        return f"{VERDICT} {hashlib.sha256(self.text.encode()).hexdigest()[:12]}"

    def output_terms(self, row: RowFacts) -> dict[str, FloatArray]:
        """Bound the error of the output of a row, stage by stage, each ``[E]``."""
        with np.errstate(all="ignore"):  # a bound may be infinite, or no number, and is refused then
            return self._budget(row).output_terms()

    def lse_budget(self, row: RowFacts) -> float:
        """Bound the error of the log-sum-exp of a row."""
        with np.errstate(all="ignore"):
            return self._budget(row).lse()

    def _budget(self, row: RowFacts) -> Budget:
        tile = self.keys_per_tile or max(1, row.score.size)
        return Budget(row, self.stages, self.dtype, before=self.division == "before", tile=tile)
