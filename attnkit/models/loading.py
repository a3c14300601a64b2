"""One door to every model: the default one, a GGUF file, or a Hugging Face directory."""

from __future__ import annotations

from os import PathLike
from pathlib import Path

from attnkit.backend import Backend
from attnkit.config import DType
from attnkit.models.errors import ModelError
from attnkit.models.fetch import fetch_default_model
from attnkit.models.gguf_file import GGUFFile
from attnkit.models.llama import Llama
from attnkit.models.tokenizer import Tokenizer, gguf_tokenizer, hf_tokenizer
from attnkit.models.weights_gguf import gguf_weights, read_gguf_config
from attnkit.models.weights_hf import hf_weights, read_hf_config


def load_model(
    path: str | PathLike[str] | None = None, *, backend: str | Backend | None = None, dtype: DType = "float32"
) -> tuple[Llama, Tokenizer]:
    """Load a model and its tokenizer.

    Parameters
    ----------
    path
        A GGUF file or a Hugging Face directory; ``None`` is SmolLM2-135M-Instruct, fetched once.
    backend
        A backend, its name, or that of one of its paths; default: context, environment, ``"numpy"``.
    dtype
        Element type to compute in: ``"float16"``, ``"bfloat16"``, ``"float32"`` or ``"float64"``.

    Raises
    ------
    ModelError
        If the model cannot be fetched or read, or is of a kind that cannot be run; the message says which file and why.
    BackendNotFoundError, BackendUnavailableError
        If the backend does not exist or cannot run here.
    """
    where = fetch_default_model() if path is None else Path(path)
    model, tokenizer = (_from_directory if where.is_dir() else _from_gguf)(where, backend, dtype)
    if tokenizer.vocab_size > model.config.vocab_size:
        raise ModelError(
            f"{where}: the tokenizer has {tokenizer.vocab_size} tokens, the model only {model.config.vocab_size}"
        )
    return model, tokenizer


def _from_gguf(path: Path, backend: str | Backend | None, dtype: DType) -> tuple[Llama, Tokenizer]:
    file = GGUFFile(path)
    config = read_gguf_config(file)
    weights = gguf_weights(file, config)
    # The tokenizer comes first: it is quick to build, and quick to refuse.
    tokenizer = gguf_tokenizer(file.metadata, origin=str(path))
    return Llama(config, weights, backend=backend, dtype=dtype), tokenizer


def _from_directory(folder: Path, backend: str | Backend | None, dtype: DType) -> tuple[Llama, Tokenizer]:
    config = read_hf_config(folder)
    weights = hf_weights(folder, config)
    tokenizer = hf_tokenizer(folder, stop_ids=config.eos_ids)
    return Llama(config, weights, backend=backend, dtype=dtype), tokenizer
