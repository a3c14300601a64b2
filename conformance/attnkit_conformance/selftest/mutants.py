"""Every backend that is wrong on purpose, and which class of checks must catch it."""

from __future__ import annotations

from attnkit_conformance.selftest.cache_mutants import CACHE_MUTANTS
from attnkit_conformance.selftest.call_mutants import CALL_MUTANTS
from attnkit_conformance.selftest.gradient_mutants import GRADIENT_MUTANTS
from attnkit_conformance.selftest.mask_mutants import MASK_MUTANTS
from attnkit_conformance.selftest.score_mutants import SCORE_MUTANTS

MUTANTS = [*MASK_MUTANTS, *SCORE_MUTANTS, *CALL_MUTANTS, *CACHE_MUTANTS, *GRADIENT_MUTANTS]
