"""The function that models of transformers call for their masks, and a mask that stays what it means.

transformers writes masks out as booleans ``[B, 1, T, S]``. ``MaskTensor`` looks like one to a model, and hands its
meaning (causal, a window, padding) to attention, so that nothing of size ``T * S`` is made and hidden blocks are
skipped. Whatever looks inside it meets the booleans, written out at that moment by transformers itself.

Axes: ``B`` batch, ``T`` query length, ``S`` key length.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only
from transformers import masking_utils

from attnkit.integrations.transformers.patterns import Pattern, read_pattern
from attnkit.masks import Mask

Arguments = dict[str, Any]


def make_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | Tensor = 0,
    kv_offset: int = 0,
    mask_function: Callable[..., Any] = masking_utils.causal_mask_function,
    attention_mask: Tensor | None = None,
    **others: Any,
) -> Tensor | None:
    """Make the mask of a model's layers.

    Takes what transformers' own ``sdpa_mask`` takes, and means the same.

    Returns
    -------
    A ``MaskTensor`` where the meaning is known and worth keeping, else booleans ``[B, 1, T, S]``; ``None`` means that
    one query sees everything, that several see the keys up to their own index, or, in a bidirectional model, all.
    """
    sizes = (batch_size, q_length, kv_length, q_offset, kv_offset)
    write = partial(masking_utils.sdpa_mask, *sizes, mask_function, attention_mask)
    cheap = q_length == 1 and others.get("local_size") is None
    # A static cache counts in a tensor: it is made for compilers, which do not take other classes of tensors.
    if cheap or torch.compiler.is_compiling() or isinstance(q_offset, torch.Tensor):
        return write(**others)
    pattern = read_pattern(mask_function)
    if pattern is None or pattern == Pattern():  # nothing but padding, if that
        return write(**others)
    place = Place(batch_size, q_length, kv_length, q_offset, kv_offset)
    arguments = meaning(pattern, place, _visible_keys(attention_mask, place))
    others |= {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}
    device = torch.device(others.get("device", "cpu"))
    return MaskTensor(arguments, partial(write, **others), (batch_size, 1, q_length, kv_length), device)


class Place(NamedTuple):
    """Sizes of a call, and the positions of its first query and first key."""

    batch: int
    queries: int
    keys: int
    query_offset: int
    key_offset: int


def meaning(pattern: Pattern, place: Place, visible: Tensor | None) -> Arguments:
    """Give the arguments of ``attnkit.attention`` that hide what a pattern hides, and the keys that are not visible."""
    terms = [Mask.causal()] if pattern.causal else []
    if pattern.left is not None or pattern.right is not None:
        terms.append(Mask.window(pattern.left, pattern.right))
    if pattern.chunk is not None:
        terms.append(Mask.chunked(pattern.chunk))
    if pattern.sequences is not None:
        terms.append(Mask.documents(pattern.sequences, pattern.sequences))
    if visible is not None:
        # Every query is of document 1, as are the visible keys.
        terms.append(Mask.documents(visible.new_ones(place.batch, place.queries, dtype=torch.int64), visible.long()))
    mask = terms[0]
    for term in terms[1:]:
        mask = mask & term
    return {"mask": mask, **_offsets(pattern, place)}


def _offsets(pattern: Pattern, place: Place) -> Arguments:
    if pattern.start is not None:
        starts = pattern.start.tolist()
        return {
            "query_offset": [place.query_offset - start for start in starts],
            "key_offset": [place.key_offset - start for start in starts],
        }
    distance = place.query_offset - place.key_offset
    # Only distances count here. The default, the last query on the last key, is the case that every path knows.
    return {} if distance == place.keys - place.queries else {"query_offset": distance}


def _visible_keys(attention_mask: Tensor | None, place: Place) -> Tensor | None:
    """Give which keys are no padding, ``[B, S]``, or ``None`` where all are visible."""
    if attention_mask is None:
        return None
    visible = attention_mask[:, place.key_offset : place.key_offset + place.keys].bool()
    if visible.shape[1] < place.keys:
        visible = torch.nn.functional.pad(visible, (0, place.keys - visible.shape[1]))
    return None if bool(visible.all()) else visible


class MaskTensor(torch.Tensor):  # type: ignore[misc]  # torch may be missing where types are checked
    """Booleans ``[B, 1, T, S]`` that are not there until something looks at them.

    Attributes
    ----------
    arguments
        What says the same to ``attnkit.attention``.
    """

    arguments: Arguments

    @staticmethod
    def __new__(  # noqa: D102  # the class says it
        cls, arguments: Arguments, write: Callable[[], Tensor], shape: tuple[int, ...], device: torch.device
    ) -> Self:
        made: Self = torch.Tensor._make_wrapper_subclass(cls, shape, dtype=torch.bool, device=device)
        return made

    def __init__(
        self, arguments: Arguments, write: Callable[[], Tensor], shape: tuple[int, ...], device: torch.device
    ) -> None:
        del shape, device
        self.arguments = arguments
        self._write = write
        self._written: Tensor | None = None

    @property
    def untouched(self) -> bool:
        """Whether nothing has looked inside yet; what has may have changed the booleans."""
        return self._written is None

    def plain(self) -> Tensor:
        """Give the booleans, laid out as this tensor says it is."""
        if self._written is None:
            self._written = self._write().contiguous()
        return self._written

    # Without this, results of operations would be wrapped again.
    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Let every operation run on the booleans."""
        args, kwargs = tree_map_only(MaskTensor, MaskTensor.plain, (args, kwargs or {}))
        return function(*args, **kwargs)


def _on_booleans(name: str) -> Callable[..., Any]:
    def method(self: MaskTensor, *args: Any, **kwargs: Any) -> Any:
        return getattr(self.plain(), name)(*args, **kwargs)

    return method


# These reach for the memory without an operation.
for _name in ("__deepcopy__", "__dlpack__", "__reduce_ex__", "data_ptr", "numpy", "share_memory_", "tolist"):
    setattr(MaskTensor, _name, _on_booleans(_name))
