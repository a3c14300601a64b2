"""What a device gives that computes as declared lies within the bounds, and what one with a fault gives does not."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import attnkit as ak
from attnkit_conformance.cases import Case
from attnkit_conformance.custom import CustomNumerics
from attnkit_conformance.vectors.catalogue import catalogue, filled

from .conftest import device
from .simulating import Device


def ratio(case, tau, output):
    """The largest error in units of the bound; nothing more than the bound is right, and NaN never."""
    error = np.abs(np.asarray(output, np.float64) - case.truth.output)
    with np.errstate(all="ignore"):
        return float(np.where(error == 0, 0, error / tau).max(initial=0))


def assert_near(lse, truth, tau):
    seen = np.isfinite(truth)
    assert (np.isfinite(lse) == seen).all()
    assert (np.abs(lse[seen] - truth[seen]) <= tau[seen]).all()


def judged(numerics, labels=None):
    for each in catalogue("core"):
        case = filled(each, numerics.dtype)
        if labels is None or case.label in labels:
            try:
                yield case, case.tolerance(numerics).output
            except ak.UnsupportedError:
                continue


def test_core_cases_lie_within(numerics) -> None:
    """And no bound is so wide that they stay far away from all of them."""
    found = [ratio(case, tau, Device(numerics)(case)) for case, tau in judged(numerics)]
    assert len(found) >= 45
    assert 0.15 < max(found) <= 1


def test_log_sum_exps_of_core_cases_lie_within(numerics) -> None:
    made = Device(numerics)
    for case, _ in judged(numerics):
        made(case)
        tau = case.tolerance(numerics).lse
        assert_near(made.lse, case.truth.lse, tau)
        assert (tau < 0.2).all()


@pytest.mark.parametrize("off", [1, -1])
def test_tables_that_are_off_as_far_as_declared_lie_within(off) -> None:
    numerics = device("tables")
    exp, reciprocal = numerics.stages.exp, numerics.stages.reciprocal
    wrong = Device(
        numerics,
        exponential=lambda x: np.exp(x) + off * exp.absolute,
        inverse=lambda total: (1 + off * reciprocal.relative) / total,
    )
    found = [ratio(case, tau, wrong(case)) for case, tau in judged(numerics)]
    assert 0.15 < max(found) <= 1


def test_long_equal_rows_lie_within() -> None:
    """Where every rounding is the same, errors add up; no walk is random."""
    numerics = device("fixed, truncated")
    case = Case(label="alike", queries=1, keys=600, head_dim=8, heads=1, kv_heads=1, draw="uniform")
    tau = case.tolerance(numerics).output
    assert 0.3 < ratio(case, tau, Device(numerics)(case)) <= 1


def test_what_a_soft_cap_is_taken_of_has_to_fit_too() -> None:
    numbers = [np.full((1, 1, count, 1), number, np.float32) for count, number in ((1, 9), (2, 9), (2, 1))]
    case = Case(label="c", batch=1, heads=1, kv_heads=1, queries=1, keys=2, head_dim=1, options={"softcap": 4.0})
    told = device("fixed").model_dump()
    told["stages"]["score"]["overflow"] = "wrap"
    case.tolerance(CustomNumerics.model_validate(told))
    with pytest.raises(ak.UnsupportedError, match=r"score must be in -64 \.\. 63.9998, got 81"):
        case.holding(numbers).tolerance(CustomNumerics.model_validate(told))


FAULTS = {
    "key by one": {"keys": lambda keys: keys[:-1] if len(keys) > 1 else keys},
    "scores without their scale": {"score": lambda score: 2 * score},
    "weights of fewer bits": {"weight": lambda weight: np.floor(weight * 2**6) / 2**6},
    "exponentials of fewer bits": {"exp": lambda number: np.floor(number * 2**6) / 2**6},
    "a reciprocal of fewer bits": {"reciprocal": lambda number: np.floor(number * 2**6) / 2**6},
    "inputs of fewer bits": {"input": lambda number: np.rint(number * 2**5) / 2**5},
    "outputs of fewer bits": {"output": lambda number: np.rint(number * 2**7) / 2**7},
    "an output that is a step off": {"output": lambda number: number + 2.0**-8},
    "an output at half its range": {"output": lambda number: np.clip(number, -1, 1)},
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("name", ["fixed", "fixed, truncated", "fixed, in tiles of 3", "fixed, divided before"])
def test_faults_go_beyond(name, fault) -> None:
    if fault == "weights of fewer bits" and "before" in name:
        pytest.skip("its weights are small already")
    numerics = device(name)
    wrong = Device(numerics, wrong=FAULTS[fault])
    assert max(ratio(case, tau, wrong(case)) for case, tau in judged(numerics)) > 1


@pytest.mark.parametrize(
    ("stage", "weaker"),
    [
        ("product", {"fraction": 6}),
        ("accumulator", {"fraction": 7}),
        ("score", {"fraction": 5}),
        ("exp", {"fraction": 7}),
        ("reciprocal", {"fraction": 7}),
        ("weight", {"fraction": 6}),
        ("output", {"fraction": 8}),
        ("input", {"fraction": 6}),
    ],
    ids=str,
)
def test_fewer_bits_than_declared_are_found(stage, weaker) -> None:
    numerics = device("fixed")
    told = numerics.model_dump()
    told["stages"][stage]["format"].update(weaker)
    less = CustomNumerics.model_validate(told)
    found = [ratio(case, tau, Device(less)(case)) for case, tau in judged(numerics)]
    assert max(found) > 1
    assert all(ratio(case, tau, Device(less)(case)) <= 1 for case, tau in itertools.islice(judged(less), 10))


# Any device

fractions = st.integers(6, 20)
roundings = st.sampled_from(["nearest", "truncate", "floor", "ceil", "stochastic"])
fixed_formats = st.fixed_dictionaries({"kind": st.just("fixed"), "integer": st.integers(5, 12), "fraction": fractions})
floats = st.fixed_dictionaries(
    {
        "kind": st.just("float"),
        "mantissa": st.integers(7, 23),
        "exponent": st.integers(5, 8),
        "subnormals": st.booleans(),
    }
)
blocks = st.fixed_dictionaries({"kind": st.just("block"), "mantissa": st.integers(7, 20), "block": st.integers(1, 9)})


def stages(formats):
    return st.fixed_dictionaries({"format": formats, "rounding": roundings})


@st.composite
def declarations(draw):
    tile = draw(st.none() | st.integers(1, 5))
    return CustomNumerics.model_validate(
        {
            "name": "drawn",
            "dtype": "float32",
            "stages": {
                **{name: draw(stages(fixed_formats | floats)) for name in ("product", "accumulator", "reciprocal")},
                **{name: draw(stages(fixed_formats | floats | blocks)) for name in ("input", "score", "output")},
                **{name: draw(stages(fixed_formats | floats | blocks)) for name in ("exp", "weight")},
            },
            "division": draw(st.sampled_from(["after", "before"])) if tile is None else "after",
            "keys_per_tile": tile,
        }
    )


@st.composite
def cases(draw):
    options = {}
    if draw(st.booleans()):
        options["mask"] = ak.Mask.causal()
    if draw(st.booleans()):
        options["sinks"] = np.array([0.5, -1.0], np.float32)
    if draw(st.booleans()):
        options["softcap"] = 3.0
    if draw(st.booleans()):
        options["alibi"] = np.array([0.25, 0.125], np.float32)
    return Case(
        label="drawn",
        queries=draw(st.integers(1, 4)),
        keys=draw(st.integers(1, 11)),
        head_dim=draw(st.integers(1, 8)),
        kv_heads=1,
        heads=2,
        draw=draw(st.sampled_from(["normal", "uniform", "peaked", "cancelling"])),
        seed=draw(st.integers(0, 99)),
        options=options,
    )


@settings(max_examples=250, deadline=None, database=None)
@given(declarations(), cases(), st.integers(0, 5))
def test_any_device_lies_within_what_it_declares(numerics, case, seed) -> None:
    try:
        tau = case.tolerance(numerics)
    except ak.UnsupportedError:
        return
    made = Device(numerics, seed=seed)
    assert ratio(case, tau.output, made(case)) <= 1
    assert_near(made.lse, case.truth.lse, tau.lse)
