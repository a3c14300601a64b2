"""Faults that are none: changes that no input can tell from a correct backend, each with the proof.

Either the change computes the same bits, or its error is one that the declared numerics grant to some other step, which
the changed backend does not take. A change that only the inputs of this suite do not show has no place here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from attnkit_conformance.selftest.faults import Mutant, fault
from attnkit_conformance.selftest.plain import EVERYTHING, Array, Flash, Plain
from attnkit_conformance.selftest.precision_mutants import BFLOAT16, brain, tf32
from attnkit_conformance.selftest.softmax import Split

HALVES = replace(EVERYTHING, dtypes=frozenset({"float16", "bfloat16"}))


@dataclass(frozen=True, slots=True)
class Equivalent:
    """A change that is no fault.

    Attributes
    ----------
    mutant
        The changed backend; its killer is the class that a fault of this kind would be caught by.
    proof
        Why nobody can catch it.
    """

    mutant: Mutant
    proof: str


class RoundedParts(Split, Plain):
    """Rounds the parts of bfloat16 calls, not the weights, and declares the numerics of one that rounds weights."""

    declared = replace(Flash.declared, dtypes=frozenset({"bfloat16"}))

    def store_part(self, output: Array) -> Array:
        """Round a part to bfloat16."""
        return brain(output)


def operands(change: Any) -> Any:
    """Change what is multiplied."""
    return lambda _, query, key, value: (change(query), change(key), change(value))


def to_bfloat16_and_back(array: Array) -> Array:
    """Round what is bfloat16 to bfloat16."""
    return array.astype(BFLOAT16) if array.dtype == BFLOAT16 else array


def tf32_of_16_bits(array: Array) -> Array:
    """Round to TF32 what comes in 16 bits."""
    return tf32(array.astype("float32")).astype(array.dtype) if array.dtype.itemsize == 2 else array


EQUIVALENTS = (
    Equivalent(
        fault("causal_as_less_than", "TestAttendance", causal=lambda _, p, j: j < p + 1),
        "Positions are integers, for which j < p + 1 and j <= p are the same.",
    ),
    Equivalent(
        fault("tf32_operands_of_16_bits", "TestNumerics", declared=HALVES, read=operands(tf32_of_16_bits)),
        "TF32 has 8 bits of exponent and stores 10 of the significand; float16 stores 10 and its exponents, those of "
        "subnormal numbers too, lie between those of TF32, and bfloat16 stores 7 with the same exponent. So every "
        "number of 16 bits is a number of TF32, and rounding to it changes none.",
    ),
    Equivalent(
        fault("bfloat16_operands_of_bfloat16", "TestNumerics", read=operands(to_bfloat16_and_back)),
        "The operands are numbers of bfloat16, and rounding to nearest leaves the numbers of a format as they are.",
    ),
    Equivalent(
        fault("rounded_parts_for_rounded_weights", "TestNumerics", RoundedParts),
        "The parts o_r of the output, whose shares w_r add up to 1, are rounded to 16 bits each: an error of at most "
        "u sum_r w_r |o_r| <= u sum_j p_j |v_j| = u A. The declared numerics grant u_p A with u_p = u to the rounding "
        "of the weights, and this backend does not round them.",
    ),
)
