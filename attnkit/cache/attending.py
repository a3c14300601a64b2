"""Attending over a layer of a cache: from what it holds to a call.

Axes: ``B`` sequences, ``H`` query heads, ``K`` key/value heads, ``T`` query length, ``n`` stored tokens, ``D`` key head
size, ``E`` value head size.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attnkit.arrays import DTYPES, dtype_name
from attnkit.backend import AttentionOutput
from attnkit.call import Described, Options, describe_call
from attnkit.checks import check_array, check_device, check_home
from attnkit.conversion import can_convert
from attnkit.errors import DTypeError, ShapeError
from attnkit.pages import IntArray, SlotTable
from attnkit.request import AttentionRequest, Operands
from attnkit.selection import select
from attnkit.steps import StepMirrors, StepTables
from attnkit.tracing import Answered, observer, record

if TYPE_CHECKING:
    from attnkit.cache.layout import Layout

Array = Any


def stored_table(cache: Layout, layer: int) -> SlotTable:
    """Give the slots of all tokens that a layer holds."""
    gone, count = cache.counters.gone[layer].tolist(), cache.counters.next[layer].tolist()
    pinned = cache.config.pinned or 0
    return cache.table(
        tuple(((0, n),) if not lost else ((0, pinned), (pinned + lost, n)) for lost, n in zip(gone, count, strict=True))
    )


def attend_layer(cache: Layout, layer: int, query: Array, options: Options, *, lse: bool) -> AttentionOutput:
    """Attend over all that a layer holds."""
    _check_query(cache, query)
    ragged = cache.counters.ragged[layer]
    if options.query_lengths is None and ragged is not None and ragged.tokens == query.shape[2]:
        options = options._replace(query_lengths=ragged.taken)
    return cache.attend(layer, query, options, lse)


def attend_table(
    cache: Layout, layer: int, table: SlotTable, key_offset: IntArray | None, query: Array, options: Options, lse: bool
) -> AttentionOutput:
    """Attend over the tokens in a table, the first of which stand at ``key_offset [B]``; ``None``: at 0."""
    lengths = table.lengths
    if lengths.size and (lengths != lengths[0]).any():
        options = options._replace(kv_lengths=lengths)
    if key_offset is not None and key_offset.any():
        options = options._replace(key_offset=key_offset)
    key, value = _stored_arrays(cache, table.longest)
    request, operands = describe_call(query, key, value, options, lse, cached=True)
    return _run(cache, layer, query, table, table, request, operands)


def attend_mirrored(
    cache: Layout,
    layer: int,
    tables: StepTables,
    mirrors: StepMirrors,
    query: Array,
    options: Options,
    lse: bool,
) -> AttentionOutput:
    """Attend over all tokens of a step: what changes with it is checked here, and read from its mirrors later."""
    _check_query(cache, query)
    options = options._replace(
        query_lengths=tables.counts if tables.ragged else None,
        kv_lengths=tables.table.lengths,
        key_offset=tables.key_offset,
    )
    key, value = _stored_arrays(cache, tables.room or 0)
    request, operands = describe_call(query, key, value, options, lse, cached=True)
    operands = operands._replace(
        query_lengths=mirrors.query_lengths, kv_lengths=mirrors.kv_lengths, key_offset=mirrors.key_offset
    )
    return _run(cache, layer, query, mirrors.table, tables.table, request, operands)


def _run(
    cache: Layout,
    layer: int,
    query: Array,
    table: Any,
    held: SlotTable,
    request: AttentionRequest,
    operands: Operands,
) -> AttentionOutput:
    """Let the backend attend over ``table``: the slots that are ``held``, or their mirror."""
    selection = select(request, cache.choice)
    pages = cache.pages[layer]
    check_device("query", query, pages.planes[0], "the cache")
    record(request, selection, cache.choice)
    result = cache.backend.attend_pages(query, pages, table, operands, selection.plan)
    tell = observer()
    if tell is not None:
        key, value = pages.key.read(cache.backend, held.slots), pages.value.read(cache.backend, held.slots)
        tell(Answered(request, operands, query, key, value, result, cache.backend, selection.plan.path))
    return result


def _check_query(cache: Layout, query: Array) -> None:
    check_array("query", query)
    if len(query.shape) != 4 or query.shape[0] != cache.batch_size:
        raise ShapeError(f"query must be [B, H, T, D] with B = {cache.batch_size}, got {list(query.shape)}")


def check_call(cache: Layout, query: Array, length: int, options: Options) -> None:
    """Raise an error unless the options fit a call over ``length`` stored tokens."""
    describe_call(query, *_stored_arrays(cache, length), options, False, cached=True)


def check_tokens(cache: Layout, key: Array, value: Array) -> None:
    """Raise an error unless ``key [B, K, T, D]`` and ``value [B, K, T, E]`` can be appended."""
    check_array("key", key)
    check_array("value", value)
    config = cache.config
    tokens = key.shape[2] if len(key.shape) == 4 else "T"
    head = (cache.batch_size, config.num_kv_heads, tokens)
    if tuple(key.shape) != (*head, config.head_dim) or tuple(value.shape) != (*head, config.value_dim):
        raise ShapeError(
            f"key, value must be [B, K, T, D], [B, K, T, E] with B = {head[0]}, K = {head[1]}, "
            f"D = {config.head_dim}, E = {config.value_dim}, got {list(key.shape)}, {list(value.shape)}"
        )
    stored = cache.pages[0].planes[0]
    for name, array in (("key", key), ("value", value)):
        if dtype_name(array.dtype) not in DTYPES:
            raise DTypeError(f"{name} must be one of {', '.join(DTYPES)}, got {array.dtype}")
        if not can_convert(array):
            check_home(name, array, stored, "the cache")
        check_device(name, array, stored, "the cache")


def _stored_arrays(cache: Layout, length: int) -> tuple[Described, Described]:
    config = cache.config
    head = (cache.batch_size, config.num_kv_heads, length)
    return Described((*head, config.head_dim), config.dtype), Described((*head, config.value_dim), config.dtype)
