"""Llama-family models on attnkit: real input for every backend (extra ``models``)."""

from attnkit.models import _extra as _extra  # first: it says what is not installed
from attnkit.models.batch_generation import BatchGeneration, BatchStats, generate_batch
from attnkit.models.batching import ContinuousBatch
from attnkit.models.chat import ChatML
from attnkit.models.config import LlamaConfig
from attnkit.models.errors import MissingExtraError, ModelError
from attnkit.models.fetch import cache_dir, fetch_default_model
from attnkit.models.generation import Generation, GenerationStats, generate, greedy, prefill, sampler
from attnkit.models.gguf_file import GGUFFile, GGUFTensor
from attnkit.models.llama import Llama
from attnkit.models.loading import load_model
from attnkit.models.requests import Event, Request
from attnkit.models.scoring import Score, score
from attnkit.models.speculation import PromptLookup, Speculation, SpeculationStats, speculate
from attnkit.models.tokenizer import Tokenizer, gguf_tokenizer, hf_tokenizer
from attnkit.models.weights import Weights, expected_shapes
from attnkit.models.weights_gguf import gguf_weights, read_gguf_config
from attnkit.models.weights_hf import hf_weights, read_hf_config

__all__ = [
    "BatchGeneration",
    "BatchStats",
    "ChatML",
    "ContinuousBatch",
    "Event",
    "GGUFFile",
    "GGUFTensor",
    "Generation",
    "GenerationStats",
    "Llama",
    "LlamaConfig",
    "MissingExtraError",
    "ModelError",
    "PromptLookup",
    "Request",
    "Score",
    "Speculation",
    "SpeculationStats",
    "Tokenizer",
    "Weights",
    "cache_dir",
    "expected_shapes",
    "fetch_default_model",
    "generate",
    "generate_batch",
    "gguf_tokenizer",
    "gguf_weights",
    "greedy",
    "hf_tokenizer",
    "hf_weights",
    "load_model",
    "prefill",
    "read_gguf_config",
    "read_hf_config",
    "sampler",
    "score",
    "speculate",
]
