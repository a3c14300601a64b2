"""Arrays that say that they take part in automatic differentiation."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = Any


class Tracked(np.ndarray[Any, Any]):
    """A NumPy array that says so, which NumPy's own do not."""

    requires_grad = True


def requiring_grad(array: Array) -> Array:
    """Give an array that requires gradients, where there is such a thing in its library; else the array itself."""
    if isinstance(array, np.ndarray):
        return array.view(Tracked)
    return array.requires_grad_() if hasattr(array, "requires_grad_") else array
