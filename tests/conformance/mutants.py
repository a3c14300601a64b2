"""Every backend that is wrong on purpose, and which class of checks must catch it."""

from __future__ import annotations

from cache_mutants import CACHE_MUTANTS
from call_mutants import CALL_MUTANTS
from gradient_mutants import GRADIENT_MUTANTS
from mask_mutants import MASK_MUTANTS
from score_mutants import SCORE_MUTANTS

MUTANTS = [*MASK_MUTANTS, *SCORE_MUTANTS, *CALL_MUTANTS, *CACHE_MUTANTS, *GRADIENT_MUTANTS]
