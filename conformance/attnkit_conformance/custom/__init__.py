"""Numerics of one's own: fixed point, block floating point, tables for exp; the bounds and the verdict that follow."""

from attnkit_conformance.custom.budget import Stages, assert_telling
from attnkit_conformance.custom.declaration import CustomNumerics
from attnkit_conformance.custom.formats import Block, Exact, Fixed, Floating
from attnkit_conformance.custom.lookup import arithmetic_of, label_of, reason_of
from attnkit_conformance.custom.stages import Stage

__all__ = [
    "Block",
    "CustomNumerics",
    "Exact",
    "Fixed",
    "Floating",
    "Stage",
    "Stages",
    "arithmetic_of",
    "assert_telling",
    "label_of",
    "reason_of",
]
