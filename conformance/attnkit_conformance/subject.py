"""Subject: the backend under test as the checks see it, and the judge of what it gives."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np

import attnkit as ak
from attnkit.numerics import Numerics
from attnkit.tolerance import Tolerance
from attnkit_conformance.caches import CacheUnderTest
from attnkit_conformance.cases import Case, plain
from attnkit_conformance.compare import assert_equal, assert_like, assert_within
from attnkit_conformance.custom import CustomNumerics, arithmetic_of
from attnkit_conformance.custom.stages import CODE
from attnkit_conformance.harness.local import Harness, Thing
from attnkit_conformance.measuring import held
from attnkit_conformance.oracle import dominant_term

NumpyArray = np.ndarray[Any, Any]
AnyCase = TypeVar("AnyCase", bound=Case)


class Answer(NamedTuple):
    """What a backend gave, as NumPy arrays: output ``[B, H, T, E]`` and, where asked for, LSE ``[B, H, T]``."""

    output: NumpyArray
    lse: NumpyArray | None


class Subject:
    """A backend under test, as the checks see it.

    Parameters
    ----------
    harness
        Where the backend lives, and the only way to it.
    numerics
        Element type -> what to hold it to in the place of what it declares: a profile, or the text of its own numerics.

    Attributes
    ----------
    capabilities
        What it declares.
    outcomes
        What came of the cases that it was judged by, see ``judge``, and how often.
    """

    def __init__(self, harness: Harness, numerics: Mapping[str, str] | None = None) -> None:
        self.harness = harness
        self.description = harness.describe()
        if numerics:
            declared = self.description.capabilities
            held_to = replace(declared, numerics={**declared.numerics, **numerics})
            self.description = self.description._replace(capabilities=held_to)
        self.outcomes: Counter[str] = Counter()
        self._given: list[tuple[Thing, NumpyArray]] | None = None

    def __repr__(self) -> str:
        return f"Subject({self.name!r})"

    @property
    def name(self) -> str:
        """The name it was asked for: ``"numpy"``, or ``"numpy:tiled"`` for one path of it."""
        return self.description.name

    @property
    def path(self) -> str | None:
        """The path that was asked for, or ``None`` for the backend as a whole."""
        return self.description.path

    @property
    def capabilities(self) -> ak.Capabilities:
        """What it declares."""
        return self.description.capabilities

    def arithmetic(self, dtype: str) -> Numerics | CustomNumerics:
        """Give the declared numerics of outputs of an element type, or those that it is held to in their place."""
        try:
            return arithmetic_of(self.capabilities.numerics[dtype], dtype)
        except (ValueError, ak.DTypeError) as error:
            raise AssertionError(f"capabilities: numerics of {dtype}: {error}") from error

    def numerics(self, dtype: str) -> Numerics:
        """Give the profile of an element type, for what is more than one bound.

        Raises
        ------
        UnsupportedError
            If it has none, but numerics of its own.
        """
        found = self.arithmetic(dtype)
        if isinstance(found, CustomNumerics):
            raise ak.UnsupportedError(
                "this is stated for profiles alone:",
                {self.name: (ak.Reason(CODE, "numerics", "a profile", found.verdict),)},
            )
        return found

    def tolerance(self, case: Case) -> Tolerance:
        """Give how far it may be from the truth about a case."""
        return case.tolerance(self.arithmetic(case.dtype))

    def slack(self, case: Case) -> float:
        """Give the relative error of equal weights, their sum, and one rounding of the result."""
        numerics = self.numerics(case.dtype)
        return numerics.u_o + 2 * numerics.u_p + (numerics.growth(case.keys) + 8) * numerics.u_a

    def array(self, array: NumpyArray) -> Thing:
        """Copy a NumPy array into one of the backend's."""
        thing = self.harness.array(array)
        if self._given is not None:
            self._given.append((thing, array))
        return thing

    def numpy(self, array: Thing) -> NumpyArray:
        """Copy an array of the backend into a NumPy one."""
        return self.harness.numpy(array)

    def options(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Move the arrays among keyword arguments into the backend; lengths and offsets stay on the host."""
        moved = dict(options)
        for name in {"bias", "alibi", "sinks"} & set(moved):
            moved[name] = self.array(moved[name])
        if moved.get("mask") is not None:
            moved["mask"] = self.harness.mask(moved["mask"].terms)
        return moved

    def attention(self, arrays: Iterable[NumpyArray], options: Mapping[str, Any], *, lse: bool) -> Answer:
        """Call ``attnkit.attention``, or ``attention_with_lse``, with NumPy arrays."""
        return self.ask(map(self.array, arrays), self.options(options), lse=lse)

    def ask(self, arrays: Iterable[Thing], options: Mapping[str, Any], *, lse: bool = False) -> Answer:
        """Do the same with arrays and options that lie in the backend already."""
        output, *rest = map(self.numpy, self.harness.attention(list(arrays), options, lse))
        return Answer(output, rest[0] if rest else None)

    def differentiate(
        self, arguments: Mapping[str, Thing], names: Sequence[str], cotangents: Sequence[Thing]
    ) -> tuple[Answer, dict[str, NumpyArray]]:
        """Ask with arguments that lie in the backend already, and for the gradients of those that are named.

        One cotangent is that of the output, a second one that of the log-sum-exp, which is then asked for too.
        """
        results, gradients = self.harness.vjp(arguments, names, cotangents)
        output, *lse = map(self.numpy, results)
        return Answer(output, lse[0] if lse else None), dict(zip(names, map(self.numpy, gradients), strict=True))

    def make_cache(self, config: Mapping[str, Any]) -> CacheUnderTest:
        """Call ``attnkit.make_cache``."""
        return CacheUnderTest(self.harness, self.harness.make_cache(config))

    def pooled_caches(self, config: Mapping[str, Any], count: int) -> list[CacheUnderTest]:
        """Call ``attnkit.make_cache`` several times with one ``attnkit.PagePool``."""
        pool = self.harness.make_pool(config)
        return [CacheUnderTest(self.harness, self.harness.pooled_cache(config, pool)) for _ in range(count)]

    def assert_true(self, case: Case, answer: Answer, *, what: str = "") -> None:
        """Check an answer against the oracle: shapes, element types, and every number within its bound."""
        __tracebackhide__ = True
        assert_like(answer.output, case.output_shape, case.dtype, what=f"{what}output")
        arithmetic = self.arithmetic(case.dtype)
        bound, term = case.tolerance(arithmetic), partial(dominant_term, case.truth, arithmetic)
        assert_within(answer.output, case.truth.output, bound.output, what=f"{what}output", term=term)
        if answer.lse is not None:
            assert_like(answer.lse, case.output_shape[:3], lse_dtype(case.dtype), what=f"{what}lse")
            assert_within(answer.lse, case.truth.lse, bound.lse, what=f"{what}lse")

    def assert_same(self, case: Case, answer: Answer, expected: Answer, *, rows: Any = slice(None), what: str) -> None:
        """Check that some rows of two answers to a case are the same.

        Bit for bit, or within the bound of both where the backend does not declare to be deterministic.
        """
        __tracebackhide__ = True
        bound = self.tolerance(case)
        pairs = [("output", answer.output, expected.output, bound.output)]
        if answer.lse is not None and expected.lse is not None:
            pairs.append(("lse", answer.lse, expected.lse, bound.lse))
        for name, one, other, tau in pairs:
            if self.capabilities.deterministic:
                assert_equal(one[:, :, rows], other[:, :, rows], what=f"{name} {what}")
            else:
                assert_within(one[:, :, rows], plain(other[:, :, rows]), 2 * tau[:, :, rows], what=f"{name} {what}")

    def judge(self, case: AnyCase, check: Callable[[AnyCase], None]) -> None:
        """Run a check on a case that the backend declares; where it does not, check that it refuses the case.

        Counts what came of it: ``"answered"``, ``"refused CODES"``, ``"outside REASON"`` where a forced path says that
        a call that its backend takes is not for this path, or where numerics of its own have no bound, or ``"unchecked
        REASON"`` where the backend has no way to ask for what it declares, or for what no capability is about.
        """
        __tracebackhide__ = True
        case = case.on(self.capabilities)
        missing = case.undeclared(self.capabilities)
        if missing:
            self._assert_refused_untouched(case, missing)
            self.outcomes[f"refused {', '.join(missing)}"] += 1
            return
        try:
            check(case)
        except ak.UnsupportedError as error:
            if codes_of(error) == {"vjp"} and "grad" in case.features():
                self.outcomes["unchecked gradients, since the backend has no vjp"] += 1
            elif codes_of(error) == {"save"}:
                self.outcomes["unchecked files, since the backend's own caches are not saved"] += 1
            elif codes_of(error) == {CODE}:
                held("what its own numerics bound")
                self.outcomes[f"outside its own numerics: {_limit_of(error)}"] += 1
            elif codes_of(error) == {"begin_step"}:
                self.outcomes["unchecked steps, since the backend's own caches have none"] += 1
            elif self.path is not None and codes_of(error) == {"path"}:
                held("refusal of the path")
                self.outcomes[f"outside {_limit_of(error)}"] += 1
            else:
                raise
        else:
            self.outcomes["answered"] += 1

    def _assert_refused_untouched(self, case: Case, missing: Iterable[str]) -> None:
        """Check that a case is refused, and that its arguments hold afterwards what they held."""
        __tracebackhide__ = True
        if not case.askable(self):
            held(f"nothing can ask for {', '.join(missing)}")
            return
        given: list[tuple[Thing, NumpyArray]] = []
        self._given = given
        try:
            self.assert_refused(missing, lambda: case.call(self))
        finally:
            self._given = None
        for thing, array in given:
            if array.size and array.dtype.name in self.capabilities.dtypes:  # others need not come back
                assert_equal(self.numpy(thing), array, what="an argument after the call was refused")

    def assert_refused(self, missing: Iterable[str], call: Callable[[], object]) -> None:
        """Check that a call raises ``UnsupportedError`` whose reasons carry every code in ``missing`` (A18)."""
        __tracebackhide__ = True
        codes = set(missing)
        try:
            call()
        except ak.UnsupportedError as error:
            if not codes <= codes_of(error):
                raise AssertionError(
                    f"the refusal must carry the codes {sorted(codes)}, got {sorted(codes_of(error))}: {error}"
                ) from error
            held(f"refusal for {', '.join(sorted(codes))}")
        else:
            raise AssertionError(
                f"{', '.join(sorted(codes))}: not declared, yet the call gave a result; declare it, or refuse the call"
            )


def lse_dtype(dtype: str) -> str:
    """Give the element type of the log-sum-exp: float64 for float64, else float32."""
    return "float64" if dtype == "float64" else "float32"


def codes_of(error: ak.UnsupportedError) -> set[str]:
    """Give the codes of all reasons."""
    return {reason.code for reasons in error.reasons.values() for reason in reasons}


def _limit_of(error: ak.UnsupportedError) -> str:
    """Give the limit that a path has, without what came."""
    reason = next(reason for reasons in error.reasons.values() for reason in reasons)
    return f"{reason.field} must be {reason.required}"
