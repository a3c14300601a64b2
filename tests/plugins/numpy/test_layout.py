"""Arrays as BLAS takes them."""

from __future__ import annotations

import numpy as np

from attnkit_numpy.layout import plain, widened


def test_every_float16_is_widened_exactly() -> None:
    every = np.arange(2**16, dtype=np.uint16).view(np.float16).reshape(256, 256)
    for array in (every, every.T, every[::2, ::-1]):
        with np.errstate(invalid="ignore"):
            expected = array.astype(np.float32)
        found = widened(array)
        assert found.flags.c_contiguous
        np.testing.assert_array_equal(found, expected)
        np.testing.assert_array_equal(np.signbit(found), np.signbit(expected))


def test_plain_copies_only_what_it_must() -> None:
    cache = np.zeros((2, 64, 8), np.float32)
    assert plain(cache[:, :10], cache.dtype).base is cache
    assert plain(cache[:, ::2], cache.dtype).base is cache  # rows with gaps between are fine for BLAS
    for array in (cache[:, ::-1], cache[..., ::2], cache.swapaxes(1, 2), np.broadcast_to(cache[:, :1], cache.shape)):
        assert plain(array, cache.dtype).flags.c_contiguous
