"""The command line, and tiny random models in every form of file with a plain float64 decoder beside them.

Axes: ``T`` tokens, ``n`` hidden, ``H`` query heads, ``K`` key/value heads, ``D`` head size, ``V`` vocabulary.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFWriter, TokenType
from gguf.quants import quantize
from safetensors.numpy import save_file
from tokenizers import pre_tokenizers
from typer.testing import CliRunner, Result

from attnkit.cli.app import app
from attnkit.models import LlamaConfig, expected_shapes

Arrays = dict[str, np.ndarray[Any, Any]]
SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MERGES = ["h e", "l l", "he ll", "hell o", "Ġ w", "o r", "Ġw or", "l d", "1 2", "Ã ©", "u s", "us e", "use r"]
CHATML = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nBe brief<|im_end|>\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
_GGUF = {"embed": "token_embd", "norm": "output_norm", "head": "output", "q": "attn_q", "k": "attn_k", "v": "attn_v"}
_GGUF |= {"o": "attn_output", "attn_norm": "attn_norm", "mlp_norm": "ffn_norm"}
_GGUF |= {"gate": "ffn_gate", "up": "ffn_up", "down": "ffn_down"}
_HF = {"embed": "model.embed_tokens", "norm": "model.norm", "head": "lm_head", "attn_norm": "input_layernorm"}
_HF |= {"mlp_norm": "post_attention_layernorm"}
_HF |= {name: f"self_attn.{name}_proj" for name in "qkvo"} | {
    name: f"mlp.{name}_proj" for name in ("gate", "up", "down")
}


def vocabulary() -> list[str]:
    return [*SPECIALS, *sorted(pre_tokenizers.ByteLevel.alphabet()), *(merge.replace(" ", "") for merge in MERGES)]


def make_config(**changes: Any) -> LlamaConfig:
    fields = {
        "vocab_size": len(vocabulary()),
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_layers": 2,
        "num_heads": 4,
        "num_kv_heads": 2,
        "head_dim": 16,
        "rms_norm_eps": 1e-5,
        "rope_theta": 1000.0,
        "max_positions": 128,
        "tie_embeddings": True,
        "bos_id": 1,
        "eos_ids": (2,),
    }
    return LlamaConfig(**(fields | changes))


def make_arrays(config: LlamaConfig, seed: int = 0) -> Arrays:
    generator = np.random.default_rng(seed)
    return {
        name: generator.standard_normal(shape, np.float32) * (0.3 if len(shape) == 2 else 0.1) + (len(shape) == 1)
        for name, shape in expected_shapes(config).items()
    }


def interleaved(array: np.ndarray[Any, Any], head_dim: int) -> np.ndarray[Any, Any]:
    """Put the rows of each head in the order of GGUF: first half and second half in turn."""
    rows = []
    for head in range(0, len(array), head_dim):
        for pair in range(head_dim // 2):
            rows += [array[head + pair], array[head + pair + head_dim // 2]]
    return np.stack(rows)


def write_gguf(
    path: Path, config: LlamaConfig, arrays: Mapping[str, np.ndarray[Any, Any]], kind: str = "F32", **metadata: Any
) -> Path:
    writer = GGUFWriter(path, "llama")
    for key, value in (_gguf_metadata(config) | metadata).items():
        _add(writer, key, value)
    for name, array in arrays.items():
        part = name.rpartition(".")[2]
        stored = interleaved(array, config.head_dim) if part in "qk" else array
        target = _GGUF[part] if part == name else f"blk.{name.split('.')[1]}.{_GGUF[part]}"
        _add_tensor(writer, f"{target}.weight", stored, kind if array.ndim == 2 else "F32")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _gguf_metadata(config: LlamaConfig) -> dict[str, Any]:
    words = vocabulary()
    return {
        "llama.block_count": config.num_layers,
        "llama.context_length": config.max_positions,
        "llama.embedding_length": config.hidden_size,
        "llama.feed_forward_length": config.intermediate_size,
        "llama.attention.head_count": config.num_heads,
        "llama.attention.head_count_kv": config.num_kv_heads,
        "llama.rope.freq_base": config.rope_theta,
        "llama.attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        "llama.vocab_size": config.vocab_size,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": words,
        "tokenizer.ggml.token_type": [TokenType.CONTROL if word in SPECIALS else TokenType.NORMAL for word in words],
        "tokenizer.ggml.merges": MERGES,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.chat_template": CHATML,
    }


def _add(writer: GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    elif value is not None:
        writer.add_array(key, value)


def _add_tensor(writer: GGUFWriter, name: str, array: np.ndarray[Any, Any], kind: str) -> None:
    number = GGMLQuantizationType[kind]
    if kind in ("F32", "F16"):
        writer.add_tensor(name, array.astype(np.float32 if kind == "F32" else np.float16))
    else:
        writer.add_tensor(name, quantize(array, number), raw_dtype=number)


def hf_config(config: LlamaConfig, **changes: Any) -> dict[str, Any]:
    fields = {
        "model_type": "llama",
        "hidden_act": "silu",
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "rms_norm_eps": config.rms_norm_eps,
        "rope_theta": config.rope_theta,
        "max_position_embeddings": config.max_positions,
        "tie_word_embeddings": config.tie_embeddings,
        "bos_token_id": config.bos_id,
        "eos_token_id": list(config.eos_ids),
    }
    return fields | changes


def hf_name(name: str) -> str:
    part = name.rpartition(".")[2]
    target = _HF[part] if part == name else f"model.layers.{name.split('.')[1]}.{_HF[part]}"
    return f"{target}.weight"


def write_hf(
    folder: Path,
    config: LlamaConfig,
    arrays: Mapping[str, np.ndarray[Any, Any]],
    dtype: Any = np.float32,
    shards: int = 1,
) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(hf_config(config)))
    tensors = {hf_name(name): array.astype(dtype) for name, array in arrays.items()}
    if shards == 1:
        save_file(tensors, folder / "model.safetensors")
        return folder
    homes = {name: f"model-{number % shards + 1:05}.safetensors" for number, name in enumerate(tensors)}
    for file in set(homes.values()):
        save_file({name: array for name, array in tensors.items() if homes[name] == file}, folder / file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": homes}))
    return folder


def plain_logits(
    config: LlamaConfig, arrays: Mapping[str, np.ndarray[Any, Any]], ids: list[int]
) -> np.ndarray[Any, Any]:
    """Give logits ``[T, V]`` in float64, one head at a time, sharing no code with the model."""
    weights = {name: array.astype(np.float64) for name, array in arrays.items()}

    def norm(x: np.ndarray[Any, Any], weight: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + config.rms_norm_eps) * weight

    def turn(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        out, half = np.empty_like(x), config.head_dim // 2
        for position in range(len(x)):
            for pair in range(half):
                angle = position * config.rope_theta ** (-2 * pair / config.head_dim)
                z = complex(x[position, pair], x[position, pair + half]) * np.exp(1j * angle)
                out[position, pair], out[position, pair + half] = z.real, z.imag
        return out

    def attend(x: np.ndarray[Any, Any], at: str) -> np.ndarray[Any, Any]:
        heads = []
        for head in range(config.num_heads):
            shared = head * config.num_kv_heads // config.num_heads
            own, kept = (slice(h * config.head_dim, (h + 1) * config.head_dim) for h in (head, shared))
            query, key = turn(x @ weights[at + "q"][own].T), turn(x @ weights[at + "k"][kept].T)
            scores = np.where(np.tri(len(x), dtype=bool), query @ key.T / np.sqrt(config.head_dim), -np.inf)
            exps = np.exp(scores - scores.max(axis=-1, keepdims=True))
            heads.append(exps / exps.sum(axis=-1, keepdims=True) @ (x @ weights[at + "v"][kept].T))
        return np.concatenate(heads, axis=-1) @ weights[at + "o"].T

    x = weights["embed"][ids]
    for layer in range(config.num_layers):
        at = f"layers.{layer}."
        x = x + attend(norm(x, weights[at + "attn_norm"]), at)
        h = norm(x, weights[at + "mlp_norm"])
        gate = h @ weights[at + "gate"].T
        x = x + (gate / (1 + np.exp(-gate)) * (h @ weights[at + "up"].T)) @ weights[at + "down"].T
    return norm(x, weights["norm"]) @ weights["embed" if config.tie_embeddings else "head"].T


class Lab:
    """What tests make models with; under importlib mode they cannot import this file."""

    config = staticmethod(make_config)
    arrays = staticmethod(make_arrays)
    write_gguf = staticmethod(write_gguf)
    write_hf = staticmethod(write_hf)
    hf_config = staticmethod(hf_config)
    hf_name = staticmethod(hf_name)
    plain_logits = staticmethod(plain_logits)
    vocabulary = staticmethod(vocabulary)
    chatml = CHATML


@pytest.fixture(scope="session")
def lab() -> type[Lab]:
    return Lab


@pytest.fixture
def gguf_path(tmp_path: Path) -> Callable[..., Path]:
    """Write a tiny GGUF model; keywords are metadata."""

    def write(kind: str = "F32", *, tied: bool = True, **metadata: Any) -> Path:
        config = make_config(tie_embeddings=tied)
        return write_gguf(tmp_path / f"tiny-{kind}.gguf", config, make_arrays(config), kind, **metadata)

    return write


@pytest.fixture
def tiny_model(gguf_path: Callable[..., Path]) -> Path:
    """Give a tiny random model as a file, with 128 positions."""
    return gguf_path()


@pytest.fixture
def attnkit(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Run ``attnkit`` with some arguments; a traceback is a failure of the test."""
    monkeypatch.delenv("ATTNKIT_BACKEND", raising=False)

    def run(*arguments: str) -> Result:
        result = CliRunner().invoke(app, list(arguments))
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    return run
