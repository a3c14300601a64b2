"""A real model on two backends, layer by layer: where they part, and what comes of it."""

from attnkit_conformance.crosscheck.model.comparing import compare
from attnkit_conformance.crosscheck.model.report import ModelReport

__all__ = ["ModelReport", "compare"]
