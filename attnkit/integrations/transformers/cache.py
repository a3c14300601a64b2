"""A cache for models of transformers, over attnkit's ``KVCache``.

Axes: ``B`` batch, ``K`` key/value heads, ``T`` new tokens, ``n`` stored tokens, ``D`` key head size, ``E`` value head
size.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin

from attnkit.api import make_cache
from attnkit.arrays import dtype_name
from attnkit.backend import Backend
from attnkit.cache.base import KVCache
from attnkit.cache.config import KVCacheConfig
from attnkit.errors import Reason, ShapeError, UnsupportedError


class AttnkitLayer(CacheLayerMixin):  # type: ignore[misc]  # transformers is not typed where it is not installed
    """Keys and values of one attention layer, in the pages of a backend; sizes come from the first tokens.

    Parameters
    ----------
    backend
        Who owns the bytes: a backend, or its name.
    max_length
        Tokens a sequence may hold; ``None`` = grows.

    Attributes
    ----------
    storage
        The ``KVCache``, of one layer; ``None`` before the first tokens.
    keys, values
        ``[B, K, n, D]`` and ``[B, K, n, E]`` as last handed out.
    """

    is_sliding = False
    is_croppable = True

    def __init__(self, backend: str | Backend = "torch", max_length: int | None = None) -> None:
        super().__init__()
        self.keys: Any
        self.values: Any
        self.backend = backend
        self.max_length = max_length
        self.storage: KVCache | None = None

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Make storage for tokens like these, ``[B, K, T, D]`` and ``[B, K, T, E]``."""
        self.batch_size, heads, _, head_dim = key_states.shape
        self.device = key_states.device
        config = KVCacheConfig(
            batch_size=self.batch_size,
            num_kv_heads=heads,
            head_dim=head_dim,
            value_dim=value_states.shape[3],
            max_length=self.max_length,
            dtype=dtype_name(key_states.dtype),  # type: ignore[arg-type]  # checked by the config
        )
        with self.device:
            self.storage = make_cache(config, backend=self.backend)
        self.is_initialized = True
        self._show()

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Store tokens, and give all that are stored.

        Parameters
        ----------
        key_states, value_states
            ``[B, K, T, D]`` and ``[B, K, T, E]``; copied.

        Returns
        -------
        ``[B, K, n, D]`` and ``[B, K, n, E]``, to be read and not written: views of the pages where torch can look into
        them, as ``StaticCache`` gives them, since a copy of everything at every step is what a cache is there to avoid.

        Raises
        ------
        UnsupportedError
            If gradients would have to flow into the cache.
        ShapeError, DTypeError, CacheCapacityError
            As in ``CacheLayer.append``.
        """
        if torch.is_grad_enabled() and (key_states.requires_grad or value_states.requires_grad):
            reason = Reason("grad", "key", "free of gradients", "one with", "run the model under torch.no_grad()")
            raise UnsupportedError("AttnkitCache keeps copies that no gradient reaches:", {"attnkit": (reason,)})
        if self.storage is None:
            self.lazy_initialization(key_states, value_states)
        storage = self._storage()
        with self.device:
            storage[0].append(*(self._reachable(states, storage) for states in (key_states, value_states)))
        self._show()
        return self.keys, self.values

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Give the number of keys that ``query_length`` new tokens will attend to, and the position of the first."""
        return self.get_seq_length() + query_length, 0

    def get_seq_length(self) -> int:
        """Give the number of stored tokens."""
        return 0 if self.storage is None else int(self.storage.stored[0])

    def get_max_length(self) -> int:
        """Give the number of tokens that a sequence may hold, -1 for no limit."""
        return -1 if self.max_length is None else self.max_length

    def crop(self, tokens_to_remove: int) -> None:
        """Forget the last ``-tokens_to_remove`` tokens.

        Raises
        ------
        ShapeError
            If it is positive, or fewer are stored.
        """
        if tokens_to_remove > 0:
            raise ShapeError(
                f"tokens_to_remove must be <= 0, the negative of how many to forget, got {tokens_to_remove}"
            )
        if self.storage is not None:
            self.storage.drop(-tokens_to_remove)
            self._show()

    def reset(self) -> None:
        """Forget everything, the storage too; the next tokens may have other sizes."""
        self.storage = self.keys = self.values = None
        self.is_initialized = False

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Make sequence ``b`` a copy of what was sequence ``beam_idx[b]``; copies may diverge at once."""
        if self.storage is not None:
            with self.device:
                self.storage.reorder(beam_idx.cpu().numpy())
            self._show()

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat every sequence ``repeats`` times, copies next to each other."""
        if self.storage is not None:
            with self.device:
                self.storage.repeat(repeats)
            self._show()

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep the sequences ``indices``, in that order; repetitions duplicate one."""
        if self.storage is not None:
            with self.device:
                self.storage.select(indices.cpu().numpy())
            self._show()

    def _storage(self) -> KVCache:
        if self.storage is None:
            raise ShapeError("the layer holds no tokens yet")
        return self.storage

    @staticmethod
    def _reachable(states: Tensor, storage: KVCache) -> Tensor:
        """Give tokens where the backend's library can take them."""
        return states.cpu() if isinstance(storage.pages[0].planes[0], np.ndarray) else states

    def _show(self) -> None:
        """Let ``keys`` and ``values`` be what is stored now."""
        storage = self._storage()
        pages, table, self.batch_size = storage.pages[0], storage[0].table(), storage.batch_size
        shown = pages.key.view(table), pages.value.view(table)
        if shown[0] is None:  # sequences that changed places are in no view
            shown = storage[0].read()
        self.keys, self.values = (_as_tensor(array).to(self.device) for array in shown)


class AttnkitCache(Cache):  # type: ignore[misc]  # as above
    """A cache to give to a model or to ``generate(cache=...)``; layers come up as the model uses them.

    It holds whole sequences: windows are left to masks. Models with layers of linear attention are refused by
    transformers. An encoder-decoder model takes ``EncoderDecoderCache(AttnkitCache(), AttnkitCache())``.

    Parameters
    ----------
    backend
        Who owns the bytes: ``"torch"``, or any other backend; it need not be the one that computes.
    max_length
        Tokens a sequence may hold, allocated at once; ``None`` = grows.
    """

    def __init__(self, *, backend: str | Backend = "torch", max_length: int | None = None) -> None:
        super().__init__(layer_class_to_replicate=partial(AttnkitLayer, backend, max_length))

    @property
    def nbytes(self) -> int:
        """Bytes allocated for keys and values."""
        return sum(layer.storage.nbytes for layer in self.layers if layer.storage is not None)


def _as_tensor(array: Any) -> Tensor:
    """Give a view of an array of any library that has DLPack."""
    if isinstance(array, Tensor):
        return array
    if dtype_name(array.dtype) != "bfloat16":
        return torch.from_dlpack(array)
    # DLPack of NumPy does not know bfloat16: it travels as the integers of its bits.
    return torch.from_dlpack(array.view("int16")).view(torch.bfloat16)
