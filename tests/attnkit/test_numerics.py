"""The numerics profiles: their constants, the growth of sums, and the lookup."""

from __future__ import annotations

import dataclasses

import ml_dtypes
import numpy as np
import pytest

from attnkit.errors import DTypeError
from attnkit.numerics import FA_BF16, FLOAT64, PROFILES, STRICT_FP32, Numerics, Sums, numerics_for

TABLE = [
    # name, output, u_o, u_p, u_a
    ("float64", "float64", -53, -53, -53),
    ("strict-fp32", "float32", -24, -24, -24),
    ("fp32P-16", "float16", -11, -24, -24),
    ("fp32P-16", "bfloat16", -8, -24, -24),
    ("fa-16", "float16", -11, -11, -24),
    ("fa-16", "bfloat16", -8, -8, -24),
]


@pytest.mark.parametrize(("name", "dtype", "u_o", "u_p", "u_a"), TABLE)
def test_constants(name: str, dtype: str, u_o: int, u_p: int, u_a: int) -> None:
    numerics = numerics_for(name, dtype)
    assert (numerics.name, numerics.dtype) == (name, dtype)
    assert (numerics.u_o, numerics.u_p, numerics.u_a) == (2.0**u_o, 2.0**u_p, 2.0**u_a)
    assert (numerics.u_s, numerics.u_q) == (numerics.u_a, 0)


def test_profiles_are_exactly_the_table() -> None:
    assert [(profile.name, profile.dtype) for profile in PROFILES] == [row[:2] for row in TABLE]


@pytest.mark.parametrize("numerics", PROFILES, ids=lambda numerics: f"{numerics.name}-{numerics.dtype}")
def test_unit_roundoff_is_half_an_epsilon(numerics) -> None:
    assert numerics.u_o == float(ml_dtypes.finfo(numerics.dtype).eps) / 2


@pytest.mark.parametrize("numerics", PROFILES, ids=lambda numerics: f"{numerics.name}-{numerics.dtype}")
def test_underflow_lies_between_half_the_smallest_subnormal_and_the_smallest_normal(numerics) -> None:
    finfo = ml_dtypes.finfo(numerics.dtype)
    assert float(finfo.smallest_subnormal) / 2 <= numerics.w_o <= float(finfo.tiny)
    assert 0 < numerics.w_p <= 2.0**-25


@pytest.mark.parametrize(("terms", "growth"), [(0, 0), (1, 1), (7, 7), (16, 16), (64, 32), (10_000, 400)])
def test_growth_is_a_random_walk_that_never_passes_the_worst_case(terms: int, growth: float) -> None:
    assert STRICT_FP32.growth(terms) == growth
    assert STRICT_FP32.with_sums("sequential").growth(terms) == terms
    assert STRICT_FP32.with_sums("truncating").growth(terms) == 2 * terms
    assert dataclasses.replace(STRICT_FP32, lam=1.0).growth(terms) == min(terms**0.5, terms)


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [
        (np.float32, STRICT_FP32),
        (np.dtype("float32"), STRICT_FP32),
        ("float32", STRICT_FP32),
    ],
)
def test_lookup_takes_types_and_names(dtype, expected) -> None:
    assert numerics_for("strict-fp32", dtype) is expected


def test_lookup_takes_bfloat16() -> None:
    assert numerics_for("fa-16", ml_dtypes.bfloat16) is FA_BF16
    assert numerics_for("fa-16", np.dtype(ml_dtypes.bfloat16)) is FA_BF16
    assert numerics_for("fa-16", "bfloat16") is FA_BF16


@pytest.mark.parametrize("profile", PROFILES, ids=lambda numerics: f"{numerics.name}-{numerics.dtype}")
@pytest.mark.parametrize("sums", ["sequential", "truncating"])
def test_twins_of_every_profile(profile: Numerics, sums: Sums) -> None:
    twin = numerics_for(f"{profile.name}+{sums}", profile.dtype)
    assert twin == profile.with_sums(sums)
    assert twin.with_sums("independent") == profile
    assert (twin.name, twin.sums) == (f"{profile.name}+{sums}", sums)
    assert dataclasses.replace(twin, name=profile.name, sums="independent") == profile


def test_random_numbers_are_held_to_one_standard_deviation() -> None:
    for sums in ("independent", "sequential"):
        at_random = STRICT_FP32.with_sums(sums).at_random()
        assert (at_random.sums, at_random.lam, at_random.growth(10_000)) == ("independent", 1.0, 100)


def test_what_is_cut_off_drifts_in_random_numbers_too() -> None:
    truncating = STRICT_FP32.with_sums("truncating")
    assert truncating.at_random().growth(10_000) == truncating.growth(10_000) == 20_000


def test_a_twin_of_a_twin_is_no_third_thing() -> None:
    twin = FLOAT64.with_sums("sequential")
    assert twin.with_sums("truncating") == FLOAT64.with_sums("truncating")
    assert twin.with_sums("sequential") is twin


@pytest.mark.parametrize(
    "name",
    [
        "fa16",
        "",
        "strict-fp32+",
        "strict-fp32+parallel",
        "strict-fp32+independent",
        "+sequential",
        "fa-16+sequential+truncating",
    ],
)
def test_unknown_name(name: str) -> None:
    with pytest.raises(ValueError, match="numerics must be one of fa-16, float64, fp32P-16, strict-fp32"):
        numerics_for(name, np.float32)


def test_unknown_type_of_a_known_profile() -> None:
    with pytest.raises(DTypeError, match="'fa-16' is for outputs of type float16 or bfloat16, got float32"):
        numerics_for("fa-16", np.float32)


def test_profiles_are_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        STRICT_FP32.u_a = 0.0  # type: ignore[misc]
