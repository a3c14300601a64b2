"""flash_forward_simt: takes every call that the kernels take at all."""

from __future__ import annotations

from typing import NamedTuple

from attnkit import AttentionRequest, Reason
from attnkit_cupy.params import Params
from attnkit_cupy.runtime import Device, Launch, Runtime, shared_room
from attnkit_cupy.stored import StoredKind

SOURCE = "flash_forward_simt.cu"
THREADS = 256
FEW_ROWS = 16


class Tile(NamedTuple):
    """Sizes of a block: head size that D and E are padded to, folded rows, keys at a time."""

    head_dim: int
    rows: int
    keys: int

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory: queries, keys or values, weights, and the marks of odd values."""
        queries, tokens = 4 * self.rows * (self.head_dim + 4), 4 * self.keys * (self.head_dim + 4)
        weights, marks = 4 * self.rows * (self.keys + 4), 4 * self.keys
        return sum(shared_room(size) for size in (queries, tokens, weights, marks))

    def expression(self, *, features: bool) -> str:
        """Give the C++ name of the kernel."""
        sizes = f"{self.head_dim}, {self.rows}, {self.keys}"
        return f"attn::flash_forward_simt<{sizes}, {str(features).lower()}>"


TILES = (
    Tile(32, FEW_ROWS, 64),
    Tile(32, 64, 64),
    Tile(64, FEW_ROWS, 64),
    Tile(64, 64, 64),
    Tile(128, FEW_ROWS, 32),
    Tile(128, 64, 32),
    Tile(256, FEW_ROWS, 32),
    Tile(256, 32, 32),
)
"""Every tile that is built, small ones first; all but the last fit into the 64 KiB of sm_75."""


def refusals(request: AttentionRequest, kind: StoredKind, device: Device) -> list[Reason]:
    """Give every reason against a call that the kernels together take: there is none."""
    del request, kind, device
    return []


def tile_for(device: Device, head_size: int, rows: int) -> Tile:
    """Give the tile with the most rows that there is work for, of those that fit the head size and the device."""
    padded = min(tile.head_dim for tile in TILES if tile.head_dim >= head_size)
    fitting = [tile for tile in TILES if tile.head_dim == padded and tile.shared_bytes <= device.smem_optin]
    return fitting[0] if rows <= FEW_ROWS else fitting[-1]


def launch(runtime: Runtime, params: Params, features: bool) -> None:
    """Compute output and LSE of a call of at least one row; ``features`` as in ``attnkit_cupy.call.Call``."""
    rows = int(params.get("queries") * params.get("group"))
    tile = tile_for(runtime.device, int(max(params.get("head_dim"), params.get("value_dim"))), rows)
    name = tile.expression(features=features)
    grid = -(-rows // tile.rows), int(params.get("kv_heads")), int(params.get("batch"))
    Launch(grid, THREADS, tile.shared_bytes).run(runtime, SOURCE, name, params.packed())
