from __future__ import annotations

import json

import numpy as np
import pytest

import attnkit as ak
from attnkit.cli.cache import format_bytes, parse_bytes

SMOLLM2 = ("--layers", "30", "--kv-heads", "3", "--head-dim", "64")


def plan(attnkit, *arguments: str) -> dict:
    return json.loads(attnkit("cache", "plan", *arguments, "--json").output)


def test_bytes_per_token(attnkit) -> None:
    # 30 layers x 3 heads x 64 features x key and value x 4 bytes
    assert plan(attnkit, *SMOLLM2)["bytes_per_token"] == 46080


def test_smaller_types_and_value_heads_cost_less(attnkit) -> None:
    assert plan(attnkit, *SMOLLM2, "--dtype", "bfloat16")["bytes_per_token"] == 23040
    assert plan(attnkit, *SMOLLM2, "--value-dim", "32")["bytes_per_token"] == 34560


def test_context_and_memory_are_each_others_inverse(attnkit) -> None:
    sizes = (*SMOLLM2, "--batch", "4")
    cost = plan(attnkit, *sizes, "--context", "1024")["bytes"]
    assert cost == 46080 * 4 * 1024
    assert plan(attnkit, *sizes, "--memory", str(cost))["longest_context"] == 1024
    assert plan(attnkit, *sizes, "--memory", str(cost - 1))["longest_context"] < 1024


def test_a_growing_cache_is_allocated_in_steps_and_a_fixed_one_at_once(attnkit) -> None:
    assert plan(attnkit, *SMOLLM2, "--context", "1000")["bytes"] > 46080 * 1000
    assert plan(attnkit, *SMOLLM2, "--context", "10", "--max-length", "1000")["bytes"] == 46080 * 1000


def test_what_is_told_is_what_is_allocated(attnkit) -> None:
    told = plan(attnkit, "--kv-heads", "2", "--head-dim", "8", "--context", "100")["bytes"]
    cache = ak.make_cache(ak.KVCacheConfig(num_kv_heads=2, head_dim=8), backend="numpy")
    token = np.zeros((1, 2, 100, 8), np.float32)
    cache[0].append(token, token)
    assert told == sum(plane.nbytes for pages in cache.pages for plane in pages.planes)


LAYOUTS = {
    "growing": (),
    "fixed": ("--max-length", "300"),
    "ring": ("--layout", "ring", "--window", "9", "--max-append", "3", "--pinned", "2"),
    "paged": ("--layout", "paged", "--page-size", "5"),
    "paged-fixed": ("--layout", "paged", "--page-size", "5", "--max-length", "211"),
    "pool": ("--layout", "paged", "--num-pages", "80"),
}


@pytest.mark.parametrize("codec", ["native", "int8", "int4", "fp8", "int4/3"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_and_codec_costs_what_is_told(attnkit, layout, codec) -> None:
    flags = ("--layers", "2", "--kv-heads", "2", "--head-dim", "9", "--value-dim", "6", "--batch", "3")
    for context in (0, 1, 65, 211):
        told = plan(attnkit, *flags, *LAYOUTS[layout], "--codec", codec, "--context", str(context))
        cache = ak.make_cache(ak.KVCacheConfig(**told["cache"]), backend="numpy")
        for _ in range(context):
            for part in cache:
                part.append(np.ones((3, 2, 1, 9), np.float32), np.ones((3, 2, 1, 6), np.float32))
        assert told["bytes"] == cache.nbytes, context


def test_a_context_that_does_not_fit_is_told(attnkit) -> None:
    result = attnkit("cache", "plan", *SMOLLM2, "--max-length", "100", "--context", "101")
    assert result.exit_code == 2
    assert "--context must be at most the 100 tokens that fit, got 101" in result.stderr


def test_a_ring_holds_any_context(attnkit) -> None:
    output = attnkit("cache", "plan", *SMOLLM2, *LAYOUTS["ring"], "--memory", "1GiB").output
    assert "1 GiB (1073741824 B) hold a ring, for any context" in output


def test_reads_a_hugging_face_config(attnkit, tmp_path) -> None:
    config = {
        "model_type": "llama",
        "hidden_size": 576,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "num_hidden_layers": 30,
        "rope_theta": 100000,
    }
    (tmp_path / "config.json").write_text(json.dumps(config), "utf-8")
    assert plan(attnkit, "--config", str(tmp_path))["bytes_per_token"] == 46080
    assert plan(attnkit, "--config", str(tmp_path / "config.json"), "--layers", "1")["bytes_per_token"] == 1536


def test_table_is_for_people(attnkit) -> None:
    output = attnkit("cache", "plan", *SMOLLM2, "--context", "8192", "--memory", "8GiB").output
    assert "one token of one sequence: 45 KiB (46080 B)" in output
    assert "8192 tokens of each: 360 MiB (377487360 B)" in output
    assert "8 GiB (8589934592 B) hold 163840 tokens of each" in output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "--kv-heads and --head-dim must be given, or --config"),
        (("--head-dim", "64"), "--kv-heads must be given, or --config"),
        ((*SMOLLM2, "--memory", "lots"), "--memory must be an amount such as 8GiB"),
        ((*SMOLLM2, "--dtype", "int4"), "dtype: "),
        ((*SMOLLM2, "--layout", "ring"), "attnkit: window must be given for layout 'ring'"),
        ((*SMOLLM2, "--layout", "paged", "--window", "4"), "window must not be given for layout 'paged'"),
        ((*SMOLLM2, "--codec", "int8/5"), "key_codec must be a multiple of block = 5"),
        (("--config", "/nowhere/config.json"), "No such file"),
    ],
)
def test_wrong_use_is_one_message(attnkit, arguments, message) -> None:
    result = attnkit("cache", "plan", *arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stdout == ""


def test_a_config_that_is_none_is_wrong_use(attnkit, tmp_path) -> None:
    (tmp_path / "config.json").write_text("[", "utf-8")
    result = attnkit("cache", "plan", "--config", str(tmp_path))
    assert result.exit_code == 2
    assert "--config" in result.stderr


@pytest.mark.parametrize(
    ("text", "amount"),
    [("1024", 1024), ("1KiB", 1024), ("1.5 kib", 1536), ("2G", 2 * 10**9), ("3MB", 3 * 10**6), ("8GiB", 8 * 2**30)],
)
def test_amounts_are_read(text, amount) -> None:
    assert parse_bytes(text) == amount


def test_amounts_are_written() -> None:
    assert format_bytes(1000) == "1000 B"
    assert format_bytes(1536) == "1.5 KiB (1536 B)"


@pytest.mark.parametrize("flag", ["--memory", "--context"])
def test_numbers_beyond_measure_are_wrong_use(attnkit, flag) -> None:
    result = attnkit("cache", "plan", "--kv-heads", "1", "--head-dim", "1", flag, "9" * 400)
    assert result.exit_code == 2
    assert result.exception is None or isinstance(result.exception, SystemExit)


@pytest.mark.parametrize("text", ["[" * 100_000, '{"model_type": ["a"]}', '{"model_type": "gemma2"}'])
def test_a_configuration_that_is_none_is_wrong_use(attnkit, tmp_path, text) -> None:
    path = tmp_path / "config.json"
    path.write_text(text)
    result = attnkit("cache", "plan", "--config", str(path))
    assert result.exit_code == 2
    assert f"--config {path}" in result.stderr
