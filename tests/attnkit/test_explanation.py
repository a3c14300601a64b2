"""Explanations: what would run, and a reason for every other backend and path (S2)."""

from __future__ import annotations

import json

import numpy as np
import pytest

import attnkit as ak

NUMPY = (("numpy.ndarray", "cpu"),)


def one_row(self, request, path=None):
    """``Plain`` takes everything; its path ``decode`` takes one query row only."""
    if path == "decode" and request.query_length > 1:
        return [ak.Reason("rows", "query_length", "1", str(request.query_length), "take another path")]
    return self.capabilities().unsupported(request)


@pytest.fixture
def house(nobody, kit):
    """One backend of every sort."""
    meagre = ak.Capabilities(dtypes=frozenset({"float64"}))
    ak.register(kit.spec("main", owns=NUMPY, priority=1, paths=("decode", "dense"), unsupported=one_row))
    ak.register(kit.spec("second", owns=NUMPY))
    ak.register(kit.spec("meagre", owns=NUMPY, capabilities=lambda _self: meagre))
    ak.register(kit.spec("shy", owns=NUMPY, automatic=False))
    ak.register(kit.spec("other", owns=(("torch.Tensor", "*"),)))
    ak.register(kit.spec("gone", owns=NUMPY, available=lambda: "no device", install_hint="pip install gone"))
    ak.register(kit.spec("old", owns=NUMPY, contract_version="0.1"))
    nobody._broken.append(ak.BackendInfo("bad", "somewhere", False, "ImportError: no"))
    return nobody


@pytest.fixture
def x():
    return np.ones((1, 2, 3, 4), np.float32)


def codes(explanation):
    return {name: [reason.code for reason in reasons] for name, reasons in explanation.rejected.items()}


def test_automatic_choice(house, x) -> None:
    explanation = ak.explain(x, x, x)
    assert (explanation.backend, explanation.path, explanation.error) == ("main", "dense", "")
    assert explanation.choice == "automatic choice"
    assert codes(explanation) == {
        "main:decode": ["rows"],
        "second": ["outranked"],
        "meagre": ["dtypes"],
        "shy": ["not_automatic"],
        "other": ["not_owner"],
        "gone": ["unavailable"],
        "old": ["unavailable"],
        "bad": ["unavailable"],
    }


def test_the_other_path_is_outranked_where_it_takes_the_call(house, x) -> None:
    explanation = ak.explain(x[:, :, :1], x, x)
    assert (explanation.backend, explanation.path) == ("main", "decode")
    (reason,) = explanation.rejected["main:dense"]
    assert (reason.code, reason.field, reason.actual) == ("outranked", "path", "dense")
    assert "main:decode" in reason.required
    assert reason.hint == "force it with backend='main:dense'"


def test_all_reasons_are_collected(house, x) -> None:
    explanation = ak.explain(x, x, x, mask=ak.Mask.chunked(2), softcap=2.0, kv_lengths=2, key_offset=1, lse=True)
    assert codes(explanation)["meagre"] == ["dtypes", "chunked", "softcap", "lengths", "offsets", "lse"]
    assert codes(explanation)["main:decode"] == ["rows"]


def test_reasons_of_the_request_stand_beside_those_of_selection(house, kit, x) -> None:
    half = ak.Capabilities(dtypes=frozenset({"float16"}))
    ak.register(kit.spec("thin", owns=(("torch.Tensor", "*"),), capabilities=lambda _self: half))
    ak.register(kit.spec("thinner", owns=NUMPY, automatic=False, capabilities=lambda _self: half))
    found = codes(ak.explain(x, x, x))
    assert found["thin"] == ["dtypes", "not_owner"]
    assert found["thinner"] == ["dtypes", "not_automatic"]
    found = codes(ak.explain(x, x, x, backend="main"))
    assert found["thin"] == ["dtypes", "not_chosen"]


def test_hints_say_what_to_do(house, x) -> None:
    rejected = ak.explain(x, x, x).rejected
    assert rejected["gone"][0].hint == "pip install gone"
    assert rejected["gone"][0].actual == "no device"
    assert rejected["shy"][0].hint == "pass backend='shy'"
    assert rejected["second"][0].required == "main"
    assert "contract 0.1" in rejected["old"][0].actual
    assert "ImportError: no" in rejected["bad"][0].actual


@pytest.mark.parametrize("choice", ["second", ["second", "main"], ["gone", "second"], ["main:decode", "second"]])
def test_a_choice_that_is_taken(house, x, choice) -> None:
    explanation = ak.explain(x, x, x, backend=choice)
    assert (explanation.backend, explanation.path) == ("second", "attention")
    found = codes(explanation)
    assert found["meagre"] == ["dtypes", "not_chosen"]
    assert found["shy"] == found["other"] == ["not_chosen"]
    assert found["gone"] == ["unavailable"]
    named = choice if isinstance(choice, list) else [choice]
    if "main" in named:  # it takes the call, but comes later
        assert found["main:dense"] == ["outranked"]
        assert found["main:decode"] == ["rows"]
    elif "main:decode" in named:
        assert found["main:decode"] == ["rows"]
        assert found["main:dense"] == ["not_chosen"]
    else:
        assert found["main"] == ["not_chosen"]
        assert found["main:decode"] == ["rows"]
    assert explanation.choice == "chosen: " + ", ".join(named)


def test_a_path_that_is_forced(house, x) -> None:
    explanation = ak.explain(x[:, :, :1], x, x, backend="main:dense")
    assert (explanation.backend, explanation.path) == ("main", "dense")
    (reason,) = explanation.rejected["main:decode"]
    assert (reason.code, reason.required) == ("not_chosen", "chosen: main:dense")
    assert explanation.rejected["second"][0].code == "not_chosen"


def test_nothing_takes_the_call(house, x) -> None:
    thin = x.astype(np.float16)
    house.unregister("main")
    house.unregister("second")
    explanation = ak.explain(thin, thin, thin)
    assert explanation.backend is explanation.path is None
    assert "no backend takes this call" in explanation.error
    assert codes(explanation) == {
        "meagre": ["dtypes"],
        "shy": ["not_automatic"],
        "other": ["not_owner"],
        "gone": ["unavailable"],
        "old": ["unavailable"],
        "bad": ["unavailable"],
    }


def test_a_tie_is_explained(nobody, kit, x) -> None:
    for name in ("left", "right"):
        ak.register(kit.spec(name, owns=NUMPY))
    explanation = ak.explain(x, x, x)
    assert explanation.backend is None
    assert "tied" in explanation.error
    assert codes(explanation) == {"left": ["outranked"], "right": ["outranked"]}


@pytest.mark.parametrize(
    ("choice", "message", "found"),
    [
        ("meagre", "'meagre' does not take this call", {"meagre": ["dtypes"]}),
        ("gone", "no device; pip install gone", {"gone": ["unavailable"]}),
        ("bad", "failed to load: ImportError: no", {"bad": ["unavailable"]}),
        ("old", "written for contract 0.1", {"old": ["unavailable"]}),
        (["meagre", "gone"], "none of the chosen backends", {"meagre": ["dtypes"], "gone": ["unavailable"]}),
        ("main:decode", "'main:decode' does not take", {"main:decode": ["rows"], "main:dense": ["not_chosen"]}),
        ("main:nope", "has no path 'nope'", {"main:decode": ["rows"], "main:dense": ["not_chosen"]}),
        ("nobody", "no backend named 'nobody'", {"main": ["not_chosen"], "main:decode": ["rows"]}),
    ],
)
def test_a_choice_that_is_not_taken(house, x, choice, message, found) -> None:
    explanation = ak.explain(x, x, x, backend=choice)
    assert explanation.backend is None
    assert message in explanation.error
    assert found.items() <= codes(explanation).items()
    for name in ("second", "shy", "other"):
        assert codes(explanation)[name] == ["not_chosen"]


def test_the_error_is_the_one_that_the_call_raises(house, x) -> None:
    for choice in ("meagre", "gone", "main:decode", "main:nope", ["meagre", "gone"]):
        with pytest.raises(ak.AttnkitError) as caught:
            ak.attention(x, x, x, backend=choice)
        assert ak.explain(x, x, x, backend=choice).error == str(caught.value)


def test_a_backend_that_nobody_registered(house, kit, x) -> None:
    mine = kit.backend("mine", paths=("decode", "dense"), unsupported=one_row)
    explanation = ak.explain(x, x, x, backend=mine)
    assert (explanation.backend, explanation.path) == ("mine", "dense")
    assert codes(explanation)["mine:decode"] == ["rows"]
    assert codes(explanation)["second"] == ["not_chosen"]
    meagre = kit.backend("mine", capabilities=lambda _self: ak.Capabilities(dtypes=frozenset({"float64"})))
    explanation = ak.explain(x, x, x, backend=meagre)
    assert explanation.backend is None
    assert codes(explanation)["mine"] == ["dtypes"]


@pytest.mark.parametrize("choice", [None, "second", "main:dense", ["meagre", "main"]])
@pytest.mark.parametrize("rows", [1, 3])
def test_it_agrees_with_what_runs(house, x, choice, rows) -> None:
    query = x[:, :, :rows]
    explanation = ak.explain(query, x, x, backend=choice)
    with ak.trace() as calls:
        ak.attention(query, x, x, backend=choice)
    (call,) = calls
    assert (call.backend, call.path, call.request) == (explanation.backend, explanation.path, explanation.request)
    assert call.reasons == explanation.rejected


@pytest.mark.parametrize("choice", [None, "second", "main:decode", "nobody", ["gone", "meagre"]])
@pytest.mark.parametrize("rows", [1, 3])
def test_every_backend_and_path_is_spoken_of(house, x, choice, rows) -> None:
    explanation = ak.explain(x[:, :, :rows], x, x, backend=choice)
    running = f"{explanation.backend}:{explanation.path}"
    for info in ak.backends():
        paths = ak.get_backend(info.name).paths if info.available and info.name != "old" else ("any",)
        for path in paths:
            spelled = f"{info.name}:{path}"
            said = {spelled, info.name} & set(explanation.rejected)
            assert bool(said) != (spelled == running)
    assert all(explanation.rejected.values())


def test_it_follows_context_and_environment(house, x, monkeypatch) -> None:
    monkeypatch.setenv("ATTNKIT_BACKEND", "second")
    assert ak.explain(x, x, x).backend == "second"
    with ak.use_backend("shy"):
        assert ak.explain(x, x, x).backend == "shy"
    assert ak.explain(x, x, x, backend="main").backend == "main"


def test_nothing_runs(nobody, kit, x) -> None:
    def attention(*_arguments):
        raise AssertionError("ran")

    ak.register(kit.spec("lazy", owns=NUMPY, attention=attention))
    assert ak.explain(x, x, x).backend == "lazy"


def test_wrong_arguments_are_errors_as_in_the_call(house, x) -> None:
    with pytest.raises(ak.ShapeError, match="common B, K, S and D"):
        ak.explain(x, x[:, :, :2], x)


def test_it_is_data_and_words(house, x) -> None:
    explanation = ak.explain(x, x, x, mask=ak.Mask.causal() & ak.Mask.window(2))
    data = json.loads(json.dumps(explanation.to_dict()))
    assert (data["backend"], data["path"], data["choice"]) == ("main", "dense", "automatic choice")
    assert data["request"]["mask"]["left"] == 2
    assert data["rejected"]["gone"][0]["hint"] == "pip install gone"
    lines = str(explanation).splitlines()
    assert lines[0] == "main:dense takes the call (automatic choice)"
    assert "  gone: cannot run here: no device (pip install gone)" in lines
    assert str(ak.explain(x, x, x, backend="gone")).startswith("nothing takes the call (chosen: gone)")
