"""Counts the attention calls of a model, so that one that never makes any is noticed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple

import torch

from attnkit.integrations.transformers.errors import BypassedError


class _Count(NamedTuple):
    """Names of the modules of a model, and of those that made a call, in order."""

    names: dict[torch.nn.Module, str]
    calls: list[str]


_counts: ContextVar[tuple[_Count, ...]] = ContextVar("attnkit_counted", default=())


def note(module: torch.nn.Module) -> None:
    """Tell those who count that an attention module makes a call."""
    if torch.compiler.is_compiling():  # which cannot follow context variables
        return
    for count in _counts.get():
        if module in count.names:
            count.calls.append(count.names[module])


@contextmanager
def counted(model: torch.nn.Module) -> Iterator[list[str]]:
    """Collect the names of the modules of a model whose attention is computed here, one for each call.

    Not every model asks ``attn_implementation`` what to do: Bloom, MPT and Falcon, for example, compute attention on
    their own, and Bloom takes any name without a word. This makes such a model an error::

        with counted(model) as calls:
            model(**inputs)
        assert calls == ["model.layers.0.self_attn", "model.layers.1.self_attn"]

    Calls of a compiled model are not seen: count before compiling.

    Parameters
    ----------
    model
        Calls of its modules are counted, those of other models are not.

    Raises
    ------
    BypassedError
        At the end of the block, if the model ran and nothing was computed here.
    """
    runs: list[None] = []
    count = _Count({module: name for name, module in model.named_modules()}, [])
    hook = model.register_forward_pre_hook(lambda _module, _arguments: runs.append(None))
    token = _counts.set((*_counts.get(), count))
    try:
        yield count.calls
    finally:
        _counts.reset(token)
        hook.remove()
    if runs and not count.calls:
        raise BypassedError(_complaint(model))


def _complaint(model: torch.nn.Module) -> str:
    chosen = getattr(getattr(model, "config", None), "_attn_implementation", None)
    return (
        f"{type(model).__name__} ran with attn_implementation={chosen!r} and computed no attention in attnkit; either "
        "another implementation is set (model.set_attn_implementation('attnkit')), or this model does not use "
        "transformers' AttentionInterface and cannot be helped"
    )
