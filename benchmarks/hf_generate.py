"""Generation: a real model through attnkit's torch backend against Hugging Face transformers with fused attention."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from statistics import median
from typing import Any, NamedTuple

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

THREADS = 2
TOKENS = 32
_TURNS = 9
DTYPES: tuple[DType, ...] = ("float32", "bfloat16")
PROMPT = "Once upon a time, in a small village by the sea, there was a wise old wizard."


class Run(NamedTuple):
    """The new tokens, seconds until the first of them, and seconds for all others."""

    tokens: list[int]
    prefill: float
    decode: float


Side = Callable[[], Run]


class Clock:
    """What ``generate`` hands tokens to as they come: it notes when."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def put(self, _tokens: object) -> None:
        """Note the prompt, or a token."""
        self.times.append(time.perf_counter())

    def end(self) -> None:
        """Nothing is left to do."""


def against_transformers() -> Iterator[Result]:
    """Greedy generation over that of ``transformers``, in turns: the same weights, prompt and threads."""
    for dtype in DTYPES:
        name = f"SmolLM2 {{}}, attnkit torch / transformers with SDPA, {dtype}, {THREADS} threads"
        try:
            mine, theirs = sides(dtype)
        except ImportError as error:
            note = f"{error.name} is absent: pip install 'attnkit[torch]' transformers"
            yield Result(name.format("decode step"), None, 1.0, note=note)
            continue
        ours, others = _in_turns(mine, theirs)
        agreed = sum(a == b for a, b in zip(ours[0].tokens, others[0].tokens, strict=True))
        fast, slow = (median(run.decode for run in runs) / (TOKENS - 1) for runs in (ours, others))
        note = f"{1 / fast:.1f} and {1 / slow:.1f} tokens/s now; {agreed} of {TOKENS} tokens equal"
        yield Result(name.format("decode step"), fast / slow, 1.0, note=note)
        ratio = median(run.prefill for run in ours) / median(run.prefill for run in others)
        yield Result(name.format("prefill"), ratio, None)


def _in_turns(mine: Side, theirs: Side) -> tuple[list[Run], list[Run]]:
    mine(), theirs()
    ours, others = [], []
    for turn in range(_TURNS):
        for side, runs in ((mine, ours), (theirs, others))[:: 1 if turn % 2 else -1]:
            runs.append(side())
    return ours, others


def sides(dtype: DType) -> tuple[Side, Side]:
    """Give both generators of the default model; ImportError without torch or transformers."""
    import torch
    import transformers  # noqa: F401  # asked for before the weights are read

    torch.set_num_threads(THREADS)
    file = GGUFFile(fetch_default_model())
    config = read_gguf_config(file)
    weights = gguf_weights(file, config)
    tokenizer = gguf_tokenizer(file.metadata, origin=str(file.path))
    prompt = tokenizer.encode(PROMPT)
    model = Llama(config, weights, backend="torch", dtype=dtype)
    return partial(_attnkit, model, tokenizer, prompt), partial(_transformers, hf_model(config, weights, dtype), prompt)


def _attnkit(model: Llama, tokenizer: Tokenizer, prompt: list[int]) -> Run:
    generation = generate(model, tokenizer, prompt, max_tokens=TOKENS, stop_ids=())
    tokens = list(generation)
    return Run(tokens, generation.stats.prefill_seconds, generation.stats.decode_seconds)


def _transformers(model: Any, prompt: list[int]) -> Run:
    import torch

    ids, clock, start = torch.tensor([prompt]), Clock(), time.perf_counter()
    options = {"do_sample": False, "max_new_tokens": TOKENS, "eos_token_id": None, "pad_token_id": 0}
    with torch.inference_mode():
        found = model.generate(ids, attention_mask=torch.ones_like(ids), streamer=clock, **options)
    first, last = clock.times[1], clock.times[-1]  # the prompt comes before them
    return Run(found[0, len(prompt) :].tolist(), first - start, last - first)


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
