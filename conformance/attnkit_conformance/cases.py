"""Case: one call as a value: its sizes, its options, its numbers, the truth about it, and what it asks of a backend.

Axes: ``B`` batch, ``H`` query heads, ``K`` key/value heads, ``T`` query length, ``S`` key length, ``D`` query/key head
size, ``E`` value head size.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

import ml_dtypes  # noqa: F401  # makes numpy.dtype("bfloat16") known
import numpy as np

import attnkit as ak
from attnkit import reference
from attnkit.tolerance import Arithmetic, Tolerance
from attnkit_conformance.draws import DRAWS
from attnkit_conformance.oracle import tolerance_of, truth_of

if TYPE_CHECKING:
    from attnkit_conformance.subject import Answer, Subject

Array = np.ndarray[Any, Any]
Arrays = tuple[Array, Array, Array]
AnyCase = TypeVar("AnyCase", bound="Case")
DTYPES: Final = ("float32", "float64", "bfloat16", "float16")
OTHER_DTYPES: Final = DTYPES[1:]  # beside the one that cases have by themselves
_SCORE_TERMS: Final = ("bias", "alibi", "softcap", "sinks")
_PLACES: Final = {
    "query_lengths": "lengths",
    "kv_lengths": "lengths",
    "query_offset": "offsets",
    "key_offset": "offsets",
}
_MASK_KINDS: Final = ("window", "prefix", "chunked", "documents", "dense")


@dataclass(frozen=True, kw_only=True, eq=False)
class Case:
    """One call of ``attention``.

    Attributes
    ----------
    label
        What it is about, in a word or two.
    batch, heads, kv_heads, queries, keys
        ``B``, ``H``, ``K``, ``T``, ``S``.
    head_dim, value_dim
        ``D`` and ``E``, 0 for ``E = D``.
    dtype
        Element type of query, key and value.
    pinned
        ``"dtype"`` and ``"head_dim"`` where the case is about them. Otherwise they are wishes: ``on`` moves them to
        the nearest that a backend declares.
    draw
        Name of the distribution, see ``attnkit_conformance.draws``.
    options
        Keyword arguments of ``attention``, arrays as NumPy arrays.
    lse
        The log-sum-exp must be given too; otherwise it is looked at where the backend declares it.
    seed
        The seed of the run.
    """

    label: str
    batch: int = 2
    heads: int = 2
    kv_heads: int = 2
    queries: int = 6
    keys: int = 6
    head_dim: int = 16
    value_dim: int = 0
    dtype: str = "float32"
    pinned: tuple[str, ...] = ()
    draw: str = "normal"
    options: Mapping[str, Any] = field(default_factory=dict)
    lse: bool = False
    seed: int = 0

    def __str__(self) -> str:
        sizes = f"b{self.batch}h{self.heads}k{self.kv_heads}t{self.queries}s{self.keys}d{self.head_dim}"
        value = f"e{self.value_dim}" if self.value_dim else ""
        draw = "" if self.draw == "normal" else f"-{self.draw}"
        return f"{self.label}{draw}-{sizes}{value}-{self.dtype}"

    @property
    def width(self) -> int:
        """Value head size ``E``."""
        return self.value_dim or self.head_dim

    @property
    def output_shape(self) -> tuple[int, int, int, int]:
        """``[B, H, T, E]``."""
        return self.batch, self.heads, self.queries, self.width

    @cached_property
    def arrays(self) -> Arrays:
        """Query, key and value, read-only, in the element type of the case."""
        rng = self.rng("arrays")
        query = (self.batch, self.heads, self.queries, self.head_dim)
        key = (self.batch, self.kv_heads, self.keys, self.head_dim)
        return self.holding(DRAWS[self.draw](rng, query, key, (*key[:3], self.width))).arrays

    def rng(self, purpose: str) -> np.random.Generator:
        """Give random numbers of this case for one purpose; others with every seed of the run."""
        return np.random.default_rng([self.seed, zlib.crc32(f"{purpose} of {self}".encode())])

    @cached_property
    def truth(self) -> reference.Truth:
        """What the oracle gives."""
        return truth_of(*self.arrays, self.options)

    @property
    def shown(self) -> Array:
        """Who sees whom, ``[B, H, T, S]``."""
        return self.truth.problem.shown

    @property
    def seeing(self) -> Array:
        """Rows that see any key, ``[B, H, T]``."""
        return np.asarray(self.shown.any(axis=-1))

    def tolerance(self, numerics: Arithmetic) -> Tolerance:
        """Give how far a backend of these numerics may be from the truth."""
        return tolerance_of(self.truth, numerics)

    def holding(self, arrays: Iterable[Array]) -> Self:
        """Give the same case with other numbers, converted to its element type."""
        other = replace(self)
        other.__dict__["arrays"] = tuple(_frozen(array.astype(np.dtype(self.dtype))) for array in arrays)
        return other

    def on(self, capabilities: ak.Capabilities) -> Self:
        """Move what is not pinned to the nearest that a backend declares."""
        dtype, head_dim = self.dtype, self.head_dim
        if "dtype" not in self.pinned and dtype not in capabilities.dtypes:
            dtype = next((name for name in DTYPES if name in capabilities.dtypes), dtype)
        if "head_dim" not in self.pinned:
            head_dim = _nearest(head_dim, capabilities.head_dims)
        if (dtype, head_dim) == (self.dtype, self.head_dim):
            return self
        moved: Self = _moved(self, dtype, head_dim)
        return moved

    def undeclared(self, capabilities: ak.Capabilities) -> tuple[str, ...]:
        """Give the fields of the capabilities that say no to the case; empty where it must be answered."""
        sizes, limit = capabilities.head_dims, capabilities.max_key_length
        refused = {
            "dtypes": self.dtype not in capabilities.dtypes,
            "head_dims": self.head_dim not in sizes or self.width not in sizes,
            "max_key_length": limit is not None and self.keys > limit,
        }
        refused |= {code: not getattr(capabilities, code) for code in self.features()}
        return tuple(code for code, says_no in refused.items() if says_no)

    def features(self) -> Iterator[str]:
        """Give the fields that are simply yes or no, as the case needs them."""
        if self.heads != self.kv_heads:
            yield "gqa"
        if self.width != self.head_dim:
            yield "value_dim"
        if self.lse:
            yield "lse"
        for option in self.options:
            if option in _SCORE_TERMS:
                yield option
            elif option in _PLACES:
                yield _PLACES[option]
        mask = self.options.get("mask")
        yield from (kind for kind in _MASK_KINDS if mask is not None and kind in {term[0] for term in mask.terms})

    def askable(self, subject: Subject) -> bool:
        """Tell whether a backend that does not declare what the case needs can be asked at all, so as to refuse."""
        del subject
        return True

    def call(self, subject: Subject) -> Answer:
        """Ask a backend."""
        return subject.attention(self.arrays, self.options, lse=self.lse or subject.capabilities.lse)


def each_dtype(cases: Iterable[AnyCase], dtypes: Iterable[str] = DTYPES) -> list[AnyCase]:
    """Give every case in every element type."""
    return [replace(case, dtype=dtype, pinned=(*case.pinned, "dtype")) for case in cases for dtype in dtypes]


def plain(array: Array) -> Array:
    """Give an array as float64."""
    return np.asarray(array, np.float64)


@lru_cache(maxsize=4096)
def _moved(case: AnyCase, dtype: str, head_dim: int) -> AnyCase:
    return replace(case, dtype=dtype, head_dim=head_dim)


def _nearest(size: int, sizes: ak.Sizes) -> int:
    most = size if sizes.most is None else min(size, sizes.most)
    down = max(most, sizes.least) // sizes.multiple * sizes.multiple
    return down if down >= sizes.least else down + sizes.multiple


def _frozen(array: Array) -> Array:
    array.flags.writeable = False
    return array
