"""The faults that a suite for attention must catch, in words, and the backends here that have them."""

from __future__ import annotations

import pytest

from attnkit_conformance.selftest.mutants import BY_NAME, MUTANTS
from attnkit_conformance.selftest.running import CLASSES

NUMERIC = {
    "causal by one too many": "causal_loose",
    "causal by one too few": "causal_strict",
    "causal from the top left": "causal_topleft",
    "causal skips the block on the diagonal": "causal_skips_tiles_it_only_touches",
    "no scale": "scale_none",
    "scale 1/D": "scale_one_over_d",
    "scale from the value head size": "scale_from_value",
    "the sum of values is not rescaled": "rescale_output_missing",
    "the normaliser is not rescaled": "rescale_total_missing",
    "the maximum of the first tile is kept": "max_of_first_tile",
    "the maximum is not subtracted": "max_not_subtracted",
    "grouped heads by modulo": "gqa_modulo",
    "all heads read head 0": "gqa_head0",
    "values of the next head": "value_next_head",
    "window too wide by one": "window_wide",
    "window too narrow by one": "window_narrow",
    "window counted without the offset": "window_no_offset",
    "window ignored": "window_ignored",
    "last tile dropped": "tail_tile_dropped",
    "padding keys of zeros counted": "pad_keys_counted",
    "last features dropped": "head_dim_tail_dropped",
    "mask of sequence 0 for all": "dense_batch0",
    "mask of head 0 for all": "dense_head0",
    "mask inverted": "dense_inverted",
    "lengths ignored": "lengths_ignored",
    "lengths too large by one": "lengths_plus_one",
    "lengths too small by one": "lengths_minus_one",
    "length of sequence 0 for all": "lengths_batch0",
    "hidden is -1e4": "sentinel_1e4",
    "hidden is -20": "sentinel_20",
    "soft-cap before the scale": "softcap_before_scale",
    "no soft-cap": "softcap_ignored",
    "soft-cap clips": "softcap_clips",
    "soft-cap after the mask": "softcap_after_mask",
    "bias of head 0 for all": "bias_head0",
    "bias scaled": "bias_scaled",
    "bias ignored": "bias_ignored",
    "the key at a split dropped": "boundary_key_dropped",
    "the key at a split counted twice": "boundary_key_twice",
    "parts merged by their average": "merged_by_average",
    "parts merged with powers of two": "merged_by_log2",
    "a row without keys gives NaN": "empty_row_nan",
    "a row without keys gives the mean": "empty_row_mean",
    "the last row is skipped": "last_row_skipped",
    "sequence 0 for all": "batch0_broadcast",
    "the mean of the values": "scores_ignored",
    "no division by the normaliser": "division_missing",
    "blocks of small weight skipped": "small_tiles_skipped",
    "values summed in 16 bits, tile by tile": "output_summed_in_16_bits",
    "values summed in 16 bits, key by key": "output_summed_in_16_bits_key_by_key",
    "normaliser in 16 bits": "total_in_16_bits",
    "scores in 16 bits": "scores_in_16_bits",
    "parts in 16 bits": "parts_in_16_bits",
    "weights cut off": "flash_weights_truncated",
    "output cut off": "truncated_output",
    "exponential off by 2e-3": "exp_off_by_2e3",
    "exponential off by 6e-3": "exp_off_by_6e3",
    "unscaled products in float16": "half_scores_of_half_queries",
    "the query scaled in its own type": "query_scaled_in_its_type",
    "operands through bfloat16": "bfloat16_operands",
    "operands through TF32": "tf32_operands",
}
CACHES = {
    "C1 append overwrites the last slot": "append_overwrites_last",
    "C2 length updated before the copy fails": "counted_before_it_fails",
    "C3 a crop forgets nothing": "truncated_still_seen",
    "C4 crop off by one": "truncate_one_more",
    "C5 reorder reads rows that it has overwritten": "reorder_in_place",
    "C6 reorders keys but not values": "reorder_keys_only",
    "C7 duplicated beams share memory": "beams_shared",
    "C8 page table stale after growth": "page_table_stale_after_growth",
    "C9 page boundary off by one": "page_boundary_off_by_one",
    "C10 the last page is read as if it were full": "last_page_read_whole",
    "C11 a freed page is not cleared and lengths are ignored": "freed_pages_seen",
    "C12 queries stand at 0 and not after the cache": "queries_from_zero",
    "C13 positions restart after a crop": "positions_restart",
    "C14 eviction shifts positions": "eviction_shifts_positions",
    "C15 the scale of page 0 for all": "scales_of_the_first_page",
    "C16 the scale is computed after the append": "scale_after_every_append",
    "C17 layer ignored": "layer_ignored",
    "C18 attending changes the cache": "attend_writes",
    "C19 a fork shares the tail page": "fork_shares_the_tail",
    "C20 the longest length for all sequences": "longest_for_all",
    "C21 a reference to the caller's buffer is kept": "caller_buffer_kept",
    "C22 an overflow wraps": "capacity_wraps",
}
GRADIENTS = {
    "G1 delta omitted": "delta_omitted",
    "G2 gradient of the query not scaled": "query_gradient_not_scaled",
    "G3 not summed over the group": "group_not_summed",
    "G4 gradient of the last key dropped": "last_key_dropped",
    "G5 summed over the group in 16 bits": "group_summed_in_16_bits",
    "G6 derivative of the soft-cap missing": "softcap_slope_missing",
    "G7 gradient of the weights not masked": "hidden_keys_not_masked",
    "G8 gradient of the bias not reduced": "bias_gradient_not_reduced",
    "G9 weights without the log-sum-exp": "weights_without_lse",
}
LATER_GRADIENTS = {"G10"}  # dropout is refused
CALLS = {
    "E1 element types cast in silence": "mixed_types_cast",
    "E2 a wrong number of key/value heads broadcast": "heads_that_do_not_divide_cycled",
    "E3 an unknown option ignored": "undeclared_softcap_dropped",
    "E4 heads that do not divide accepted": "heads_that_do_not_divide_clipped",
    "E5 strides read as contiguous": "strides_ignored",
    "E6 a view of an internal buffer": "view_of_a_buffer",
    "E7 the query modified": "query_modified",
    "E8 no keys crash": "no_keys_crash",
    "E9 refused after the cache has advanced": "refused_after_it_was_counted",
    "E10 wrong element type of the output": "wrong_dtype",
}
LISTED = {**NUMERIC, **CACHES, **GRADIENTS, **CALLS}


@pytest.mark.parametrize("words", LISTED)
def test_the_fault_is_there(words: str) -> None:
    assert LISTED[words] in BY_NAME, f"no backend has the fault {words!r}"


def test_the_lists_are_whole() -> None:
    assert len(NUMERIC) == 61
    assert {words.split()[0] for words in CACHES} == {f"C{number}" for number in range(1, 23)}
    assert {words.split()[0] for words in GRADIENTS} | LATER_GRADIENTS == {f"G{number}" for number in range(1, 11)}
    assert {words.split()[0] for words in CALLS} == {f"E{number}" for number in range(1, 11)}
    assert len(set(LISTED.values())) == len(LISTED)


def test_names_of_faults_are_unique() -> None:
    assert len(BY_NAME) == len(MUTANTS)


def test_every_class_catches_something() -> None:
    assert {mutant.killer.partition("::")[0] for mutant in MUTANTS} == set(CLASSES)
