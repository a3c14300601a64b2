"""Configurations: frozen, checked, JSON in and out; and the memory of a cache told in advance (C10)."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from pydantic import ValidationError

import attnkit as ak

GIB = 1 << 30


def attention(**changes):
    return ak.AttentionConfig(**{"num_heads": 8, "head_dim": 64, **changes})


def cache(**changes):
    return ak.KVCacheConfig(**{"num_kv_heads": 3, "head_dim": 64, **changes})


MASKS = [
    None,
    ak.Mask.causal(),
    ak.Mask.causal() & ak.Mask.window(512, None),
    ak.Mask.prefix(3) & ak.Mask.chunked(8),
    ak.Mask.documents([0, 0, 1], [0, 1, 1]) & ak.Mask.window(2, 4),
    ak.Mask.dense(np.tri(3, 5, dtype=bool)),
]
CONFIGS = [
    *(attention(mask=mask) for mask in MASKS),
    attention(num_kv_heads=2, value_dim=32, scale=-0.5, softcap=50.0, rope=ak.RopeConfig(theta=5e5, dim=32)),
    attention(scale=0.0, rope=ak.RopeConfig(style="interleaved")),
    cache(),
    cache(num_layers=30, batch_size=4, value_dim=8, max_length=77, dtype="bfloat16"),
    ak.RopeConfig(),
]


@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_json_round_trip(config) -> None:
    text = config.model_dump_json()
    again = type(config).model_validate_json(text)
    assert again == config
    assert again.model_dump_json() == text
    assert type(config)(**json.loads(text)) == config
    assert type(config)(**config.model_dump()) == config


@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_frozen_and_hashable(config) -> None:
    name = next(iter(type(config).model_fields))
    with pytest.raises(ValidationError, match="frozen"):
        setattr(config, name, getattr(config, name))
    assert hash(config) == hash(type(config)(**config.model_dump()))


@pytest.mark.parametrize("make", [attention, cache, ak.RopeConfig])
def test_an_unknown_key_is_refused(make) -> None:
    with pytest.raises(ValidationError, match="num_haeds"):
        make(num_haeds=3)


def test_equal_means_equal_masks_too() -> None:
    assert attention(mask=ak.Mask.window(3)) == attention(mask=ak.Mask.window(3))
    assert attention(mask=ak.Mask.window(3)) != attention(mask=ak.Mask.window(4))
    assert attention(mask=ak.Mask.dense(np.eye(3, dtype=bool))) != attention(mask=ak.Mask.dense(~np.eye(3, dtype=bool)))


def test_what_is_left_out_is_filled_in() -> None:
    config = attention()
    assert (config.num_kv_heads, config.value_dim) == (8, 64)
    assert (config.mask, config.scale, config.softcap, config.rope) == (None, None, None, None)
    assert attention(num_kv_heads=None, value_dim=None) == config
    assert (cache().value_dim, cache().num_layers, cache().batch_size, cache().dtype) == (64, 1, 1, "float32")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"num_heads": 0}, "num_heads"),
        ({"num_heads": -8}, "num_heads"),
        ({"num_heads": 2.5}, "num_heads"),
        ({"head_dim": 0}, "head_dim"),
        ({"num_kv_heads": 0}, "num_kv_heads"),
        ({"num_kv_heads": 3}, "num_heads must be a multiple of num_kv_heads, got 8 and 3"),
        ({"num_kv_heads": 16}, "num_heads must be a multiple of num_kv_heads, got 8 and 16"),
        ({"value_dim": 0}, "value_dim"),
        ({"scale": math.inf}, "scale"),
        ({"scale": math.nan}, "scale"),
        ({"softcap": 0.0}, "softcap"),
        ({"softcap": -1.0}, "softcap"),
        ({"softcap": math.inf}, "softcap"),
        ({"mask": "causal"}, "mask"),
        ({"mask": {"terms": []}}, "at least one term"),
        ({"mask": {"terms": [{"kind": "round"}]}}, "kind must be one of"),
        ({"mask": {"terms": [{"kind": "window", "left": 0, "right": 0}]}}, "left must be >= 1"),
        ({"rope": ak.RopeConfig(dim=66)}, "rope.dim must be even and <= head_dim = 64, got 66"),
        ({"head_dim": 63, "rope": ak.RopeConfig()}, "rope.dim must be even and <= head_dim = 63, got 63"),
        ({"rope": {"dim": 3}}, "rope.dim must be even, got 3"),
        ({"rope": {"theta": 0.0}}, "theta"),
        ({"rope": {"style": "spiral"}}, "style"),
    ],
)
def test_attention_that_does_not_fit(changes, words) -> None:
    with pytest.raises(ValidationError, match=words.replace(".", r"\.")):
        attention(**changes)


@pytest.mark.parametrize("missing", ["num_heads", "head_dim"])
def test_what_has_no_default_is_asked_for(missing) -> None:
    fields = {"num_heads": 8, "head_dim": 64}
    del fields[missing]
    with pytest.raises(ValidationError, match=rf"(?s){missing}\n  Field required"):
        ak.AttentionConfig(**fields)


@pytest.mark.parametrize(
    "changes",
    [
        {"num_layers": 0},
        {"batch_size": -1},
        {"num_kv_heads": 0},
        {"head_dim": 0},
        {"value_dim": 0},
        {"max_length": 0},
        {"layout": "spiral"},
        {"window": 4},
        {"page_size": 4},
        {"window": 4, "layout": "paged"},
        {"max_append": 0, "window": 4, "layout": "ring"},
        {"pinned": -1, "window": 4, "layout": "ring"},
        {"max_length": 9, "window": 4, "layout": "ring"},
        {"window": None, "layout": "ring"},
        {"page_size": 0, "layout": "paged"},
        {"num_pages": 0, "layout": "paged"},
        {"key_codec": "int5"},
        {"value_codec": {"kind": "int8", "bits": 8}},
        {"key_codec": "int8/7"},
        {"dtype": "int8"},
        {"dtype": "float8"},
    ],
    ids=str,
)
def test_a_cache_that_does_not_fit(changes) -> None:
    with pytest.raises(ValidationError, match=next(iter(changes))):
        cache(**changes)


@pytest.mark.parametrize("config", [cache(), cache(max_length=77, num_layers=2, batch_size=3, value_dim=5)], ids=str)
@pytest.mark.parametrize(("dtype", "size"), [("float16", 2), ("bfloat16", 2), ("float32", 4), ("float64", 8)])
def test_bytes_per_token(config, dtype, size) -> None:
    config = config.model_copy(update={"dtype": dtype})
    elements = config.num_layers * config.num_kv_heads * (config.head_dim + config.value_dim)
    assert config.bytes_per_token == elements * size


def test_a_growing_cache_wastes_at_most_a_fifth_and_grows_seldom() -> None:
    config = cache()
    capacities = [config.capacity_for(length) for length in range(20000)]
    assert capacities[0] == 0
    assert capacities == sorted(capacities)
    assert all(length <= capacity for length, capacity in enumerate(capacities))
    assert all(capacity - length <= max(63, length // 4) for length, capacity in enumerate(capacities))
    assert all(capacity <= 1.25 * length for length, capacity in enumerate(capacities) if length >= 256)
    assert len(set(capacities)) <= 4 * 8 + 8
    assert all(config.capacity_for(capacity) == capacity for capacity in set(capacities))


def test_a_fixed_cache_has_its_capacity_from_the_start() -> None:
    assert {cache(max_length=77).capacity_for(length) for length in range(78)} == {77}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"batch_size": 2, "num_layers": 3, "value_dim": 7, "dtype": "float16"},
        {"max_length": 1},
        {"max_length": 100, "batch_size": 2, "dtype": "bfloat16"},
    ],
    ids=str,
)
def test_the_longest_context_is_the_inverse_of_the_bytes(changes) -> None:
    config = cache(num_kv_heads=1, head_dim=2, **changes)
    most = config.max_length or 768  # up to where storage grows next
    needed = [config.bytes_for(length) for length in range(most + 2)]
    for memory in sorted({-100, 0, 1, *(size + step for size in needed for step in (-1, 0, 1))}):
        fitting = [length for length in range(1, most + 1) if needed[length] <= memory]
        if memory <= needed[most]:  # beyond it, more than `most` tokens would fit
            assert config.longest_for(memory) == (fitting[-1] if fitting else 0), memory


def test_a_long_context() -> None:
    llama = cache(num_layers=32, num_kv_heads=8, head_dim=128, dtype="float16")
    assert llama.bytes_per_token == 131072
    assert llama.bytes_for(131072) == 16 * GIB
    assert llama.longest_for(16 * GIB) == 131072
    assert llama.longest_for(16 * GIB - 1) < 131072


class TestFromHF:
    """``AttentionConfig.from_hf`` on small configurations of each family."""

    base = {"num_hidden_layers": 12, "num_attention_heads": 8, "num_key_value_heads": 2, "hidden_size": 512}

    def read(self, model_type, layer=0, **changes):
        return ak.AttentionConfig.from_hf({"model_type": model_type, **self.base, **changes}, layer=layer)

    def test_llama(self) -> None:
        assert self.read("llama", rope_theta=5e5) == ak.AttentionConfig(
            num_heads=8, num_kv_heads=2, head_dim=64, mask=ak.Mask.causal(), rope=ak.RopeConfig(theta=5e5)
        )

    def test_llama_of_old_has_as_many_key_value_heads(self) -> None:
        assert self.read("llama", num_key_value_heads=None).num_kv_heads == 8
        config = {key: value for key, value in self.base.items() if key != "num_key_value_heads"}
        assert ak.AttentionConfig.from_hf({"model_type": "llama", **config}).num_kv_heads == 8

    def test_a_head_size_of_its_own(self) -> None:
        assert self.read("llama", head_dim=128).head_dim == 128
        assert self.read("llama", head_dim=None).head_dim == 64

    @pytest.mark.parametrize("factor", [0.5, 0.25])
    def test_partial_rotation(self, factor) -> None:
        assert self.read("llama", partial_rotary_factor=factor).rope.dim == 64 * factor
        rope = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": factor}
        assert self.read("llama", rope_parameters=rope).rope.dim == 64 * factor

    def test_rope_parameters(self) -> None:
        rope = {"rope_type": "default", "rope_theta": 123.0}
        assert self.read("llama", rope_parameters=rope).rope == ak.RopeConfig(theta=123.0)
        assert self.read("llama", rope_parameters={"rope_theta": 5.0}, rope_theta=7.0).rope.theta == 5.0

    @pytest.mark.parametrize(
        "scaling",
        [
            {"rope_scaling": {"type": "linear", "factor": 2.0}},
            {"rope_scaling": {"rope_type": "llama3", "factor": 8.0}},
            {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0}},
        ],
        ids=str,
    )
    @pytest.mark.parametrize("family", ["llama", "mistral", "gemma", "qwen2", "qwen3"])
    def test_rope_scaling_is_refused_by_name(self, family, scaling) -> None:
        with pytest.raises(ValueError, match=r"rope_scaling of type '(linear|llama3|yarn)' is not supported"):
            self.read(family, **scaling)

    @pytest.mark.parametrize("scaling", [None, {"rope_type": "default"}, {"type": "default"}])
    def test_no_scaling_is_fine(self, scaling) -> None:
        assert self.read("llama", rope_scaling=scaling).rope == ak.RopeConfig()

    def test_rope_parameters_by_kind_of_layer_are_not_mistaken(self) -> None:
        with pytest.raises(ValueError, match="rope_parameters that differ by kind of layer"):
            self.read("llama", rope_parameters={"full_attention": {"rope_theta": 1.0}})

    def test_mistral(self) -> None:
        assert self.read("mistral", sliding_window=4096).mask == ak.Mask.causal() & ak.Mask.window(4096)
        assert self.read("mistral", sliding_window=None).mask == ak.Mask.causal()
        assert self.read("mistral").mask == ak.Mask.causal()

    def test_gemma(self) -> None:
        config = self.read("gemma", head_dim=256)
        assert (config.head_dim, config.mask, config.scale) == (256, ak.Mask.causal(), None)

    def test_gemma2_alternates(self) -> None:
        fields = {"sliding_window": 16, "attn_logit_softcapping": 50.0, "query_pre_attn_scalar": 144, "head_dim": 128}
        layers = [self.read("gemma2", layer, **fields) for layer in range(4)]
        slides = ak.Mask.causal() & ak.Mask.window(16)
        assert [layer.mask for layer in layers] == [slides, ak.Mask.causal()] * 2
        assert {layer.softcap for layer in layers} == {50.0}
        assert layers[0].scale == pytest.approx(1 / 12)
        assert self.read("gemma2", **{**fields, "attn_logit_softcapping": None}).softcap is None
        with pytest.raises(ValueError, match="query_pre_attn_scalar must be an integer"):
            self.read("gemma2", sliding_window=16)

    def test_layer_types_go_before_the_rule_of_the_family(self) -> None:
        kinds = ["full_attention", "sliding_attention"] * 6
        for family in ("gemma2", "qwen3"):
            fields = {"sliding_window": 16, "use_sliding_window": True, "query_pre_attn_scalar": 64}
            masks = [self.read(family, layer, layer_types=kinds, **fields).mask for layer in (0, 1)]
            assert masks == [ak.Mask.causal(), ak.Mask.causal() & ak.Mask.window(16)]

    gemma3 = {"sliding_window": 512, "query_pre_attn_scalar": 256, "head_dim": 256, "sliding_window_pattern": 3}

    def test_gemma3(self) -> None:
        text = {"model_type": "gemma3_text", **self.base, **self.gemma3, "rope_theta": 5e5, "rope_local_base_freq": 1e3}
        nested = {"model_type": "gemma3", "text_config": text, "vision_config": {"model_type": "siglip"}}
        for source in (text, nested):
            layers = [ak.AttentionConfig.from_hf(source, layer=layer) for layer in range(6)]
            slides = ak.Mask.causal() & ak.Mask.window(512)
            assert [layer.mask for layer in layers] == [slides, slides, ak.Mask.causal()] * 2
            assert [layer.rope.theta for layer in layers] == [1e3, 1e3, 5e5] * 2
            assert {layer.scale for layer in layers} == {1 / 16}
            assert {layer.softcap for layer in layers} == {None}

    def test_gemma3_has_bases_of_its_own(self) -> None:
        assert [self.read("gemma3_text", layer, **self.gemma3).rope.theta for layer in (0, 2)] == [1e4, 1e6]

    def test_gemma3_scales_full_attention_alone(self) -> None:
        scaling = {"rope_scaling": {"rope_type": "linear", "factor": 8.0}}
        assert self.read("gemma3_text", 0, **self.gemma3, **scaling).rope.theta == 1e4
        with pytest.raises(ValueError, match="rope_scaling of type 'linear'"):
            self.read("gemma3_text", 2, **self.gemma3, **scaling)

    def test_gemma3_with_rope_parameters_by_kind_of_layer(self) -> None:
        rope = {
            "sliding_attention": {"rope_type": "default", "rope_theta": 77.0},
            "full_attention": {"rope_type": "default", "rope_theta": 88.0},
        }
        fields = {**self.gemma3, "rope_parameters": rope}
        assert [self.read("gemma3_text", layer, **fields).rope.theta for layer in (0, 2)] == [77.0, 88.0]
        rope["full_attention"] = {"rope_type": "linear", "factor": 8.0}
        with pytest.raises(ValueError, match="rope_scaling of type 'linear'"):
            self.read("gemma3_text", 2, **fields)

    def test_gemma3_that_looks_both_ways_is_refused(self) -> None:
        with pytest.raises(ValueError, match="use_bidirectional_attention is not supported"):
            self.read("gemma3_text", **self.gemma3, use_bidirectional_attention=True)

    @pytest.mark.parametrize("family", ["qwen2", "qwen3"])
    def test_qwen(self, family) -> None:
        fields = {"sliding_window": 32, "max_window_layers": 3}
        plain, slides = ak.Mask.causal(), ak.Mask.causal() & ak.Mask.window(32)
        masks = [self.read(family, layer, **fields, use_sliding_window=True).mask for layer in range(5)]
        assert masks == [plain, plain, plain, slides, slides]
        assert {self.read(family, layer, **fields, use_sliding_window=False).mask for layer in range(5)} == {plain}
        assert {self.read(family, layer, **fields).mask for layer in range(5)} == {plain}

    def test_gpt2(self) -> None:
        fields = {"model_type": "gpt2", "n_layer": 4, "n_head": 4, "n_embd": 64}
        assert ak.AttentionConfig.from_hf(fields) == ak.AttentionConfig(
            num_heads=4, head_dim=16, mask=ak.Mask.causal(), scale=0.25
        )
        by_layer = ak.AttentionConfig.from_hf({**fields, "scale_attn_by_inverse_layer_idx": True}, layer=3)
        assert by_layer.scale == 0.25 / 4
        assert ak.AttentionConfig.from_hf({**fields, "scale_attn_weights": False}).scale == 1.0
        with pytest.raises(ValueError, match=r"layer must lie in 0\.\.3, got 4"):
            ak.AttentionConfig.from_hf(fields, layer=4)

    @pytest.mark.parametrize(
        ("changes", "words"),
        [
            ({"model_type": "mamba"}, "model_type must be one of gemma, gemma2, .*, got 'mamba'"),
            ({"model_type": None}, "got None"),
            ({"model_type": []}, "got \\[\\]"),
            ({"rope_scaling": -1}, "not one of llama: AttributeError"),
            ({"partial_rotary_factor": [1]}, "not one of llama: TypeError"),
            ({"model_type": "qwen2", "use_sliding_window": True, "layer_types": []}, "not one of qwen2: IndexError"),
            ({"model_type": "gemma2", "query_pre_attn_scalar": 0}, "not one of gemma2: ZeroDivisionError"),
            ({"num_attention_heads": None}, "num_attention_heads must be an integer"),
            ({"num_hidden_layers": "12"}, "num_hidden_layers must be an integer in the configuration, got '12'"),
            ({"hidden_size": None}, "hidden_size must be an integer"),
            ({"hidden_size": 4097}, "hidden_size must be a multiple of the number of heads, got 4097"),
            ({"num_key_value_heads": 3}, "num_heads must be a multiple of num_kv_heads"),
        ],
    )
    def test_what_is_missing_or_unknown_is_named(self, changes, words) -> None:
        with pytest.raises(ValueError, match=words):
            ak.AttentionConfig.from_hf({"model_type": "llama", **self.base, **changes})

    @pytest.mark.parametrize("layer", [-1, 12])
    def test_a_layer_that_is_not_there(self, layer) -> None:
        with pytest.raises(ValueError, match=rf"layer must lie in 0\.\.11, got {layer}"):
            self.read("llama", layer)

    def test_from_a_file_and_a_directory(self, tmp_path) -> None:
        (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", **self.base, "name": "Größe"}))
        for source in (tmp_path, str(tmp_path), tmp_path / "config.json", str(tmp_path / "config.json")):
            assert ak.AttentionConfig.from_hf(source) == self.read("llama")
        with pytest.raises(FileNotFoundError):
            ak.AttentionConfig.from_hf(tmp_path / "nowhere")

    def test_a_file_that_holds_no_object(self, tmp_path) -> None:
        (tmp_path / "config.json").write_text("[1]")
        with pytest.raises(ValueError, match=r"config\.json|must be a JSON object, got list"):
            ak.AttentionConfig.from_hf(tmp_path)

    def test_the_source_is_left_alone(self) -> None:
        source = {"model_type": "gemma3_text", **self.base, **self.gemma3}
        before = json.dumps(source)
        ak.AttentionConfig.from_hf(source, layer=3)
        assert json.dumps(source) == before
