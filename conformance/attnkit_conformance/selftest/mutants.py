"""Every backend that is wrong on purpose, and which class of checks must catch it."""

from __future__ import annotations

from attnkit_conformance.selftest.batch_mutants import BATCH_MUTANTS
from attnkit_conformance.selftest.cache_mutants import CACHE_MUTANTS
from attnkit_conformance.selftest.call_mutants import CALL_MUTANTS
from attnkit_conformance.selftest.codec_mutants import CODEC_MUTANTS
from attnkit_conformance.selftest.combination_mutants import COMBINATION_MUTANTS
from attnkit_conformance.selftest.edge_mutants import EDGE_MUTANTS
from attnkit_conformance.selftest.faults import Mutant
from attnkit_conformance.selftest.front_mutants import FRONT_MUTANTS
from attnkit_conformance.selftest.gradient_mutants import GRADIENT_MUTANTS
from attnkit_conformance.selftest.mask_mutants import MASK_MUTANTS
from attnkit_conformance.selftest.page_mutants import PAGE_MUTANTS
from attnkit_conformance.selftest.precision_mutants import PRECISION_MUTANTS
from attnkit_conformance.selftest.prefix_mutants import PREFIX_MUTANTS
from attnkit_conformance.selftest.probe_mutants import PROBE_MUTANTS
from attnkit_conformance.selftest.quality_mutants import QUALITY_MUTANTS
from attnkit_conformance.selftest.refusal_mutants import REFUSAL_MUTANTS
from attnkit_conformance.selftest.ring_mutants import RING_MUTANTS
from attnkit_conformance.selftest.saving_mutants import SAVING_MUTANTS
from attnkit_conformance.selftest.score_mutants import SCORE_MUTANTS
from attnkit_conformance.selftest.stack_mutants import STACK_MUTANTS
from attnkit_conformance.selftest.step_mutants import STEP_MUTANTS

MUTANTS: tuple[Mutant, ...] = (
    *MASK_MUTANTS,
    *SCORE_MUTANTS,
    *PRECISION_MUTANTS,
    *QUALITY_MUTANTS,
    *COMBINATION_MUTANTS,
    *CALL_MUTANTS,
    *REFUSAL_MUTANTS,
    *FRONT_MUTANTS,
    *EDGE_MUTANTS,
    *PROBE_MUTANTS,
    *CACHE_MUTANTS,
    *STACK_MUTANTS,
    *BATCH_MUTANTS,
    *RING_MUTANTS,
    *PAGE_MUTANTS,
    *PREFIX_MUTANTS,
    *CODEC_MUTANTS,
    *SAVING_MUTANTS,
    *STEP_MUTANTS,
    *GRADIENT_MUTANTS,
)
BY_NAME: dict[str, Mutant] = {mutant.name: mutant for mutant in MUTANTS}
