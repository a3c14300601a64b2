"""Damaged model files: each is refused with the name of the file, wherever it was cut."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from attnkit.cli.app import app
from attnkit.models import ModelError, load_model

CUTS = [1, 4, 8, 16, 30, 200, 0.05, 0.2, 0.5, 0.9, -32, -1]
SHARES = [0.0, 0.0001, 0.01, 0.3, 0.7, 0.99]


@pytest.fixture
def directory(tmp_path, lab) -> Path:
    """Give a tiny model in Hugging Face layout, without a tokenizer."""
    config = lab.config()
    return lab.write_hf(tmp_path / "model", config, lab.arrays(config))


def cut(path: Path, where: float) -> int:
    """Cut a file at so many bytes, a share of them, or so many before its end."""
    data = path.read_bytes()
    stop = int(where * len(data)) if isinstance(where, float) else where % len(data)
    path.write_bytes(data[:stop])
    return stop


@pytest.mark.parametrize("where", CUTS)
def test_a_gguf_file_that_was_cut(world, tiny_model, where) -> None:
    stop = cut(tiny_model, where)
    world.refuses("", lambda w: load_model(tiny_model), ModelError, str(tiny_model), "cut short", f"at {stop}")
    result = CliRunner().invoke(app, ["generate", "hello", "--model", str(tiny_model)])
    assert (result.exit_code, result.stdout) == (2, "")
    assert "--model" in result.stderr


@pytest.mark.parametrize(
    ("content", "part"),
    [(b"", "cut short"), (b"GGUF", "cut short"), (b"It was a dark and stormy night.", "not a GGUF file")],
)
def test_a_file_that_is_no_model(world, tmp_path, content, part) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    world.refuses("", lambda w: load_model(path), ModelError, str(path), part)


def test_no_file(world, tmp_path) -> None:
    world.refuses("", lambda w: load_model(tmp_path / "no.gguf"), ModelError, "no.gguf", "No such file")
    world.refuses("", lambda w: load_model(tmp_path), ModelError, "config.json", "No such file")


def test_a_directory_without_its_parts(world, directory) -> None:
    (directory / "model.safetensors").rename(directory / "elsewhere")
    world.refuses("", lambda w: load_model(directory), ModelError, "model.safetensors", "No such file")
    (directory / "elsewhere").rename(directory / "model.safetensors")
    world.refuses("", lambda w: load_model(directory), ModelError, "tokenizer.json")


@pytest.mark.parametrize("where", SHARES)
def test_safetensors_that_were_cut(world, directory, where) -> None:
    cut(directory / "model.safetensors", where)
    world.refuses("", lambda w: load_model(directory), ModelError, str(directory / "model.safetensors"))


@pytest.mark.parametrize("where", [0.0, 0.1, 0.6, 0.99])
def test_a_config_that_was_cut(world, directory, where) -> None:
    cut(directory / "config.json", where)
    world.refuses("", lambda w: load_model(directory), ModelError, str(directory / "config.json"), "not JSON")


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"num_attention_heads": None}, ("num_attention_heads is missing",)),
        ({"num_hidden_layers": 0}, ("num_layers", "greater than 0")),
        ({"num_key_value_heads": 3}, ("num_heads=4", "num_kv_heads=3")),
        ({"hidden_act": "gelu"}, ("hidden_act is 'gelu'", "'silu'")),
        ({"rms_norm_eps": "small"}, ("rms_norm_eps", "'small'")),
        ({"num_hidden_layers": 3}, ("missing", "model.layers.2")),
        ({"vocab_size": 7}, ("wrong shape", "model.embed_tokens.weight", "[7, 64]")),
    ],
)
def test_a_config_that_does_not_fit(world, directory, lab, changes, parts) -> None:
    (directory / "config.json").write_text(json.dumps(lab.hf_config(lab.config(), **changes)))
    world.refuses("", lambda w: load_model(directory), ModelError, str(directory), *parts)


def test_a_shard_that_is_lost(world, tmp_path, lab) -> None:
    config = lab.config()
    folder = lab.write_hf(tmp_path / "shards", config, lab.arrays(config), shards=2)
    lost = sorted(folder.glob("model-*.safetensors"))[1]
    shutil.move(lost, tmp_path / "lost")
    world.refuses("", lambda w: load_model(folder), ModelError, str(lost), "No such file")
