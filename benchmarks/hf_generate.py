"""Generation: a real model through attnkit's torch backend against Hugging Face transformers with fused attention."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from attnkit.config import DType
from attnkit.models import (
    GGUFFile,
    Llama,
    LlamaConfig,
    Tokenizer,
    Weights,
    fetch_default_model,
    generate,
    gguf_tokenizer,
    gguf_weights,
    read_gguf_config,
)
from attnkit.models.weights_hf import hf_name
from benchmarks.results import Result
from benchmarks.timing import compare

THREADS = 2
TOKENS = 24
DTYPES: tuple[DType, ...] = ("float32", "bfloat16")
START = "Once upon a time"


Side = Callable[[], list[int]]


def against_transformers() -> Iterator[Result]:
    """Greedy generation over that of ``transformers``, in turns: the same weights, start and threads."""
    for dtype in DTYPES:
        name = f"SmolLM2 generates {TOKENS} tokens, attnkit torch / transformers with SDPA, {dtype}, {THREADS} threads"
        try:
            mine, theirs = sides(dtype)
        except ImportError as error:
            yield Result(name, None, 1.0, note=f"{error.name} is absent: pip install 'attnkit[torch]' transformers")
            continue
        agreed = sum(a == b for a, b in zip(mine(), theirs(), strict=True))
        found = compare(mine, theirs, turns=7)
        rates = f"{TOKENS / found.candidate:.1f} and {TOKENS / found.baseline:.1f} tokens/s now"
        note = f"{rates}, {agreed} tokens equal, baseline spread {found.spread:.0%}, round {found.rounds}"
        yield Result(name, found.ratio, 1.0, note=note)


def sides(dtype: DType) -> tuple[Side, Side]:
    """Give both generators of the default model; ImportError without torch or transformers.

    They start from one token, so that all that is timed is steps of one token.
    """
    import torch
    import transformers  # noqa: F401  # asked for before the weights are read

    torch.set_num_threads(THREADS)
    file = GGUFFile(fetch_default_model())
    config = read_gguf_config(file)
    weights = gguf_weights(file, config)
    tokenizer = gguf_tokenizer(file.metadata, origin=str(file.path))
    start = tokenizer.encode(START)[:1]
    model = Llama(config, weights, backend="torch", dtype=dtype)
    return partial(_attnkit, model, tokenizer, start), partial(_transformers, hf_model(config, weights, dtype), start)


def _attnkit(model: Llama, tokenizer: Tokenizer, prompt: list[int]) -> list[int]:
    return list(generate(model, tokenizer, prompt, max_tokens=TOKENS, stop_ids=()))


def _transformers(model: Any, prompt: list[int]) -> list[int]:
    import torch

    ids = torch.tensor([prompt])
    options = {"do_sample": False, "max_new_tokens": TOKENS, "eos_token_id": None, "pad_token_id": 0}
    with torch.inference_mode():
        found = model.generate(ids, attention_mask=torch.ones_like(ids), **options)
    tokens: list[int] = found[0, len(prompt) :].tolist()
    return tokens


def hf_model(config: LlamaConfig, weights: Weights, dtype: DType) -> Any:
    """Give transformers' model with these weights, in memory: nothing is fetched."""
    import torch
    import transformers

    torch_dtype = getattr(torch, dtype)
    model = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=config.vocab_size,
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            num_hidden_layers=config.num_layers,
            num_attention_heads=config.num_heads,
            num_key_value_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            rms_norm_eps=config.rms_norm_eps,
            rope_parameters={"rope_type": "default", "rope_theta": config.rope_theta},
            max_position_embeddings=config.max_positions,
            tie_word_embeddings=config.tie_embeddings,
            attn_implementation="sdpa",
        )
    )
    arrays = {hf_name(name): np.array(weights.read(name), np.float32) for name in weights.shapes}
    if config.tie_embeddings:
        arrays["lm_head.weight"] = arrays["model.embed_tokens.weight"]
    model.load_state_dict({name: torch.from_numpy(array) for name, array in arrays.items()})
    return model.to(torch_dtype).eval()
