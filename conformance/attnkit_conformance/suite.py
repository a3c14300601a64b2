"""The whole suite. A third party's test file is one line: ``from attnkit_conformance.suite import *``."""

from attnkit_conformance.checks.agreement import TestAgreement
from attnkit_conformance.checks.broadcasting import TestBroadcasting
from attnkit_conformance.checks.cache_batches import TestBatch
from attnkit_conformance.checks.cache_codecs import TestCodecs
from attnkit_conformance.checks.cache_edges import TestCacheEdges
from attnkit_conformance.checks.cache_equivalence import TestCacheEquivalence
from attnkit_conformance.checks.cache_forks import TestForks
from attnkit_conformance.checks.cache_machine import TestCacheMachine
from attnkit_conformance.checks.cache_memory import TestCacheBytes
from attnkit_conformance.checks.cache_pages import TestPages
from attnkit_conformance.checks.cache_prefixes import TestPrefixes
from attnkit_conformance.checks.cache_rings import TestRing
from attnkit_conformance.checks.cache_safety import TestFailedCalls, TestForgetting, TestOwnership, TestReorder
from attnkit_conformance.checks.cache_saving import TestOffloading, TestSaving
from attnkit_conformance.checks.cache_snapshots import TestSnapshots
from attnkit_conformance.checks.cache_steps import TestSteps
from attnkit_conformance.checks.causality import TestCausality, TestHiddenKeys, TestPadding
from attnkit_conformance.checks.combinations import TestCombinations
from attnkit_conformance.checks.core import TestCore
from attnkit_conformance.checks.edges import TestArguments, TestDeterminism, TestEmpty
from attnkit_conformance.checks.errors import TestErrors
from attnkit_conformance.checks.extremes import TestExtremes
from attnkit_conformance.checks.gradient_calls import TestGradientCalls
from attnkit_conformance.checks.gradient_probes import TestGradientIsolation, TestGradientProbes
from attnkit_conformance.checks.gradients import TestGradients
from attnkit_conformance.checks.harness_checks import TestHarness, TestMinimum
from attnkit_conformance.checks.laws import TestAverages, TestLaws
from attnkit_conformance.checks.merge_laws import TestMergeLaws
from attnkit_conformance.checks.merging import TestMerge
from attnkit_conformance.checks.numerics import TestNumerics, TestOptions
from attnkit_conformance.checks.ownership import TestMemory
from attnkit_conformance.checks.packed import TestPacked
from attnkit_conformance.checks.probes import TestAttendance, TestGroupedHeads, TestOneHot, TestShift
from attnkit_conformance.checks.quality import TestQuality
from attnkit_conformance.checks.refusals import TestApplied, TestRefused
from attnkit_conformance.checks.search import TestSearch
from attnkit_conformance.checks.sequences import TestSequences

__all__ = [
    "TestAgreement",
    "TestApplied",
    "TestArguments",
    "TestAttendance",
    "TestAverages",
    "TestBatch",
    "TestBroadcasting",
    "TestCacheBytes",
    "TestCacheEdges",
    "TestCacheEquivalence",
    "TestCacheMachine",
    "TestCausality",
    "TestCodecs",
    "TestCombinations",
    "TestCore",
    "TestDeterminism",
    "TestEmpty",
    "TestErrors",
    "TestExtremes",
    "TestFailedCalls",
    "TestForgetting",
    "TestForks",
    "TestGradientCalls",
    "TestGradientIsolation",
    "TestGradientProbes",
    "TestGradients",
    "TestGroupedHeads",
    "TestHarness",
    "TestHiddenKeys",
    "TestLaws",
    "TestMemory",
    "TestMerge",
    "TestMergeLaws",
    "TestMinimum",
    "TestNumerics",
    "TestOffloading",
    "TestOneHot",
    "TestOptions",
    "TestOwnership",
    "TestPacked",
    "TestPadding",
    "TestPages",
    "TestPrefixes",
    "TestQuality",
    "TestRefused",
    "TestReorder",
    "TestRing",
    "TestSaving",
    "TestSearch",
    "TestSequences",
    "TestShift",
    "TestSnapshots",
    "TestSteps",
]
