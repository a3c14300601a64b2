"""Which path of the torch backend to take first: the one table of measured thresholds.

Axes: ``H`` query heads, ``K`` key/value heads, ``T`` query length, ``S`` key length.
"""

from __future__ import annotations

from attnkit import AttentionRequest

# Where the paths cross, in microseconds a call: least processor time of up to 25 calls, the paths in turn, on one
# thread of a machine with AVX2 that did other work too (medians lie 10 to 50 % higher). D = 128, B = 1, torch 2.13.
# torch: scaled_dot_product_attention, with enable_gqa for K < H.
#
#                                      float32                            bfloat16
#   H   K   T     S      sdpa  decode   tiled   dense   torch      sdpa  decode   tiled   dense   torch
#   causal
#   8   8   1     8192  15770   16250   21190       -   14040     23770   24010   85080       -   24440
#   32  8   1     512    1340     910    1470    2490    1010      5650    1180    3410    4410    4910
#   32  8   1     8192  64750   19140   63830       -   55660     99690   12730   95020       -   96210
#   8   8   4     512    1740    2730    2500    3750       -      1450    2090    2960    4070       -
#   32  8   4     512    2910    2700    3390    3380       -      3170    2400    4710    3870       -
#   32  8   4     8192  63800   24270   64470       -       -     57790   25040  129250       -       -
#   32  8   16    64     2240    3670    3380    2560       -      1640    2070    2030    1530       -
#   32  8   16    512    6470    6630    7130    8260       -      5970    5970    7650    8190       -
#   32  8   64    512   12650   14550   14380   18880       -     13950   14830   15110   18850       -
#   32  8   64    8192 289280  239010  304720       -       -    219470  208800  303560       -       -
#   8   8   2048  2048 181410       -  192610       -  171460    219690       -  216310       -  193660
#   causal & window(256)
#   32  8   16    64        -    1890    1470    1180       -         -    2170    1820    1650       -
#   32  8   4     8192      -    2590    8190       -       -         -    2360    5770       -       -
#   32  8   16    4096      -    5520    8940       -       -         -    5660    7990       -       -
#   32  8   64    512       -   14470   12780   19190       -         -   17920   16100   28200       -
#   documents, D = 64
#   8   8   4     64        -    1370    1680    1080       -
#   8   8   64    64        -    2280    2520    1790       -
#   32  8   1     8192      -   17340    5600   21350       -   tiles without a common document are skipped
_DECODE_KEYS = 128  # keys for each query from which on folding a group beats a kernel that reads keys for each head
_DECODE_WINDOW = 16  # the same inside a window, where the other choice is tiles
_DENSE_SCORES = 2**15  # H * T * S


def preference(request: AttentionRequest) -> tuple[str, ...]:
    """Give the paths, the fastest first; those that refuse are passed over.

    It never looks at the batch, so that a sequence takes the same path alone and in any batch.
    """
    if request.mask.documents or request.mask.dense:
        scores = request.num_heads * request.query_length * request.key_length
        return _with_first("dense" if scores <= _DENSE_SCORES else "tiled")
    return _with_first("decode" if _is_decoding(request) else "sdpa")


def _is_decoding(request: AttentionRequest) -> bool:
    rows, keys = request.query_length, request.key_length
    if rows <= 1:
        return True
    if request.mask.left is not None:
        return _DECODE_WINDOW * rows <= min(keys, request.mask.left)
    return request.group > 1 and _DECODE_KEYS * rows <= keys


def _with_first(first: str) -> tuple[str, ...]:
    return first, *(path for path in ("sdpa", "tiled", "decode", "dense", "flex") if path != first)
