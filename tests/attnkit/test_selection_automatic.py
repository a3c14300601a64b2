"""Selection: automatic choice, and the cache behind it (S1)."""

from __future__ import annotations

import numpy as np
import pytest

import attnkit as ak
from attnkit.selection import claim_rank, select

NUMPY = (("numpy.ndarray", "cpu"),)


@pytest.fixture
def x():
    return np.ones((1, 2, 3, 4), np.float32)


@pytest.fixture
def toy(kit):
    return np.ones((2, 4), np.float32).view(kit.Toy)


@pytest.mark.parametrize(
    ("specs", "winner"),
    [
        ({"exact": ("Toy", "cpu", 0), "base": ("numpy.ndarray", "cpu", 5)}, "exact"),
        ({"exact": ("Toy", "*", 0), "base": ("numpy.ndarray", "cpu", 5)}, "exact"),
        ({"named": ("Toy", "cpu", 0), "any": ("Toy", "*", 5)}, "named"),
        ({"low": ("Toy", "cpu", -1), "high": ("Toy", "cpu", 0)}, "high"),
        ({"low": ("Toy", "cpu", 1), "high": ("Toy", "cpu", 2), "top": ("Toy", "cpu", 3)}, "top"),
        ({"other": ("torch.Tensor", "cpu", 9), "base": ("numpy.ndarray", "cpu", 0)}, "base"),
        ({"gpu": ("Toy", "cuda", 9), "base": ("numpy.ndarray", "*", 0)}, "base"),
        ({"shy": ("Toy", "cpu", None), "base": ("numpy.ndarray", "cpu", 0)}, "base"),
    ],
)
def test_specific_claims_go_first_then_priority(nobody, kit, toy, specs, winner) -> None:
    for name, (array_type, device, priority) in specs.items():
        claim = (kit.toy_name if array_type == "Toy" else array_type, device)
        members = {"automatic": False} if priority is None else {"priority": priority}
        ak.register(kit.spec(name, owns=(claim,), **members))
    with ak.trace() as calls:
        ak.attention(toy, toy, toy)
    assert [call.backend for call in calls] == [winner]


def test_the_best_of_several_claims_of_one_backend_counts(nobody, kit, toy) -> None:
    ak.register(kit.spec("both", owns=(("numpy.ndarray", "*"), (kit.toy_name, "cpu"))))
    ak.register(kit.spec("base", owns=((kit.toy_name, "*"),), priority=9))
    assert ak.explain(toy, toy, toy).backend == "both"


def test_the_first_without_reasons_against_it_is_taken(nobody, kit, toy) -> None:
    half = {"capabilities": lambda _self: ak.Capabilities(dtypes=frozenset({"float16"}))}
    ak.register(kit.spec("best", owns=((kit.toy_name, "cpu"),), **half))
    ak.register(kit.spec("gone", owns=((kit.toy_name, "cpu"),), available=lambda: "no"))
    ak.register(kit.spec("next", owns=NUMPY))
    assert ak.explain(toy, toy, toy).backend == "next"
    thin = toy.astype(np.float16)
    assert ak.explain(thin, thin, thin).backend == "best"


def test_a_tie_names_both_and_what_to_do(nobody, kit, x) -> None:
    ak.register(kit.spec("left", owns=NUMPY, priority=3))
    ak.register(kit.spec("right", owns=NUMPY, priority=3))
    with pytest.raises(ak.PluginError, match=r"tied: backends 'left' and 'right' .*priority 3.*use_backend\(\)"):
        ak.attention(x, x, x)
    assert ak.attention(x, x, x, backend="left").shape == x.shape


def test_a_tie_of_those_that_lose_is_none(nobody, kit, x) -> None:
    for name, priority in (("left", 0), ("right", 0), ("winner", 1)):
        ak.register(kit.spec(name, owns=NUMPY, priority=priority))
    assert ak.explain(x, x, x).backend == "winner"


def test_a_tie_with_one_that_does_not_take_the_call_is_none(nobody, kit, x) -> None:
    half = {"capabilities": lambda _self: ak.Capabilities(dtypes=frozenset({"float16"}))}
    ak.register(kit.spec("left", owns=NUMPY, **half))
    ak.register(kit.spec("right", owns=NUMPY))
    assert ak.explain(x, x, x).backend == "right"


def test_none_takes_the_call_and_each_says_why(nobody, kit, x, monkeypatch) -> None:
    meagre = {"capabilities": lambda _self: ak.Capabilities(dtypes=frozenset({"float64"}))}
    ak.register(kit.spec("meagre", owns=NUMPY, **meagre))
    ak.register(kit.spec("shy", owns=NUMPY, automatic=False))
    ak.register(kit.spec("other", owns=(("torch.Tensor", "*"),)))
    ak.register(kit.spec("gone", owns=NUMPY, available=lambda: "no device", install_hint="pip install gone"))
    ak.register(kit.spec("away", owns=(("torch.Tensor", "*"),), available=lambda: "no torch"))
    monkeypatch.setattr(nobody, "_broken", [ak.BackendInfo("bad", "somewhere", False, "ImportError: no")])
    with pytest.raises(ak.UnsupportedError) as caught:
        ak.attention(x, x, x, mask=ak.Mask.window(2), softcap=3.0)
    found = {name: [reason.code for reason in why] for name, why in caught.value.reasons.items()}
    assert found == {
        "meagre": ["dtypes", "window", "softcap"],
        "shy": ["not_automatic"],
        "other": ["not_owner"],
        "gone": ["unavailable"],
        "away": ["not_owner", "unavailable"],
        "bad": ["unavailable"],
    }
    for words in ("meagre: softcap must be absent, got given", "no device", "pip install gone", "ImportError: no"):
        assert words in str(caught.value)
    assert isinstance(caught.value, NotImplementedError)


def test_without_any_backend_there_is_still_an_answer(nobody, x) -> None:
    with pytest.raises(ak.UnsupportedError, match="no backend takes this call"):
        ak.attention(x, x, x)


def test_a_backend_that_fails_at_the_question_hides_no_other(nobody, kit, x) -> None:
    ak.register(kit.spec("faulty", owns=NUMPY, priority=9, unsupported=lambda _self, _request, _path=None: 1 / 0))
    ak.register(kit.spec("good", owns=NUMPY))
    explanation = ak.explain(x, x, x)
    assert explanation.backend == "good"
    assert explanation.rejected["faulty"][0].code == "broken"
    with pytest.raises(ak.UnsupportedError, match="ZeroDivisionError"):
        ak.attention(x, x, x, backend="faulty")


def test_a_backend_that_takes_a_call_on_none_of_its_paths_is_at_fault(nobody, kit, x) -> None:
    def unsupported(self, request, path=None):
        return [ak.Reason("mood", "path", "in the mood", path)] if path else []

    ak.register(kit.spec("moody", unsupported=unsupported, paths=("one", "two")))
    with pytest.raises(ak.PluginError, match=r"'moody' takes the request, but none of its paths \('one', 'two'\)"):
        ak.attention(x, x, x, backend="moody")


def test_paths_that_refuse_are_passed_over(nobody, kit, x) -> None:
    def unsupported(self, request, path=None):
        slow = path == "fast" and request.query_length > 1
        return [ak.Reason("rows", "query_length", "1", str(request.query_length))] if slow else []

    ak.register(kit.spec("pathy", owns=NUMPY, unsupported=unsupported, paths=("fast", "whole")))
    with ak.trace() as calls:
        ak.attention(x, x, x)
        ak.attention(x[:, :, :1], x, x)
    assert [call.path for call in calls] == ["whole", "fast"]
    with pytest.raises(ak.UnsupportedError, match="'pathy:fast' does not take this call") as caught:
        ak.attention(x, x, x, backend="pathy:fast")
    assert list(caught.value.reasons) == ["pathy:fast"]


def test_preference_decides_among_the_paths(nobody, kit, x) -> None:
    ak.register(kit.spec("b", paths=("one", "two"), preference=lambda _self, _request: ("two", "one")))
    assert ak.explain(x, x, x, backend="b").path == "two"


@pytest.mark.parametrize(
    ("owns", "rank"),
    [
        ([("lib.Derived", "cuda")], (0, 0)),
        ([("lib.Derived", "*")], (0, 1)),
        ([("lib.Base", "cuda")], (1, 0)),
        ([("lib.Base", "*"), ("lib.Derived", "*")], (0, 1)),
        ([("lib.Derived", "cpu")], None),
        ([("lib.Other", "*")], None),
        ([], None),
    ],
)
def test_the_rank_of_a_claim(owns, rank) -> None:
    request = ak.AttentionRequest(("lib.Derived", "lib.Base"), "cuda:1", "float32", "float32", 1, 1, 1, 1, 1, 8, 8)
    assert claim_rank(owns, request) == rank


# The cache behind it


def test_a_choice_is_remembered(nobody, kit, x) -> None:
    asked = []

    def unsupported(self, request, path=None):
        asked.append(path)
        return []

    ak.register(kit.spec("one", owns=NUMPY, unsupported=unsupported))
    ak.attention(x, x, x)
    before = len(asked)
    for _ in range(3):
        ak.attention(x, x, x)
    assert before > 0
    assert len(asked) == before


def test_a_growing_key_length_keeps_its_plan(nobody, kit) -> None:
    plans = []

    def plan(self, request, path):
        plans.append(request.key_length)
        return kit.Plain.plan(self, request, path)

    ak.register(kit.spec("one", owns=NUMPY, plan=plan))
    for keys in range(1, 65):
        query, key = np.ones((1, 1, 1, 4), np.float32), np.ones((1, 1, keys, 4), np.float32)
        ak.attention(query, key, key)
    assert plans == [1, 2, 4, 8, 16, 32, 64]


def test_a_newcomer_is_eligible_at_once_and_gone_when_it_leaves(nobody, kit, x) -> None:
    ak.register(kit.spec("old", owns=NUMPY))
    assert ak.explain(x, x, x).backend == "old"
    ak.register(kit.spec("new", owns=NUMPY, priority=1))
    assert ak.explain(x, x, x).backend == "new"
    nobody.unregister("new")
    assert ak.explain(x, x, x).backend == "old"
    nobody.unregister("old")
    with pytest.raises(ak.UnsupportedError, match="no backend takes this call"):
        ak.attention(x, x, x)


def test_a_replaced_backend_is_not_run_from_memory(nobody, kit, x) -> None:
    ak.register(kit.spec("one", attention=kit.constant(1)))
    assert (ak.attention(x, x, x, backend="one") == 1).all()
    nobody.unregister("one")
    ak.register(kit.spec("one", attention=kit.constant(2)))
    assert (ak.attention(x, x, x, backend="one") == 2).all()


def test_errors_are_not_remembered(nobody, kit, x) -> None:
    state = ["not yet"]
    ak.register(kit.spec("late", owns=NUMPY, available=lambda: state[0]))
    with pytest.raises(ak.UnsupportedError):
        ak.attention(x, x, x)
    state[0] = None
    assert ak.attention(x, x, x).shape == x.shape


def test_a_selection_has_a_name(three, x) -> None:
    request = ak.explain(x, x, x).request
    assert select(request, "b:exact").name == "b:exact"
