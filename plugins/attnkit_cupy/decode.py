"""flash_decode: few query rows over many keys, which blocks share as splits and merge_splits joins.

Rows are folded: the queries of all query heads of a key/value head are rows of one matrix.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from attnkit import AttentionRequest, Reason
from attnkit_cupy import mma
from attnkit_cupy.call import needs_features
from attnkit_cupy.params import ELEMENT_NAMES, Params
from attnkit_cupy.runtime import Device, Launch, Runtime, ptr, shared_room
from attnkit_cupy.stored import StoredKind

MOST_ROWS: Final = {True: 64, False: 16}
"""Folded rows, with and without tensor cores, that are few: every 16, or 8, of them read all keys once more."""

KINDS: Final = ("float32", "float16", "bfloat16", "int8", "int4", "fp8")
"""What keys and values may be stored as."""

WAVES: Final = 2
"""Blocks for every multiprocessor that splits are to make."""

MERGE: Final = "merge_splits.cu"
_MERGED_ROWS = 4  # rows of a block of merge_splits, a warp each


class Tile(NamedTuple):
    """How flash_decode cuts a call; see ``mma.Tile``.

    Attributes
    ----------
    size
        Head size that D and E are padded to in shared memory.
    rows
        Folded rows of a block.
    warps
        Warps of a block, which share its keys.
    """

    size: int
    rows: int
    warps: int
    keys: int = 8

    def shared_bytes(self, kind: str, features: bool) -> int:
        """Give the shared memory of a block: queries, two stages of keys and values for each warp, what they found."""
        del features  # scores lie there in any case
        rows, found = shared_room(4 * self.rows * self.size), shared_room(4 * self.warps * self.rows)
        stages = shared_room(2 * self.warps * self.keys * _pitch(kind, self.size))
        return 2 * rows + 2 * stages + 3 * found + shared_room(4 * self.warps * self.rows * self.keys)

    def kernel(self, kind: str, features: bool) -> tuple[str, str]:
        """Give the source and the C++ expression of the kernel."""
        arguments = f"attn::TYPE_{kind.upper()}, {self.size}, {self.rows}, {self.warps}, {str(features).lower()}"
        return "flash_decode.cu", f"attn::flash_decode<{arguments}>"


class MmaTile(Tile):
    """The same of flash_decode_mma."""

    __slots__ = ()

    def shared_bytes(self, kind: str, features: bool) -> int:
        """Give the shared memory of a block."""
        del kind  # two bytes in any case
        queries, stages = 2 * self.rows * self.size, 4 * self.warps * self.keys * self.size
        output = 4 * self.rows * (self.size + 8)
        scores = 4 * self.warps * self.rows * self.keys if features else 0
        found, odd = shared_room(4 * self.warps * self.rows), shared_room(4 * self.warps * (self.keys + 1))
        return queries + max(stages, output) + stages + odd + 2 * found + scores

    def kernel(self, kind: str, features: bool) -> tuple[str, str]:
        """Give the source and the C++ expression of the kernel."""
        ctype = mma.CTYPES[kind]
        arguments = f"{ctype}, {self.size}, {self.keys}, {self.warps}, {str(features).lower()}"
        return "flash_decode_mma.cu", f"attn::flash_decode_mma<{arguments}>"


# Of those for a head size and a number of rows the first that the shared memory holds is taken.
TILES: Final = tuple(Tile(size, rows, warps) for size in (64, 128, 256) for rows in (1, 4, 8) for warps in (4, 2, 1))
MMA_TILES: Final = tuple(MmaTile(size, 16, warps, 16) for size in (64, 128, 192, 256) for warps in (4, 2, 1))


class Work(NamedTuple):
    """What tiles are chosen by, besides the device.

    Attributes
    ----------
    dtype, kind
        Element type of the query, and what keys and values are stored as.
    head_size
        The larger one of D and E.
    rows
        Folded rows of a key/value head.
    features
        As in ``attnkit_cupy.call.Call``.
    """

    dtype: str
    kind: str
    head_size: int
    rows: int
    features: bool

    def on_tensor_cores(self, device: Device) -> bool:
        """Tell whether tensor cores take it: numbers of 16 bits, stored in the query's type."""
        return self.kind == self.dtype and device.arch >= mma.OLDEST.get(self.kind, device.arch + 1)


def tiles_for(device: Device, work: Work) -> list[Tile]:
    """Give the tiles for a head size that the shared memory of a device holds."""
    known: tuple[Tile, ...] = MMA_TILES if work.on_tensor_cores(device) else TILES
    size = min((tile.size for tile in known if tile.size >= work.head_size), default=0)
    tiles = [tile for tile in known if tile.size == size]
    return [tile for tile in tiles if tile.shared_bytes(work.kind, work.features) <= device.smem_optin]


def tile_for(device: Device, work: Work) -> Tile:
    """Choose a tile by shapes and device alone, for a call that is not refused."""
    fitting = tiles_for(device, work)
    enough = (tile for tile in fitting if tile.rows >= work.rows)
    return next(enough, None) or max(fitting, key=lambda tile: tile.rows)


def splits_for(device: Device, tile: Tile, blocks: int, keys: int) -> int:
    """Choose into how many parts the keys are cut, by shapes and device alone: enough for every multiprocessor.

    ``blocks`` is the number of blocks of one split. A part of less than two tiles for each warp is not worth it.
    """
    return max(1, min(-(-WAVES * device.sm_count // blocks), keys // (2 * tile.warps * tile.keys)))


def refusals(request: AttentionRequest, kind: StoredKind, device: Device) -> list[Reason]:
    """Give every reason why the kernels leave a call to another one."""
    reasons, head_size = [], max(request.head_dim, request.value_dim)
    rows, features = request.query_length * request.group, needs_features(request)
    work = Work(request.dtype, kind.key, head_size, rows, features)
    most = MOST_ROWS[work.on_tensor_cores(device)]
    if rows > most:
        reasons.append(Reason("path", "query_length", f"<= {most} in all heads of a group", str(rows)))
    if kind.key != kind.value or kind.key not in KINDS:
        required = f"stored alike, as {' or '.join(KINDS)}"
        reasons.append(Reason("path", "kv_dtype", required, f"{kind.key} and {kind.value}"))
    elif not tiles_for(device, work):
        reasons.append(mma.refused_size(device, head_size))
    return reasons


def launch(runtime: Runtime, params: Params, features: bool) -> None:
    """Compute output and LSE of a call of at least one row; ``features`` as in ``attnkit_cupy.call.Call``."""
    batch, heads, kv_heads, queries, keys = (
        int(params.get(name)) for name in ("batch", "heads", "kv_heads", "queries", "keys")
    )
    dtype, kind = (ELEMENT_NAMES[int(params.get(name))] for name in ("query_type", "key_type"))
    head_size, rows = int(max(params.get("head_dim"), params.get("value_dim"))), heads // kv_heads * queries
    tile = tile_for(runtime.device, Work(dtype, kind, head_size, rows, features))
    tiles = -(-rows // tile.rows)
    splits = splits_for(runtime.device, tile, tiles * kv_heads * batch, keys)
    shape = (splits, batch, heads, queries) if splits > 1 else (0,)
    output = runtime.xp.empty((*shape, int(params.get("value_dim"))), runtime.xp.float32)
    lse = runtime.xp.empty(shape, runtime.xp.float32)
    params = params.copy()
    params.set(splits=splits, partial_output=ptr(output), partial_lse=ptr(lse))
    source, name = tile.kernel(kind, features)
    packed, grid = params.packed(), (tiles * splits, kv_heads, batch)
    Launch(grid, 32 * tile.warps, tile.shared_bytes(kind, features)).run(runtime, source, name, packed)
    if splits > 1:
        merging = Launch((-(-batch * heads * queries // _MERGED_ROWS),), 32 * _MERGED_ROWS)
        merging.run(runtime, MERGE, "attn::merge_splits", packed)


def _pitch(kind: str, size: int) -> int:
    """Give the bytes from one token to the next in shared memory; see ``pitch_of`` of ``codes.cuh``."""
    bits = {"float32": 32, "float16": 16, "bfloat16": 16, "int8": 8, "fp8": 8, "int4": 4}[kind]
    return -(-size * bits // 1024) * 128 + max(16, 2 * bits)
