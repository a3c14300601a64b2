"""The whole suite. A third party's test file is one line: ``from attnkit_conformance.suite import *``."""

from attnkit_conformance.cache_equivalence import TestCacheEquivalence
from attnkit_conformance.cache_safety import TestFailedCalls, TestForgetting, TestOwnership, TestReorder
from attnkit_conformance.causality import TestCausality, TestHiddenKeys, TestPadding
from attnkit_conformance.edges import TestArguments, TestDeterminism, TestEmpty
from attnkit_conformance.gradient_calls import TestGradientCalls
from attnkit_conformance.gradient_probes import TestGradientIsolation, TestGradientProbes
from attnkit_conformance.gradients import TestGradients
from attnkit_conformance.merging import TestMerge
from attnkit_conformance.numerics_checks import TestNumerics, TestOptions
from attnkit_conformance.probes import TestAttendance, TestGroupedHeads, TestOneHot, TestShift
from attnkit_conformance.refusals import TestApplied, TestRefused

__all__ = [
    "TestApplied",
    "TestArguments",
    "TestAttendance",
    "TestCacheEquivalence",
    "TestCausality",
    "TestDeterminism",
    "TestEmpty",
    "TestFailedCalls",
    "TestForgetting",
    "TestGradientCalls",
    "TestGradientIsolation",
    "TestGradientProbes",
    "TestGradients",
    "TestGroupedHeads",
    "TestHiddenKeys",
    "TestMerge",
    "TestNumerics",
    "TestOneHot",
    "TestOptions",
    "TestOwnership",
    "TestPadding",
    "TestRefused",
    "TestReorder",
    "TestShift",
]
