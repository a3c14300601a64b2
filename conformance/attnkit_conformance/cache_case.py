"""CacheCase: a case whose keys and values go through a cache."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

import attnkit as ak
from attnkit_conformance.cache_layouts import CONTIGUOUS, Layout
from attnkit_conformance.cases import Case
from attnkit_conformance.subject import Answer, Subject

NATIVE = ("native", "native")


@dataclass(frozen=True, kw_only=True, eq=False)
class CacheCase(Case):
    """A case whose keys and values go through a cache: ``queries = keys`` tokens of each sequence.

    Attributes
    ----------
    layers
        Layers of the stack.
    layout
        Where the tokens go.
    max_length
        Tokens that a sequence may hold, or 0 where there is no such limit.
    codecs
        How keys and how values are stored.
    chunk
        How many tokens come, and how many queries are asked, at a time; 0 = it varies.
    ragged
        Sequences take different numbers of tokens, which takes ``lengths``.
    stored
        Element type of the cache, if it is not that of the queries.
    """

    layers: int = 1
    layout: Layout = CONTIGUOUS
    max_length: int = 0
    codecs: tuple[str, str] = NATIVE
    chunk: int = 0
    ragged: bool = False
    stored: str = ""

    def __str__(self) -> str:
        fixed = f"fixed{self.max_length}" if self.max_length else ""
        kind = fixed or "growing" if self.layout == CONTIGUOUS else f"{self.layout}{fixed}"
        codecs = "".join(f"-{name.replace('/', 'b')}" for name in dict.fromkeys(self.codecs)) if self.coded else ""
        ragged = "-ragged" if self.ragged else ""
        return f"{super().__str__()}-{kind}{codecs}{self.stored}{ragged}-by{self.chunk or 'any'}"

    @property
    def coded(self) -> bool:
        """Keys or values are not stored as they are."""
        return self.codecs != NATIVE

    @property
    def rows(self) -> int:
        """How many queries to ask at a time."""
        return self.chunk or 3

    @property
    def stored_dtype(self) -> str:
        """Element type of the cache."""
        return self.stored or self.dtype

    def codec(self, half: int) -> ak.Codec:
        """Give how keys (0) or values (1) are stored."""
        return ak.Codec.model_validate(self.codecs[half])

    def undeclared(self, capabilities: ak.Capabilities) -> tuple[str, ...]:
        """Give the fields that say no; a cache that cannot be stored is refused before anything else is known."""
        stored = {
            "dtypes": {self.stored_dtype, *self._merged_dtypes} <= capabilities.dtypes,
            "layouts": self.layout.name in capabilities.layouts,
            "codecs": {self.codec(half).kind for half in range(2)} <= capabilities.codecs,
        }
        missing = super().undeclared(capabilities)
        return tuple(code for code in stored if not stored[code]) or (("dtypes",) if "dtypes" in missing else missing)

    def features(self) -> Iterator[str]:
        """Give the fields that the case needs beside those that every case does."""
        yield from super().features()
        if self.ragged:
            yield "lengths"
        if any(dtype != self.stored_dtype for dtype in (self.dtype, *self._merged_dtypes)):
            yield "kv_dtype"
        if self.layout != CONTIGUOUS:
            yield "layouts"
        if self.coded:
            yield "codecs"
        if self.layout.name == "ring":
            yield "offsets"
        if self.layout.first:
            yield "lse"

    @property
    def _merged_dtypes(self) -> tuple[str, ...]:
        """The element type in which pinned tokens and the rest are attended to apart, before they are merged."""
        if not self.layout.first:
            return ()
        return (self.dtype if self.dtype == "float64" else "float32",)

    def config(self) -> dict[str, Any]:
        """Give the fields of the configuration of the cache."""
        given = {
            "num_layers": self.layers,
            "batch_size": self.batch,
            "num_kv_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "value_dim": self.width,
            "max_length": self.max_length or None,
            "dtype": self.stored_dtype,
        }
        if self.layout != CONTIGUOUS:
            given |= {"layout": self.layout.name, **self.layout.fields}
        if self.coded:
            given |= {"key_codec": self.codecs[0], "value_codec": self.codecs[1]}
        return given

    def call(self, subject: Subject) -> Answer:
        """Append, then attend; a refusal must leave the cache as it was (A18, C3)."""
        from attnkit_conformance.cache_model import History  # which is about cases

        history = History(subject, self)
        try:
            if not self.ragged or self.layout.name == "ring":  # which needs offsets once it has given something up
                history.extend(self.keys)
            if self.ragged:
                history.append(history.tokens(self.rows), np.arange(self.batch))
            return history.ask(history.queries(), self.options)
        except ak.UnsupportedError:
            history.check()
            raise
