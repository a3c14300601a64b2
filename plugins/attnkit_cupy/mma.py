"""flash_forward_mma: FlashAttention on tensor cores, for float16 and bfloat16 that are stored as they are.

A block computes folded rows: the queries of all query heads of a key/value head are rows of one matrix.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from attnkit import AttentionRequest, Reason
from attnkit_cupy.call import needs_features
from attnkit_cupy.params import ELEMENT_NAMES, Params
from attnkit_cupy.runtime import Device, Launch, Runtime, shared_room
from attnkit_cupy.stored import StoredKind

SOURCE: Final = "flash_forward_mma.cu"
OLDEST: Final = {"float16": 75, "bfloat16": 80}
"""The architectures that tensor cores take each element type from."""

CTYPES: Final = {"float16": "attn::f16", "bfloat16": "attn::bf16"}


class Tile(NamedTuple):
    """How one kernel cuts the matrix of scores.

    Attributes
    ----------
    size
        Head size that D and E are padded to in shared memory.
    rows, keys
        Folded rows of a block, and keys that it looks at at a time.
    """

    size: int
    rows: int
    keys: int

    @property
    def threads(self) -> int:
        """Threads of a block: a warp for every 16 rows."""
        return 2 * self.rows

    def shared_bytes(self, features: bool) -> int:
        """Give the shared memory of a block: queries, two stages of keys and of values, scores for the options."""
        queries, stage = 2 * self.rows * self.size, 2 * self.keys * self.size
        scores = 4 * self.rows * self.keys if features else 0
        return queries + 4 * stage + shared_room(4 * (self.keys + 1)) + scores

    def kernel(self, ctype: str, features: bool) -> str:
        """Give the C++ expression of the kernel."""
        arguments = f"{ctype}, {self.size}, {self.rows}, {self.keys}, {str(features).lower()}"
        return f"attn::flash_forward_mma<{arguments}>"


# In order of preference for every size: the first that the shared memory of the device holds is taken. More rows read
# keys less often; more keys cost registers, of which the output takes size / 2.
TILES: Final = (
    Tile(64, 128, 64),
    Tile(64, 64, 64),
    Tile(128, 128, 64),
    Tile(128, 64, 64),
    Tile(128, 64, 32),
    Tile(192, 64, 64),
    Tile(192, 64, 32),
    Tile(192, 64, 16),
    Tile(256, 64, 32),
    Tile(256, 64, 16),
    Tile(256, 32, 16),
)
# Scores wait in shared memory while the options are applied one by one, which takes registers too.
FEATURES_TILES: Final = (
    Tile(64, 64, 64),
    Tile(128, 64, 32),
    Tile(192, 64, 32),
    Tile(192, 64, 16),
    Tile(256, 64, 32),
    Tile(256, 32, 16),
)


def tiles_for(device: Device, head_size: int, features: bool) -> list[Tile]:
    """Give the tiles for a head size, the larger one of D and E, that the shared memory of a device holds."""
    tiles = [tile for tile in (FEATURES_TILES if features else TILES) if tile.size >= head_size]
    size = min((tile.size for tile in tiles), default=0)
    return [tile for tile in tiles if tile.size == size and tile.shared_bytes(features) <= device.smem_optin]


def tile_for(device: Device, head_size: int, rows: int, features: bool) -> Tile:
    """Choose a tile by shapes and device alone, for a call that is not refused."""
    fitting = tiles_for(device, head_size, features)
    full = (tile for tile in fitting if tile.rows < 2 * rows)  # half of a tile may stay empty, no more
    return next(full, None) or min(fitting, key=lambda tile: tile.rows)


def refusals(request: AttentionRequest, kind: StoredKind, device: Device) -> list[Reason]:
    """Give every reason why the kernel leaves a call to another one."""
    dtype, head_size, reasons = request.dtype, max(request.head_dim, request.value_dim), []
    if dtype not in OLDEST:
        reasons.append(Reason("path", "dtype", " or ".join(OLDEST), dtype))
    elif device.arch < OLDEST[dtype]:
        reasons.append(Reason("path", "device", f"sm_{OLDEST[dtype]} or later for {dtype}", f"sm_{device.arch}"))
    if not (kind.native and kind.dtype == dtype):
        reasons.append(Reason("path", "kv_dtype", f"stored as {dtype}", f"{kind.key} and {kind.value}"))
    if not tiles_for(device, head_size, needs_features(request)):
        reasons.append(refused_size(device, head_size))
    return reasons


def refused_size(device: Device, head_size: int) -> Reason:
    """Give the reason where no tile fits."""
    return Reason("path", "head_dim", f"within {device.smem_optin} bytes of shared memory", str(head_size))


def launch(runtime: Runtime, params: Params, features: bool) -> None:
    """Compute output and LSE of a call of at least one row; ``features`` as in ``attnkit_cupy.call.Call``."""
    rows, head_size = params.get("queries") * params.get("group"), max(params.get("head_dim"), params.get("value_dim"))
    tile = tile_for(runtime.device, int(head_size), int(rows), features)
    name = tile.kernel(CTYPES[ELEMENT_NAMES[int(params.get("query_type"))]], features)
    grid = -(-int(rows) // tile.rows), int(params.get("kv_heads")), int(params.get("batch"))
    Launch(grid, tile.threads, tile.shared_bytes(features)).run(runtime, SOURCE, name, params.packed())
