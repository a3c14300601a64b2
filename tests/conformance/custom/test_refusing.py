"""Where numerics of one's own have no bound that tells anything, the call is not judged, and the stage is named."""

import numpy as np
import pytest

import attnkit as ak
from attnkit_conformance.cases import Case
from attnkit_conformance.crosscheck import crosscheck
from attnkit_conformance.crosscheck.sides import Live
from attnkit_conformance.custom import CustomNumerics
from attnkit_conformance.vectors import export

from .conftest import FIXED, fixed, floating

CASE = Case(label="c", queries=4, keys=24, head_dim=8)


def with_stage(name, stage, **more) -> CustomNumerics:
    return CustomNumerics.model_validate({"name": "d", "dtype": "float32", "stages": {**FIXED, name: stage}, **more})


@pytest.mark.parametrize(
    ("name", "stage"),
    [
        ("input", fixed(4, 2)),
        ("product", fixed(10, 3)),
        ("score", fixed(6, 2)),
        ("exp", fixed(1, 5, signed=False)),
        ("weight", fixed(1, 4, signed=False)),
        ("accumulator", fixed(12, 4)),
        ("reciprocal", fixed(1, 3, signed=False)),
        ("output", fixed(4, 1)),
        ("exp", {**FIXED["exp"], "absolute": 0.05}),
        ("reciprocal", {**FIXED["reciprocal"], "relative": 0.2}),
        ("score", floating(3)),
    ],
    ids=str,
)
def test_a_vacuous_bound_names_its_stage(name, stage) -> None:
    message = rf"tau must be at most 5 % of max\|value\|, got .* mostly of the stage '{name}' \(vacuous"
    with pytest.raises(ak.UnsupportedError, match=message):
        CASE.tolerance(with_stage(name, stage))


@pytest.mark.parametrize(
    ("name", "stage"),
    [
        ("input", fixed(0, 12, overflow="wrap")),
        ("product", fixed(1, 20, overflow="wrap")),
        ("product", fixed(2, 20)),
        ("score", fixed(0, 12, overflow="wrap")),
        ("exp", fixed(0, 16, signed=False, overflow="wrap")),
        ("weight", fixed(0, 14, overflow="wrap")),
        ("accumulator", fixed(0, 20, overflow="wrap")),
        ("accumulator", fixed(1, 20)),
        ("output", fixed(-3, 12, overflow="wrap")),
    ],
    ids=str,
)
def test_what_leaves_a_format_names_its_stage(name, stage) -> None:
    with pytest.raises(ak.UnsupportedError, match=rf"{name} must be in .* \(scale the inputs, or widen the format\)"):
        CASE.tolerance(with_stage(name, stage))


def test_sums_that_wrap_may_leave_the_format_on_their_way() -> None:
    """Where the addends of each sum are large and cancel, only what stays at the end of the range is refused."""
    query, key = np.full((1, 1, 1, 8), 3.0), np.full((1, 1, 2, 8), 3.0)
    key[..., 1::2] = -3
    case = Case(label="c", batch=1, heads=1, kv_heads=1, queries=1, keys=2, head_dim=8)
    case = case.holding(array.astype(np.float32) for array in (query, key, np.ones((1, 1, 2, 8))))
    case.tolerance(with_stage("product", fixed(4, 20, overflow="wrap")))
    with pytest.raises(ak.UnsupportedError, match="product"):
        case.tolerance(with_stage("product", fixed(4, 20)))


def test_a_clipped_output_is_right_where_the_format_ends() -> None:
    case = Case(label="c", batch=1, heads=1, kv_heads=1, queries=1, keys=1, head_dim=2)
    case = case.holding(np.full((1, 1, 1, 2), number, np.float32) for number in (0, 0, 4.125))
    tau = case.tolerance(with_stage("output", fixed(2, 12))).output
    assert (tau >= 0.125).all()
    assert (tau < 0.13).all()


def test_rows_without_keys_stay_exactly_zero() -> None:
    case = Case(label="c", queries=6, keys=3, options={"mask": ak.Mask.causal()})
    tau = case.tolerance(CustomNumerics.model_validate({"name": "d", "dtype": "float32", "stages": FIXED})).output
    assert (tau[:, :, :3] < 1e-37).all()
    assert (tau[:, :, 3:] > 1e-5).all()


def test_a_crosscheck_says_what_it_cannot_judge() -> None:
    own = with_stage("output", fixed(4, 1)).declared
    found = crosscheck(Live("numpy", numerics=own), "numpy", [CASE])
    assert not found.findings
    assert found.compared == 0
    assert [told for told in found.skipped if told.startswith("A cannot be judged: tau must be")]


def test_vectors_leave_out_what_they_cannot_judge(tmp_path) -> None:
    own = with_stage("product", fixed(10, 20))
    left_out = export(tmp_path / "v", numerics=own, only=("causal", "huge"))
    assert list(left_out) == ["huge"]
    assert left_out["huge"].startswith("product must be in -1024 .. 1024")
    assert not (tmp_path / "v" / "huge-float32").exists()
    assert (tmp_path / "v" / "causal-float32").is_dir()
    with pytest.raises(ValueError, match="no case can be judged by these numerics: product must be in"):
        export(tmp_path / "w", numerics=own, only=("huge",))
    assert not (tmp_path / "w").exists()
    with pytest.raises(ak.DTypeError, match="for arrays of float32, got float16"):
        export(tmp_path / "x", numerics=own, dtypes=("float16",))
