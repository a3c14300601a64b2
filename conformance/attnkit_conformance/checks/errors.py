"""What does not fit is refused with an error of its own kind that names the argument (A4, A5, E).

Axes: ``B`` batch, ``H`` query heads, ``K`` key/value heads, ``T`` query length, ``S`` key length, ``D`` query/key head
size, ``E`` value head size.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import attnkit as ak
from attnkit_conformance.cases import Array, Case
from attnkit_conformance.checking import Checks, over
from attnkit_conformance.measuring import held
from attnkit_conformance.structures import causal, keep, window
from attnkit_conformance.subject import Subject

Change = Callable[[Array], Array]


@dataclass(frozen=True, kw_only=True, eq=False)
class Misfit(Case):
    """A legal call, and what makes it illegal.

    Attributes
    ----------
    argument
        The argument that the error must name.
    kind
        The error that must be raised.
    changes
        For query, key or value: how to spoil it.
    wrong
        Options in the place of the legal ones; masks by their terms, which may not make one.
    """

    argument: str
    kind: type[Exception] = ak.ShapeError
    changes: Mapping[str, Change] = field(default_factory=dict)
    wrong: Mapping[str, Any] = field(default_factory=dict)

    def spoiled(self, backend: Subject) -> None:
        """Make the illegal call."""
        arrays = [
            backend.array(np.ascontiguousarray(self.changes.get(name, _same)(array)))
            for name, array in zip(("query", "key", "value"), self.arrays, strict=True)
        ]
        options = {name: backend.array(item) if _is_float(item) else item for name, item in self.wrong.items()}
        if "mask" in options:
            options["mask"] = backend.harness.mask(options["mask"])
        backend.harness.attention(arrays, options, self.lse)


def _misfit(label: str, argument: str, kind: type[Exception] = ak.ShapeError, /, **fields: Any) -> Misfit:
    return Misfit(label=label, queries=5, keys=9, argument=argument, kind=kind, **fields)


def _same(array: Array) -> Array:
    return array


def _is_float(item: Any) -> bool:
    return isinstance(item, np.ndarray) and item.dtype.kind == "f"


def _integers(array: Array) -> Array:
    return np.ones(array.shape, np.int32)


ARRAYS = [
    _misfit("key-features", "key", changes={"key": lambda array: array[..., :-1]}, head_dim=16),
    _misfit("key-batch", "key", changes={"key": lambda array: array[:1]}),
    _misfit("key-rank", "key", changes={"key": lambda array: array[0]}),
    _misfit("value-keys", "value", changes={"value": lambda array: array[:, :, :-1]}),
    _misfit("value-heads", "value", changes={"value": lambda array: array[:, :1]}),
    _misfit("value-batch", "value", changes={"value": lambda array: array[:1]}),
    _misfit("query-rank", "query", changes={"query": lambda array: array[None]}),
    _misfit("query-integers", "query", ak.DTypeError, changes=dict.fromkeys(("query", "key", "value"), _integers)),
    _misfit("no-heads", "key", changes={"key": lambda array: array[:, :0], "value": lambda array: array[:, :0]}),
    _misfit(
        "no-features", "query", changes={"query": lambda array: array[..., :0], "key": lambda array: array[..., :0]}
    ),
    _misfit("scale-nan", "scale", wrong={"scale": float("nan")}),
    _misfit("scale-inf", "scale", wrong={"scale": float("inf")}),
]
WINDOWS = [
    _misfit(f"window{left},{right}", argument, options={"mask": window(3)}, wrong={"mask": [("window", left, right)]})
    for left, right, argument in ((0, 0, "left"), (-1, 0, "left"), (2, -1, "right"), (None, -3, "right"))
]
OPTIONS = [
    *WINDOWS,
    _misfit(
        "prefix-causal",
        "mask",
        options={"mask": ak.Mask.prefix(2)},
        wrong={"mask": [("causal",), ("prefix", 2)]},
    ),
    *(
        _misfit(f"softcap{cap}", "softcap", options={"softcap": 1.0}, wrong={"softcap": cap})
        for cap in (0.0, -1.0, float("inf"))
    ),
    _misfit(
        "dense-integers",
        "mask",
        ak.DTypeError,
        options={"mask": keep(5, 9)},
        wrong={"mask": [("dense", np.ones((5, 9), np.int64))]},
    ),
    _misfit(
        "dense-shape", "mask", options={"mask": keep(5, 9)}, wrong={"mask": [("dense", np.ones((5, 8), np.bool_))]}
    ),
    _misfit(
        "bias-shape", "bias", options={"bias": np.ones((5, 9), np.float32)}, wrong={"bias": np.ones((4, 9), np.float32)}
    ),
    _misfit("alibi-shape", "alibi", options={"alibi": np.ones(2, np.float32)}, wrong={"alibi": np.ones(3, np.float32)}),
    _misfit("sinks-shape", "sinks", options={"sinks": np.ones(2, np.float32)}, wrong={"sinks": np.ones(3, np.float32)}),
]
LENGTHS = [
    _misfit(f"{name}-{label}", name, kind, options={name: np.array([2, 3]), "mask": causal()}, wrong={name: wrong})
    for name, most in (("kv_lengths", 9), ("query_lengths", 5))
    for label, kind, wrong in (
        ("negative", ak.ShapeError, np.array([2, -1])),
        ("too-long", ak.ShapeError, np.array([2, most + 1])),
        ("too-few", ak.ShapeError, np.array([2])),
        ("too-many", ak.ShapeError, np.array([2, 2, 2])),
        ("fractions", ak.DTypeError, [1.5, 2.0]),
    )
] + [
    _misfit(f"{name}-{label}", name, kind, options={name: np.array([2, 3]), "mask": causal()}, wrong={name: wrong})
    for name in ("query_offset", "key_offset")
    for label, kind, wrong in (
        ("too-few", ak.ShapeError, np.array([2])),
        ("fractions", ak.DTypeError, [1.5, 2.0]),
    )
]


class TestErrors(Checks):
    """E: user input that does not fit raises ``ShapeError`` or ``DTypeError``, before anything is computed."""

    @over([*ARRAYS, *OPTIONS, *LENGTHS])
    def test_what_does_not_fit_is_named(self, backend: Subject, case: Misfit) -> None:
        """The error is of the right kind, and its message has the name of the argument."""
        try:
            case.spoiled(backend)
        except case.kind as error:
            if case.argument not in str(error):
                raise AssertionError(f"the message must name {case.argument}, got: {error}") from error
            held(f"{case.kind.__name__} that names {case.argument}")
            return
        raise AssertionError(f"{case.label}: the call must raise {case.kind.__name__}, it gave a result")
