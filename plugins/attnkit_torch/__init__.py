"""The first-party torch backend; ``plugin.py`` is what attnkit discovers."""

from __future__ import annotations

__all__ = ["TorchMultiHeadAttention"]


def __getattr__(name: str) -> object:
    """Import torch no sooner than somebody asks for what needs it."""
    if name == "TorchMultiHeadAttention":
        from attnkit_torch.multihead import TorchMultiHeadAttention

        return TorchMultiHeadAttention
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
