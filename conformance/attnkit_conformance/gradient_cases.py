"""GradientCase: a call, what a loss gives back for its results, and the truth about the gradients.

Axes: ``B`` batch, ``H`` query heads, ``K`` key/value heads, ``T`` query length, ``S`` key length, ``D`` query/key head
size, ``E`` value head size.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields, replace
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from attnkit.numerics import Numerics
from attnkit.reference_gradients import Cotangents, Gradients, gradient_tolerance, gradients
from attnkit_conformance.cases import Array, Case, plain
from attnkit_conformance.compare import assert_equal, assert_like, assert_within

if TYPE_CHECKING:
    from attnkit_conformance.subject import Answer, Subject

Named = dict[str, Array]
_OPTIONAL = ("bias", "sinks")


@dataclass(frozen=True, kw_only=True, eq=False)
class GradientCase(Case):
    """A case whose gradients are asked for, with random cotangents.

    With ``lse``, the log-sum-exp has a cotangent too; otherwise it is not asked for.
    """

    def __str__(self) -> str:
        return f"{super().__str__()}-lse" if self.lse else super().__str__()

    @property
    def names(self) -> tuple[str, ...]:
        """The arguments that have gradients (A16)."""
        return ("query", "key", "value", *(name for name in _OPTIONAL if name in self.options))

    @cached_property
    def arguments(self) -> Named:
        """Those arguments themselves."""
        return dict(zip(self.names, (*self.arrays, *(self.options[name] for name in self.names[3:])), strict=True))

    @cached_property
    def cotangents(self) -> tuple[Array, ...]:
        """What a loss gives back for the output, and for the log-sum-exp where it is asked for."""
        rng = self.rng("cotangents")
        output = rng.standard_normal(self.output_shape).astype(np.dtype(self.dtype))
        lse = rng.standard_normal(self.output_shape[:3]).astype(np.float64 if self.dtype == "float64" else np.float32)
        return (output, lse) if self.lse else (output,)

    @cached_property
    def gradients(self) -> Gradients:
        """What the oracle gives."""
        return gradients(self.truth, Cotangents(*self.cotangents))

    @cached_property
    def reached(self) -> Named:
        """Where anything passes through at all, broadcastable to each argument; everywhere else is exactly 0."""
        seen = _by_key(self.shown, self.heads // self.kv_heads)
        reached: Named = {"query": self.seeing[..., None], "key": seen, "value": seen}
        for name in self.names[3:]:
            finite = self.options[name] > -np.inf
            reached[name] = finite & _any(self.shown, finite.shape) if name == "bias" else finite
        return reached

    def gradient_tolerance(self, numerics: Numerics) -> Gradients:
        """Give how far the gradients of a backend of these numerics may be from the truth."""
        return _tolerance(self, numerics)

    def features(self) -> Iterator[str]:
        """Give the fields that are simply yes or no, as the case needs them."""
        yield from super().features()
        yield "grad"

    def askable(self, subject: Subject) -> bool:
        """Tell whether the backend's arrays can require gradients, so that it can refuse them."""
        return subject.harness.needs_grad(subject.harness.requiring_grad(self.arrays[0]))

    def call(self, subject: Subject) -> Answer:
        """Ask a backend with arrays that require gradients."""
        arrays = map(subject.harness.requiring_grad, self.arrays)
        return subject.ask(arrays, subject.options(self.options), lse=self.lse)

    def weighing(self, output: Array) -> Self:
        """Give the same case with another cotangent of the output, converted to its element type."""
        other = replace(self)
        other.__dict__["arrays"] = self.arrays
        other.__dict__["cotangents"] = (output.astype(np.dtype(self.dtype)), *self.cotangents[1:])
        return other

    def moved(self, subject: Subject) -> tuple[Named, list[Any]]:
        """Copy all arguments by name, and the cotangents, into a backend."""
        arguments = dict(zip(("query", "key", "value"), map(subject.array, self.arrays), strict=True))
        return arguments | subject.options(self.options), [subject.array(array) for array in self.cotangents]

    def differentiate(self, subject: Subject, *names: str) -> tuple[Answer, Named]:
        """Ask a backend for results and gradients, all or those that are named."""
        arguments, cotangents = self.moved(subject)
        return subject.differentiate(arguments, names or self.names, cotangents)

    def assert_true(self, subject: Subject, found: Named, *, what: str = "") -> None:
        """Check gradients against the oracle: shapes, types, every number within its bound, and the exact zeros."""
        __tracebackhide__ = True
        bounds = self.gradient_tolerance(subject.numerics(self.dtype))
        for name, gradient in found.items():
            argument, title = self.arguments[name], f"{what}gradient of {name}"
            assert_like(gradient, argument.shape, argument.dtype.name, what=title)
            if gradient.size:
                assert_within(gradient, getattr(self.gradients, name), getattr(bounds, name), what=title)
                dead = gradient[~np.broadcast_to(self.reached[name], gradient.shape)]
                if dead.size:
                    assert_equal(dead, np.zeros_like(dead), what=f"{title} where nothing passes through")

    def assert_same(
        self, subject: Subject, found: Named, expected: Named, *, rows: int | slice = slice(None), what: str
    ) -> None:
        """Check that some rows of gradients are the same.

        Bit for bit, or within the bound of both where the backend does not declare to be deterministic.
        """
        __tracebackhide__ = True
        if not subject.capabilities.deterministic:
            self.assert_near(subject, found, expected, rows=rows, what=what)
            return
        for name, gradient in found.items():
            place = _rows(gradient, rows)
            assert_equal(gradient[place], expected[name][place], what=f"gradient of {name} {what}")

    def assert_near(
        self, subject: Subject, found: Named, expected: Named, *, rows: int | slice = slice(None), what: str
    ) -> None:
        """Check that some rows of gradients are the same within the bound of both."""
        __tracebackhide__ = True
        bounds = self.gradient_tolerance(subject.numerics(self.dtype))
        for name, gradient in found.items():
            place = _rows(gradient, rows)
            one, other, tau = gradient[place], plain(expected[name][place]), 2 * getattr(bounds, name)[place]
            assert_within(one, other, tau, what=f"gradient of {name} {what}")


def graded(cases: Iterable[Case]) -> list[GradientCase]:
    """Give cases whose gradients are asked for."""
    return [GradientCase(**{item.name: getattr(case, item.name) for item in fields(case)}) for case in cases]


def with_lse(cases: Iterable[Case]) -> list[GradientCase]:
    """Give cases that have cotangents of the log-sum-exp too."""
    return graded(replace(case, lse=True) for case in cases)


@lru_cache(maxsize=1024)
def _tolerance(case: GradientCase, numerics: Numerics) -> Gradients:
    terms = {str(case.options[name].dtype) for name in _OPTIONAL if name in case.options} or {"float32"}
    (only,) = terms
    return gradient_tolerance(case.truth, Cotangents(*case.cotangents), numerics, terms=only)


def _rows(gradient: Array, rows: int | slice) -> Any:
    """Give the index of rows of an array, or of all of one that has no rows."""
    return np.s_[:, :, rows] if gradient.ndim == 4 else np.s_[:]


def _by_key(shown: Array, group: int) -> Array:
    """Tell for each key whether any row of any head of its group sees it, ``[B, K, S, 1]``."""
    batch, heads, rows, keys = shown.shape
    return np.asarray(shown.reshape(batch, heads // group, group * rows, keys).any(axis=2))[..., None]


def _any(shown: Array, shape: tuple[int, ...]) -> Any:
    """Tell for each element of a shape whether anything is shown where it is broadcast to."""
    full = (1,) * (4 - len(shape)) + shape
    axes = tuple(axis for axis, size in enumerate(full) if size == 1)
    return shown.any(axis=axes, keepdims=True).reshape(shape)
