"""Statements: the calls of a tape as lines of a program."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np

from attnkit_conformance.harness.foreign import Foreign
from attnkit_conformance.harness.tracking import Tracked, requiring_grad
from attnkit_conformance.harness.views import VIEWS
from attnkit_conformance.repro.cache_statements import CacheStatements
from attnkit_conformance.repro.claims import Agrees, Claim, Raises, Refuses, Returns, public_name
from attnkit_conformance.repro.literals import Data, called, literal, source
from attnkit_conformance.repro.names import Names
from attnkit_conformance.repro.tape import Call, Calls, Ref, Run

_ARRAYS: Final = ("query", "key", "value")
_BROADCAST: Final = """def broadcast(one, shape):
    return array_api_compat.array_namespace(one).broadcast_to(one, shape)
"""
_CODES: Final = """def codes_for(query, key, value, lse=False, **options):
    request, _ = describe_call(query, key, value, gather_options(**options), lse)
    path = BACKEND.partition(":")[2] if isinstance(BACKEND, str) else ""
    return {reason.code for reason in backend.unsupported(request, path or None)}
"""


class Statements(CacheStatements):
    """Writes calls.

    Attributes
    ----------
    data
        The arrays that they use.
    """

    def __init__(self, calls: Calls, claim: Claim, run: Run, names: Names) -> None:
        self.data = Data()
        self._calls, self._claim, self._run, self._names = calls, claim, run, names
        self._masks = {call.number: call for call in calls if call.method == "mask"}
        self._helpers: dict[str, str] = {}

    def helpers(self) -> Iterator[str]:
        """Give the text of each helper that is used; to be asked after ``lines``."""
        yield from self._helpers.values()

    def lines(self) -> Iterator[str]:
        """Give the statements of all calls."""
        written = [(call, self._statement(call)) for call in self._calls if call.method not in ("mask", "needs_grad")]
        if isinstance(self._claim, Refuses):
            yield "try:"
            yield from (textwrap.indent(statement, "    ") for _, statement in written)
            return
        for call, statement in written:
            yield from self._guarded(call, statement)

    def _guarded(self, call: Call, statement: str) -> list[str]:
        """Give a statement, and what is to happen where it raises."""
        if isinstance(self._claim, Raises | Agrees) and self._claim.call == call.number:
            return ["try:", textwrap.indent(statement, "    ")]
        error = self._run.errors.get(call.number)
        if error is None:
            return [statement]
        if isinstance(self._claim, Returns) and self._claim.call == call.number:
            why = textwrap.shorten(f"# This must not raise; it raised {type(error).__name__}: {error}", 110)
            return [why, statement]
        return [f"with suppress({public_name(type(error))}):", textwrap.indent(statement, "    ")]

    def _statement(self, call: Call) -> str:
        writer: Callable[[Call], str] = getattr(self, f"_{call.method}")
        return writer(call)

    # Arrays

    def _array(self, call: Call) -> str:
        return self._made(call, f"array({self._datum(call)})")

    def _view(self, call: Call) -> str:
        how = call.given["how"]
        view = VIEWS[how]
        self._helpers[how] = source(view)
        return self._made(call, f"{view.__name__}(array, {self._datum(call)})")

    def _broadcast(self, call: Call) -> str:
        self._helpers["broadcast"] = _BROADCAST
        shape = literal(tuple(call.given["shape"]))
        return self._made(call, f"broadcast(array({self._datum(call)}), {shape})")

    def _foreign(self, call: Call) -> str:
        self._helpers["foreign"] = source(Foreign)
        return self._made(call, f"Foreign({self._datum(call)})")

    def _requiring_grad(self, call: Call) -> str:
        self._helpers |= {"tracked": source(Tracked), "requiring_grad": source(requiring_grad)}
        return self._made(call, f"requiring_grad(array({self._datum(call)}))")

    def _litter(self, call: Call) -> str:
        made = self.data.expression("litter", call.given["array"])
        return f"copies = [array({made}) for _ in range({call.given['times']})]\ndel copies"

    def _numpy(self, call: Call) -> str:
        return self._made(call, f"backend.to_numpy({self._value(call.given['thing'])})")

    def _write(self, call: Call) -> str:
        value = call.given["array"]
        made = f"array({self.data.expression('written', value)})" if isinstance(value, np.ndarray) else literal(value)
        return f"with suppress(TypeError, ValueError):\n    {self._value(call.given['thing'])}[...] = {made}"

    # Calls

    def _attention(self, call: Call) -> str:
        return self._made(call, self._asked("attention_with_lse" if call.given["lse"] else "attention", call))

    def _packed(self, call: Call) -> str:
        return self._made(call, self._asked("attention_packed", call))

    def _reasons(self, call: Call) -> str:
        self._helpers["codes"] = _CODES
        given = call.given
        lse = ["lse=True"] if given["lse"] else []
        return self._made(call, called("codes_for", [*self._arguments(given), *lse]))

    def _merge(self, call: Call) -> str:
        return self._made(call, called("ak.merge", [self._value(part) for part in call.given["parts"]]))

    def _vjp(self, call: Call) -> str:
        given, names = call.given, call.given["names"]
        words = {name: name if name in names else self._value(item) for name, item in given["arguments"].items()}
        arrays = [words.pop(name) for name in _ARRAYS]
        arguments = [*arrays, *(f"{name}={word}" for name, word in words.items()), "backend=BACKEND"]
        lse = len(given["cotangents"]) > 1
        asked = called("ak.attention_with_lse" if lse else "ak.attention", arguments)
        function = f"def call({', '.join(names)}):\n" + textwrap.indent(
            f"return {asked if lse else f'({asked},)'}", "    "
        )
        chosen = [self._value(given["arguments"][name]) for name in names]
        cotangents = [self._value(item) for item in given["cotangents"]]
        made = f"backend.vjp(call, [{', '.join(chosen)}], [{', '.join(cotangents)}])"
        return f"\n{function}\n\n{self._made(call, made)}"

    # Words

    def _asked(self, function: str, call: Call) -> str:
        return called(f"ak.{function}", [*self._arguments(call.given), "backend=BACKEND"])

    def _arguments(self, given: Mapping[str, Any]) -> list[str]:
        return [*map(self._value, given["arrays"]), *self._options(given["options"])]

    def _made(self, call: Call, expression: str) -> str:
        """Give a statement: an assignment, where anything is made of the result."""
        names = self._names.of_call(call.number)
        return f"{names} = {expression}" if names else expression

    def _datum(self, call: Call) -> str:
        return self.data.expression(self._names.of_call(call.number) or "unused", call.given["array"])

    def _value(self, item: Any) -> str:
        """Give what an argument is called, or is."""
        if isinstance(item, Ref):
            return self._mask(self._masks[item.call]) if item.call in self._masks else self._names.of(item)
        if isinstance(item, tuple | list) and any(isinstance(part, Ref) for part in item):
            return f"({', '.join(map(self._value, item))})"
        return self.data.expression("numbers", item) if isinstance(item, np.ndarray) else literal(item)

    def _options(self, options: Mapping[str, Any]) -> Iterator[str]:
        for name, option in options.items():
            if isinstance(option, np.ndarray):
                yield f"{name}={self.data.expression(name, option)}"
            elif option is not None:
                yield f"{name}={self._value(option)}"

    def _mask(self, call: Call) -> str:
        terms = call.given["terms"]
        return " & ".join(f"ak.Mask.{kind}({', '.join(self._terms(kind, rest))})" for kind, *rest in terms)

    def _terms(self, kind: str, arguments: Sequence[Any]) -> Iterator[str]:
        for item in arguments:
            array = isinstance(item, np.ndarray)
            yield f"array({self.data.expression(kind, item)})" if array else literal(item)
