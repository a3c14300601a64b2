"""Codecs that are used wrongly on purpose: which scale goes with which codes, and what is encoded twice.

Axes: ``B`` sequences, ``K`` key/value heads, ``T`` new tokens, ``n`` stored tokens, ``D`` features of a token, ``F``
features of a plane.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import ml_dtypes
import numpy as np

import attnkit as ak
from attnkit.cache.layout import Room, Rows
from attnkit.codec import Codec
from attnkit.pages import Planes
from attnkit_conformance.selftest.faults import Mutant
from attnkit_conformance.selftest.faulty_caches import Cache
from attnkit_conformance.selftest.faulty_caches import cache_fault as fault
from attnkit_conformance.selftest.own_faults import CropsTooMuch
from attnkit_conformance.selftest.plain import Array, Plain, unregistered


@dataclass(frozen=True)
class Coded(Planes):
    """Planes of codes that a subclass gets wrong; ``page`` tokens lie in a page of them."""

    page: int = 1


class MidDropped(Coded):
    """Forgets where the middle of a block is."""

    def decode(self, arrays: Iterable[Array]) -> Array:
        codes, scales = arrays
        if self.codec.kind in ("int8", "int4"):
            scales = np.array(scales)
            scales[..., 1::2] = 0
        return super().decode((codes, scales))


class NibblesSwapped(Coded):
    """Takes the high half of a byte for the even feature."""

    def decode(self, arrays: Iterable[Array]) -> Array:
        codes, scales = arrays
        return super().decode(((codes >> 4) | (codes << 4) if self.codec.kind == "int4" else codes, scales))


class ThroughBfloat16(Coded):
    """Rounds what it has decoded to bfloat16, then to the element type of the cache."""

    def decode(self, arrays: Iterable[Array]) -> Array:
        decoded = super().decode(arrays)
        return decoded.astype(ml_dtypes.bfloat16).astype(decoded.dtype)


class FirstPageScales(Coded):
    """Takes the scales of the first page for those of every page."""

    def read(self, backend: Any, slots: Array) -> Array:
        codes, scales = (backend.gather(array, slots) for array in self.arrays)
        return self.decode((codes, scales[:, :, np.arange(slots.shape[1]) % self.page]))


class CodesWrap(Coded):
    """Has 128 levels above zero, of which a signed byte holds 127."""

    def write(self, backend: Any, slots: Array, tokens: Array) -> None:
        codes, scales = self.codec.encode(tokens, self.dtype)
        if self.codec.kind == "int8":
            codes = np.rint(codes * (128 / 127)).astype(np.int64).astype(np.int8)
            scales[..., ::2] *= np.float32(127 / 128)
        for array, coded in zip(self.arrays, (codes, scales), strict=True):
            backend.write(array, slots, coded)


class HeadsShareAScale(Coded):
    """Measures all heads of a token together."""

    def write(self, backend: Any, slots: Array, tokens: Array) -> None:
        for array, coded in zip(self.arrays, encoded_together(self, tokens, 1), strict=True):
            backend.write(array, slots, coded)


def encoded_together(planes: Planes, tokens: Array, axis: int) -> tuple[Array, Array]:
    """Encode tokens ``[B, K, T, D]`` with one scale along an axis: codes and scales ``[B, K, T, F]``."""
    moved = np.moveaxis(tokens, axis, 2)
    lead, (count, size) = moved.shape[:2], moved.shape[2:]
    codes, scales = Codec(kind=planes.codec.kind).encode(moved.reshape(*lead, 1, count * size), planes.dtype)
    repeated = np.broadcast_to(scales, (*lead, count, scales.shape[-1]))
    blocks = planes.arrays[1].shape[2] // scales.shape[-1]
    both = codes.reshape(*lead, count, codes.shape[-1] // max(count, 1)), np.tile(repeated, (1, 1, 1, blocks))
    codes, scales = (np.moveaxis(array, 2, axis) for array in both)
    return codes, scales


def coded(kind: type[Coded]) -> Cache:
    """Give a cache whose codes are written or read wrongly."""

    def recast(pages: Sequence[ak.Pages]) -> list[ak.Pages]:
        return [replace(one, key=half(one, one.key), value=half(one, one.value)) for one in pages]

    def half(pages: ak.Pages, planes: Planes) -> Planes:
        if planes.is_native:
            return planes
        return kind(planes.arrays, planes.codec, planes.size, planes.dtype, pages.page_size)

    class Recast(ak.KVCache):
        @property
        def pages(self) -> Sequence[ak.Pages]:
            held: Sequence[ak.Pages] = super().pages  # type: ignore[safe-super]  # a layout has them
            return recast(held)

        @contextmanager
        def reserve(self, layer: int, taken: Array) -> Iterator[Room]:
            with super().reserve(layer, taken) as room:  # type: ignore[safe-super]  # a layout has it
                yield Room(recast(room.pages), room.table)

    return Recast


class KeyScales(Plain):
    """Attends to values with the scales of the keys."""

    def attend_pages(
        self, query: Array, pages: ak.Pages, table: ak.SlotTable, operands: ak.Operands, plan: ak.Plan
    ) -> ak.AttentionOutput:
        if not pages.value.is_native and pages.key.codec == pages.value.codec:
            arrays = pages.value.arrays[0], pages.key.arrays[1]
            pages = replace(pages, value=replace(pages.value, arrays=arrays))
        return super().attend_pages(query, pages, table, operands, plan)


class MovesDecoded(ak.KVCache):
    """Decodes what it moves, and encodes it again."""

    def _arrange(self, source: Rows) -> None:
        super()._arrange(source)
        for layer, pages in zip(self, self.pages, strict=True):
            slots = layer.table().slots
            for planes in (pages.key, pages.value):
                planes.write(self.backend, slots, planes.read(self.backend, slots))


class OneScaleForAll(ak.CacheLayer):
    """Keeps one scale for all tokens of a head, which every append computes anew."""

    def append(self, key: Array, value: Array, *, lengths: Any = None) -> None:
        super().append(key, value, lengths=lengths)
        backend, slots = self._cache.backend, self.table().slots
        for planes in (self._cache.pages[self.number].key, self._cache.pages[self.number].value):
            if not planes.is_native and slots.size:
                for array, both in zip(
                    planes.arrays, encoded_together(planes, planes.read(backend, slots), 2), strict=True
                ):
                    backend.write(array, slots, both)


CODEC_MUTANTS = [
    fault("zero_point_dropped", "TestCodecs::test_within_the_bound", coded(MidDropped)),
    fault("nibbles_swapped", "TestCodecs::test_within_the_bound", coded(NibblesSwapped)),
    fault("codes_wrap", "TestCodecs::test_within_the_bound", coded(CodesWrap)),
    fault("heads_share_a_scale", "TestCodecs::test_within_the_bound", coded(HeadsShareAScale)),
    fault("decoded_through_bfloat16", "TestCodecs::test_within_the_bound", coded(ThroughBfloat16)),
    fault("scales_of_the_first_page", "TestCodecs::test_one_huge_token_disturbs_no_other", coded(FirstPageScales)),
    fault("scale_after_every_append", "TestCodecs::test_one_huge_token_disturbs_no_other", layer=OneScaleForAll),
    fault("moved_tokens_encoded_again", "TestCodecs::test_nothing_is_encoded_twice", MovesDecoded),
    Mutant("codes_cropped_too_far", "TestCodecs::test_a_cut_counts_what_it_holds",
           lambda: unregistered(CropsTooMuch())),
    fault("values_with_the_scales_of_keys", "TestCodecs::test_attention_within_the_stated_bound", backend=KeyScales),
]  # fmt: skip
