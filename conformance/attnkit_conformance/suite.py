"""The whole suite. A third party's test file is one line: ``from attnkit_conformance.suite import *``."""

from attnkit_conformance.checks.cache_equivalence import TestCacheEquivalence
from attnkit_conformance.checks.cache_safety import TestFailedCalls, TestForgetting, TestOwnership, TestReorder
from attnkit_conformance.checks.causality import TestCausality, TestHiddenKeys, TestPadding
from attnkit_conformance.checks.edges import TestArguments, TestDeterminism, TestEmpty
from attnkit_conformance.checks.gradient_calls import TestGradientCalls
from attnkit_conformance.checks.gradient_probes import TestGradientIsolation, TestGradientProbes
from attnkit_conformance.checks.gradients import TestGradients
from attnkit_conformance.checks.merging import TestMerge
from attnkit_conformance.checks.numerics import TestNumerics, TestOptions
from attnkit_conformance.checks.probes import TestAttendance, TestGroupedHeads, TestOneHot, TestShift
from attnkit_conformance.checks.refusals import TestApplied, TestRefused

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
