"""Attending where a ring pins its first tokens: they are seen outside of any window, as attention sinks are.

Pinned tokens keep their positions, and the tokens behind them are somewhere else, so the two are two sets of keys: each
is attended by itself, and the results are merged by their log-sum-exp (contract A10).

Axes: ``B`` sequences, ``H`` query heads, ``T`` query length, ``n`` stored tokens, ``D`` key head size.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attnkit.arrays import dtype_name, namespace
from attnkit.backend import AttentionOutput
from attnkit.cache.attending import attend_table, check_call
from attnkit.call import Options
from attnkit.checks import host_lengths
from attnkit.masks import Mask
from attnkit.merging import merge

if TYPE_CHECKING:
    from attnkit.cache.layout import Layout

Array = Any


def attend_pinned(cache: Layout, layer: int, query: Array, options: Options, lse: bool) -> AttentionOutput:
    """Attend over a layer whose first ``config.pinned`` tokens are outside of any window."""
    stored = cache.counters.stored[layer]
    check_call(cache, query, int(stored.max(initial=0)), options)
    counts, gone, pinned = cache.counters.next[layer], cache.counters.gone[layer], cache.config.pinned or 0
    options = options._replace(query_offset=_query_offset(cache, query, counts, options))
    head = cache.table(tuple(((0, min(pinned, n)),) for n in counts.tolist()))
    tail = cache.table(tuple(((pinned + lost, n),) for lost, n in zip(gone.tolist(), counts.tolist(), strict=True)))
    split = head.longest
    wide = _widened(query)
    parts = [
        attend_table(cache, layer, head, None, wide, _unwindowed(_of_keys(options, slice(None, split))), True),
        attend_table(
            cache, layer, tail, pinned + gone, wide, _of_keys(options, slice(split, None))._replace(sinks=None), True
        ),
    ]
    output, total = merge(*((part.output, part.lse) for part in parts))
    return AttentionOutput(namespace(query).astype(output, query.dtype), total if lse else None)


def _query_offset(cache: Layout, query: Array, counts: Array, options: Options) -> Array:
    """Give the positions of the first queries: the last valid one stands on the last token."""
    if options.query_offset is not None:
        return options.query_offset
    rows = int(query.shape[2])
    if options.query_lengths is None:
        return counts - rows
    return counts - host_lengths("query_lengths", options.query_lengths, cache.batch_size, rows, "T")


def _widened(query: Array) -> Array:
    """Give the query in float32 or wider, so that what is merged has not been rounded before."""
    if dtype_name(query.dtype) in ("float32", "float64"):
        return query
    xp = namespace(query)
    return xp.astype(query, xp.float32)


def _of_keys(options: Options, keys: slice) -> Options:
    """Give the options of a part of the keys."""

    def part(array: Any) -> Any:
        return array if array is None or array.shape[-1] == 1 else array[..., keys]  # 1: it broadcasts

    def of_term(term: tuple[Any, ...]) -> tuple[Any, ...]:
        match term:
            case ("dense", array):
                return "dense", part(array)
            case ("documents", ids_q, ids_k):  # one for each key, which never broadcast
                return "documents", ids_q, ids_k[..., keys]
        return term

    mask = None if options.mask is None else Mask(tuple(map(of_term, options.mask.terms)))
    return options._replace(mask=mask, bias=part(options.bias))


def _unwindowed(options: Options) -> Options:
    """Give the options without the left ends of windows."""
    if options.mask is None:
        return options
    terms = (("window", None, term[2]) if term[0] == "window" else term for term in options.mask.terms)
    kept = tuple(term for term in terms if term != ("window", None, None))
    return options._replace(mask=Mask(kept) if kept else None)
