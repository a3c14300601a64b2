"""What the commands that run a model share: its options, and loading it with an error that names the option."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn, cast

import typer

from attnkit.arrays import DTYPES
from attnkit.cli.output import WRONG_USE, console

if TYPE_CHECKING:
    from attnkit.backend import Backend
    from attnkit.config import DType
    from attnkit.models import Llama, Tokenizer
    from attnkit.tracing import Call

BackendOption = Annotated[
    str | None,
    typer.Option("--backend", help="Such as 'numpy' or 'numpy:tiled'; default: ATTNKIT_BACKEND, then numpy."),
]
DTypeOption = Annotated[
    str, typer.Option("--dtype", help=f"Element type of weights, cache and arithmetic: {', '.join(DTYPES)}.")
]
ModelOption = Annotated[
    Path | None,
    typer.Option(
        "--model",
        help="A GGUF file or a Hugging Face directory; default: SmolLM2-135M-Instruct, downloaded once (93 MB).",
    ),
]


def load(path: Path | None, backend: str | Backend | None, dtype: str) -> tuple[Llama, Tokenizer]:
    """Load a model and its tokenizer; wrong use where a path that was given holds none, or there is no such type."""
    if dtype not in DTYPES:
        wrong_use(f"--dtype must be one of {', '.join(DTYPES)}, got {dtype!r}")
    # Imported here, so that the command line starts without the extra `models`.
    from attnkit.models import ModelError, load_model

    try:
        return load_model(path, backend=backend, dtype=cast("DType", dtype))
    except ModelError as error:
        if path is None:
            raise
        wrong_use(f"--model: {error}")


def wrong_use(message: str) -> NoReturn:
    """Say in one line, never wrapped, what was typed wrongly, and exit with 2."""
    console(stderr=True).print(f"attnkit: {message}", markup=False)
    raise typer.Exit(WRONG_USE)


def paths_taken(calls: list[Call]) -> list[str]:
    """Give ``backend:path`` of traced calls, each once, in the order of their first use."""
    return list(dict.fromkeys(f"{call.backend}:{call.path}" for call in calls))
