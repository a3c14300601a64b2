"""Makes names for ``attn_implementation=`` known to transformers: the function that attends, and the one that masks."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from transformers import AttentionInterface, AttentionMaskInterface

from attnkit.api import get_backend
from attnkit.backend import Backend
from attnkit.integrations.transformers.attention import attend
from attnkit.integrations.transformers.masks import make_mask

BackendChoice = str | Backend | Sequence[str | Backend] | None

# transformers looks for these inside a name, and then goes looking for kernels of its own.
_TAKEN = ("eager", "flash", "flex", "paged", "sdpa")
_FORM = re.compile(r"[A-Za-z][A-Za-z0-9_.-]*")

_registered: dict[str, Callable[..., Any]] = {}


def register(name: str = "attnkit", backend: BackendChoice = None) -> None:
    """Let models of transformers compute their attention here: ``attn_implementation=name``.

    Registering a name again replaces its backend.

    Parameters
    ----------
    name
        Letters, digits, ``_``, ``.`` and ``-``, without the words that transformers looks for: eager, flash, flex,
        paged, sdpa.
    backend
        As in ``attnkit.attention``: it fixes the backend of this name; by default every call chooses, so that
        ``attnkit.use_backend`` and ``ATTNKIT_BACKEND`` count.

    Raises
    ------
    ValueError
        If transformers would misread the name, or somebody else has registered it.
    BackendNotFoundError, BackendUnavailableError
        If the backend does not exist, or cannot run here.
    """
    _check_name(name)
    for choice in [] if backend is None else [backend] if isinstance(backend, str | Backend) else backend:
        if isinstance(choice, str):
            get_backend(choice.partition(":")[0])

    def attention(module: Any, query: Any, key: Any, value: Any, attention_mask: Any, **options: Any) -> Any:
        return attend(module, query, key, value, attention_mask, backend=backend, **options)

    _registered[name] = attention
    AttentionInterface.register(name, attention)
    AttentionMaskInterface.register(name, make_mask)


def _check_name(name: str) -> None:
    inside = [word for word in _TAKEN if word in name.lower()] if isinstance(name, str) else []
    if inside:
        raise ValueError(
            f"name must not contain {inside[0]!r}, which transformers takes for an implementation of its own, "
            f"got {name!r}; for example 'attnkit_numpy'"
        )
    if not isinstance(name, str) or not _FORM.fullmatch(name):
        raise ValueError(f"name must be a letter, then letters, digits, '_', '.' or '-', got {name!r}")
    known = AttentionInterface().get(name)
    if known is not None and known is not _registered.get(name):
        raise ValueError(f"name {name!r} is registered with transformers by somebody else; choose another one")
