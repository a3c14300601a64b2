"""attnkit: one attention contract, any backend, and proof that they agree."""

from attnkit.api import (
    attention,
    attention_packed,
    attention_with_lse,
    backends,
    explain,
    get_backend,
    load_cache,
    make_cache,
    register,
)
from attnkit.backend import AttentionOutput, Backend, BackendSpec, Plan
from attnkit.cache.base import KVCache, Snapshot
from attnkit.cache.config import KVCacheConfig
from attnkit.cache.layer import CacheLayer
from attnkit.cache.offloading import Offloaded
from attnkit.cache.pool import PagePool
from attnkit.cache.stepping import Step
from attnkit.capabilities import Capabilities, Sizes
from attnkit.codec import Codec
from attnkit.config import AttentionConfig, RopeConfig
from attnkit.errors import (
    AttnkitError,
    BackendNotFoundError,
    BackendUnavailableError,
    CacheCapacityError,
    CacheFileError,
    DeviceError,
    DTypeError,
    PluginError,
    Reason,
    ShapeError,
    UnsupportedError,
)
from attnkit.explanation import Explanation
from attnkit.hookspecs import hookimpl
from attnkit.masks import Mask
from attnkit.merging import merge
from attnkit.multihead import MultiHeadAttention
from attnkit.pages import Pages, Planes, SlotTable, runs
from attnkit.positional import alibi_slopes, apply_rope, rope_tables
from attnkit.registry import BackendInfo
from attnkit.request import AttentionRequest, Operands
from attnkit.schedule import Schedule, Tile
from attnkit.selection import use_backend
from attnkit.steps import StepMirrors, StepTables
from attnkit.structure import MaskStructure
from attnkit.tracing import Call, trace

__all__ = [
    "AttentionConfig",
    "AttentionOutput",
    "AttentionRequest",
    "AttnkitError",
    "Backend",
    "BackendInfo",
    "BackendNotFoundError",
    "BackendSpec",
    "BackendUnavailableError",
    "CacheCapacityError",
    "CacheFileError",
    "CacheLayer",
    "Call",
    "Capabilities",
    "Codec",
    "DTypeError",
    "DeviceError",
    "Explanation",
    "KVCache",
    "KVCacheConfig",
    "Mask",
    "MaskStructure",
    "MultiHeadAttention",
    "Offloaded",
    "Operands",
    "PagePool",
    "Pages",
    "Plan",
    "Planes",
    "PluginError",
    "Reason",
    "RopeConfig",
    "Schedule",
    "ShapeError",
    "Sizes",
    "SlotTable",
    "Snapshot",
    "Step",
    "StepMirrors",
    "StepTables",
    "Tile",
    "UnsupportedError",
    "alibi_slopes",
    "apply_rope",
    "attention",
    "attention_packed",
    "attention_with_lse",
    "backends",
    "explain",
    "get_backend",
    "hookimpl",
    "load_cache",
    "make_cache",
    "merge",
    "register",
    "rope_tables",
    "runs",
    "trace",
    "use_backend",
]
