"""Capabilities: what is not declared is refused, under the name of the field that says no (A18)."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest

import attnkit as ak

PLAIN_CALL = ak.AttentionRequest(
    array_type=("numpy.ndarray",),
    device="cpu",
    dtype="float32",
    kv_dtype="float32",
    batch=1,
    num_heads=4,
    num_kv_heads=4,
    query_length=8,
    key_length=8,
    head_dim=64,
    value_dim=64,
)
# What the fields promise about results; they refuse nothing.
PROMISES = {"poison", "deterministic", "batch_invariant", "numerics"}
# What the fields say about caches, not calls; see tests/attnkit/cache/test_making.py.
STORAGE = {"layouts", "codecs"}

# code, what the request changes, what the reason looks at, what is declared to allow it
REFUSALS = [
    ("libraries", {"array_type": ("torch.Tensor", "torch._C.TensorBase")}, "query", {"libraries": {"torch"}}),
    ("devices", {"device": "cuda:1"}, "device", {"devices": {"cuda"}}),
    ("devices", {"device": "cuda:1"}, "device", {"devices": {"*"}}),
    ("dtypes", {"dtype": "bfloat16", "kv_dtype": "bfloat16"}, "dtype", {"dtypes": {"bfloat16"}}),
    ("head_dims", {"head_dim": 63, "value_dim": 63}, "head_dim", {"head_dims": ak.Sizes(multiple=9)}),
    ("max_key_length", {"key_length": 32}, "key_length", {"max_key_length": 32}),
    ("gqa", {"num_kv_heads": 2}, "num_kv_heads", {"gqa": True}),
    ("value_dim", {"value_dim": 32}, "value_dim", {"value_dim": True}),
    ("window", {"mask": ak.MaskStructure(left=4)}, "mask.window", {"window": True}),
    ("window", {"mask": ak.MaskStructure(causal=True, right=1)}, "mask.window", {"window": True}),
    ("prefix", {"mask": ak.MaskStructure(prefix=0)}, "mask.prefix", {"prefix": True}),
    ("chunked", {"mask": ak.MaskStructure(chunks=(4,))}, "mask.chunked", {"chunked": True}),
    ("documents", {"mask": ak.MaskStructure(documents=1)}, "mask.documents", {"documents": True}),
    ("dense", {"mask": ak.MaskStructure(dense=2)}, "mask.dense", {"dense": True}),
    ("bias", {"bias": "float32"}, "bias", {"bias": True}),
    ("alibi", {"alibi": True}, "alibi", {"alibi": True}),
    ("softcap", {"softcap": 30.0}, "softcap", {"softcap": True}),
    ("sinks", {"sinks": True}, "sinks", {"sinks": True}),
    ("lengths", {"query_lengths": True}, "query_lengths", {"lengths": True}),
    ("lengths", {"kv_lengths": True}, "kv_lengths", {"lengths": True}),
    ("offsets", {"query_offset": True}, "query_offset", {"offsets": True}),
    ("offsets", {"key_offset": True}, "key_offset", {"offsets": True}),
    ("lse", {"lse": True}, "lse", {"lse": True}),
    ("kv_dtype", {"kv_dtype": "float16"}, "kv_dtype", {"kv_dtype": True}),
    ("grad", {"grad": True}, "grad", {"grad": True}),
]
LIMITED = {"head_dims": ak.Sizes(8, 128, 8), "max_key_length": 16}


def declared(**changes):
    sets = {name: frozenset(value) if isinstance(value, set) else value for name, value in changes.items()}
    return ak.Capabilities(**sets)


def test_every_field_that_refuses_is_in_the_table() -> None:
    assert {code for code, *_ in REFUSALS} == {field.name for field in fields(ak.Capabilities)} - PROMISES - STORAGE


@pytest.mark.parametrize(("code", "change", "field", "allowed"), REFUSALS)
def test_a_field_refuses_under_its_own_name(code, change, field, allowed) -> None:
    request = PLAIN_CALL._replace(**change)
    (reason,) = declared(**LIMITED).unsupported(request)
    assert (reason.code, reason.field) == (code, field)
    assert reason.required
    assert reason.actual
    assert str(reason).startswith(f"{field} must be {reason.required}, got {reason.actual}")
    assert declared(**{**LIMITED, **allowed}).unsupported(request) == []


def test_the_core_needs_no_declaration() -> None:
    for structure in (ak.MaskStructure(), ak.MaskStructure(causal=True)):
        assert ak.Capabilities().unsupported(PLAIN_CALL._replace(mask=structure)) == []


def test_empty_axes_need_no_declaration() -> None:
    empty = PLAIN_CALL._replace(batch=0, query_length=0, key_length=0)
    assert ak.Capabilities().unsupported(empty) == []


def test_a_derived_class_counts_by_its_bases() -> None:
    request = PLAIN_CALL._replace(array_type=("mine.Array", "numpy.ndarray"))
    assert ak.Capabilities().unsupported(request) == []


def test_all_reasons_come_at_once() -> None:
    request = PLAIN_CALL
    for _, change, *_ in REFUSALS:
        change = dict(change)
        if "mask" in change:
            ours, theirs = request.mask._asdict(), change["mask"]._asdict()
            change["mask"] = ak.MaskStructure(**{name: theirs[name] or value for name, value in ours.items()})
        request = request._replace(**change)
    request = request._replace(mask=request.mask._replace(prefix=0))
    found = [reason.code for reason in declared(**LIMITED).unsupported(request)]
    assert set(found) == {code for code, *_ in REFUSALS}
    assert len(found) == len(set(found)) + 2  # lengths and offsets, of queries and of keys


@pytest.mark.parametrize(
    ("sizes", "inside", "outside", "words"),
    [
        (ak.Sizes(), [1, 2, 1000], [0, -1], ">= 1"),
        (ak.Sizes(16, 64), [16, 17, 64], [15, 65], "from 16 to 64"),
        (ak.Sizes(16, 64, 16), [16, 32, 64], [0, 24, 80], "from 16 to 64, a multiple of 16"),
        (ak.Sizes(multiple=8), [8, 800], [4, 0], ">= 1, a multiple of 8"),
    ],
)
def test_sizes(sizes, inside, outside, words) -> None:
    assert all(size in sizes for size in inside)
    assert not any(size in sizes for size in outside)
    assert str(sizes) == words


def test_value_heads_have_their_size_checked_too() -> None:
    capabilities = ak.Capabilities(head_dims=ak.Sizes(multiple=8), value_dim=True)
    (reason,) = capabilities.unsupported(PLAIN_CALL._replace(value_dim=20))
    assert (reason.code, reason.field, reason.actual) == ("head_dims", "value_dim", "20")


@pytest.mark.parametrize("limit", [1, 2, 64, 1 << 20])
def test_the_longest_key_axis_is_a_power_of_two(limit) -> None:
    capabilities = ak.Capabilities(max_key_length=limit)
    assert capabilities.unsupported(PLAIN_CALL._replace(key_length=limit)) == []
    (reason,) = capabilities.unsupported(PLAIN_CALL._replace(key_length=2 * limit))
    assert (reason.code, reason.required) == ("max_key_length", f"<= {limit}")


@pytest.mark.parametrize("limit", [0, -4, 3, 63, 100])
def test_another_longest_key_axis_is_refused(limit) -> None:
    with pytest.raises(ak.PluginError, match="max_key_length must be a power of two or None"):
        ak.Capabilities(max_key_length=limit)


@pytest.mark.parametrize(("keys", "taken"), [(16, True), (15, True), (17, False)])
def test_the_longest_key_axis_meets_real_lengths(nobody, kit, keys, taken) -> None:
    capabilities = ak.Capabilities(dtypes=frozenset({"float64"}), max_key_length=16)
    mine = kit.backend("mine", capabilities=lambda _self: capabilities)
    key = np.ones((keys, 4))
    explanation = ak.explain(key[:1], key, key, backend=mine)
    assert (explanation.backend == "mine") is taken


def test_every_dtype_needs_its_numerics() -> None:
    with pytest.raises(ak.PluginError, match=r"numerics must name a profile for each of dtypes, missing \['float8'\]"):
        ak.Capabilities(dtypes=frozenset({"float32", "float8"}))
    assert ak.Capabilities(dtypes=frozenset({"float8"}), numerics={"float8": "fa-16"}).dtypes == {"float8"}


def test_fields_are_named_and_frozen() -> None:
    with pytest.raises(TypeError):
        ak.Capabilities(frozenset({"numpy"}))
    with pytest.raises(AttributeError):
        ak.Capabilities().gqa = True
    with pytest.raises(TypeError):
        ak.Capabilities(unknown=True)


def test_declare_leaves_out_what_a_newer_minor_version_added() -> None:
    assert ak.Capabilities.declare("1.1", gqa=True, dropout=True) == ak.Capabilities(gqa=True)
    assert ak.Capabilities.declare("1.0", gqa=True) == ak.Capabilities(gqa=True)


@pytest.mark.parametrize("version", ["1.0", "1", "1.0.9"])
def test_declare_refuses_what_is_unknown_in_our_own_version(version) -> None:
    with pytest.raises(ak.PluginError, match=r"unknown fields \['dropout', 'soft_cap'\] for contract 1"):
        ak.Capabilities.declare(version, soft_cap=True, dropout=True, gqa=True)


@pytest.mark.parametrize(("code", "hint"), [("grad", "detach"), ("libraries", "convert"), ("dtypes", "by value")])
def test_hints_say_what_to_do(code, hint) -> None:
    (change,) = (change for name, change, *_ in REFUSALS if name == code)
    (reason,) = ak.Capabilities().unsupported(PLAIN_CALL._replace(**change))
    assert hint in reason.hint
    assert str(reason).endswith(f"({reason.hint})")


def test_a_reason_is_data() -> None:
    reason = ak.Reason("gqa", "num_kv_heads", "8", "2", "repeat them")
    assert reason.to_dict() == {
        "code": "gqa",
        "field": "num_kv_heads",
        "required": "8",
        "actual": "2",
        "hint": "repeat them",
    }
    assert ak.Reason(**reason.to_dict()) == reason


class TestThroughTheBackend:
    """``Backend.unsupported`` and ``refuse`` say what the capabilities say."""

    def test_refuse_raises_with_all_reasons(self, kit) -> None:
        mine = kit.backend("mine", capabilities=lambda _self: ak.Capabilities())
        request = PLAIN_CALL._replace(softcap=1.0, lse=True)
        assert mine.unsupported(request) == ak.Capabilities().unsupported(request)
        with pytest.raises(ak.UnsupportedError, match="backend 'mine' does not take this call") as caught:
            mine.refuse(request)
        assert [reason.code for reason in caught.value.reasons["mine"]] == ["softcap", "lse"]
        with pytest.raises(ak.UnsupportedError, match="'mine:attention'"):
            mine.refuse(request, "attention")
        mine.refuse(PLAIN_CALL)

    def test_an_undeclared_option_is_refused_before_anything_runs(self, kit) -> None:
        def attention(*_arguments):
            raise AssertionError("ran")

        mine = kit.backend("mine", capabilities=lambda _self: ak.Capabilities(), attention=attention)
        x = np.ones((2, 8), np.float32)
        for options in (
            {"softcap": 1.0},
            {"mask": ak.Mask.window(1)},
            {"bias": np.zeros((2, 2), np.float32)},
            {"kv_lengths": 2},
            {"query_offset": 0},
            {"sinks": np.zeros(1, np.float32)},
            {"alibi": np.zeros(1, np.float32)},
        ):
            with pytest.raises(ak.UnsupportedError):
                ak.attention(x, x, x, backend=mine, **options)
