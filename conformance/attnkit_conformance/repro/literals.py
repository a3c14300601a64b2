"""Literals: values, arrays and helpers as Python text."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from typing import Any, Final

import numpy as np

Array = np.ndarray[Any, Any]
_SHORT: Final = 12  # numbers of an array that are written out
_WIDTH: Final = 110


class Data:
    """The arrays of a program: short ones are written out, all others are read from ``arrays.npz``.

    Attributes
    ----------
    arrays
        Every array by its name.
    used
        The program reads some of them from the file.
    """

    def __init__(self) -> None:
        self.arrays: dict[str, Array] = {}
        self.used = False

    def expression(self, name: str, array: Array) -> str:
        """Keep an array under a name that is not taken, and give the expression that stands for it."""
        name = next(free for free in _numbered(name) if free not in self.arrays)
        self.arrays[name] = array
        if (short := _written(array)) is not None:
            return short
        self.used = True
        return f'data["{name}"]' + (".view(ml_dtypes.bfloat16)" if array.dtype.name == "bfloat16" else "")


def literal(value: Any) -> str:
    """Give a number, a string, or a sequence of them as Python writes it."""
    if isinstance(value, np.floating):  # which may promote what a float does not
        return f"np.{value.dtype.name}({literal(value.item())})"
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, list):
        return f"[{', '.join(map(literal, value))}]"
    if isinstance(value, float) and not np.isfinite(value):
        return f'float("{value}")'
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, set):
        return f"{{{', '.join(map(literal, sorted(value)))}}}"
    if isinstance(value, tuple):
        return f"({', '.join(map(literal, value))}{',' if len(value) == 1 else ''})"
    return repr(value)


def called(name: str, arguments: Sequence[str]) -> str:
    """Give a call, on several lines where it is long."""
    flat = ", ".join(arguments)
    if len(name) + len(flat) <= _WIDTH - 15:
        return f"{name}({flat})"
    if len(flat) <= _WIDTH - 4 and "\n" not in flat:
        return f"{name}(\n    {flat}\n)"
    return f"{name}(\n" + "".join(textwrap.indent(f"{argument},\n", "    ") for argument in arguments) + ")"


def index(places: tuple[Any, ...]) -> str:
    """Give an index in brackets; nothing for all of an array."""
    if not places:
        return ""
    return f"[{', '.join(_place(place) for place in places)}]"


def source(thing: Callable[..., Any] | type) -> str:
    """Give the text of a function or class without annotations and docstrings."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(thing)))
    return ast.unparse(_Bare().visit(tree))


class _Bare(ast.NodeTransformer):
    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.returns = None
        for argument in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs):
            argument.annotation = None
        return self._documented(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        node.bases = [base.value if isinstance(base, ast.Subscript) else base for base in node.bases]
        return self._documented(node)

    def _documented(self, node: ast.FunctionDef | ast.ClassDef) -> ast.AST:
        if ast.get_docstring(node) is not None:
            node.body = node.body[1:] or [ast.Pass()]
        return self.generic_visit(node)


def _numbered(name: str) -> Iterator[str]:
    """Give a name, then the same with numbers."""
    yield name
    yield from (f"{name}_{number}" for number in count(2))


def _written(array: Array) -> str | None:
    """Give a short array as an expression, if it has one that means exactly the same."""
    flat, shape, dtype = array.ravel(), literal(array.shape), _dtype(array)
    if not array.any() and not np.signbit(np.asarray(flat, np.float64)).any():
        return f"np.zeros({shape}, {dtype})"
    if array.size > 2 and _same(flat, np.full_like(flat, flat[0])):
        return f"np.full({shape}, {_number(flat[0])}, {dtype})"
    numbers = [_number(number) for number in flat] if array.size <= _SHORT else []
    if not 0 < sum(map(len, numbers)) <= 60 or not _same(np.array(list(map(_read, numbers))).astype(flat.dtype), flat):
        return None
    kind = "" if array.dtype.name in ("int64", "float64", "bool") else f", {dtype}"
    shaped = "" if array.ndim == 1 else f".reshape{shape}" if array.ndim else ".reshape(())"
    return f"np.array([{', '.join(numbers)}]{kind}){shaped}"


def _dtype(array: Array) -> str:
    name = array.dtype.name
    return "ml_dtypes.bfloat16" if name == "bfloat16" else f"np.{name.replace('bool', 'bool_')}"


def _number(number: Any) -> str:
    """Give the shortest text that is read as the same number of its type."""
    if isinstance(number, np.bool_ | np.integer):
        return str(number)
    wide = float(number)
    if not np.isfinite(wide):
        return "np.nan" if np.isnan(wide) else "np.inf" if wide > 0 else "-np.inf"
    if wide == int(wide) and abs(wide) < 1e6:
        return ("-" if np.signbit(wide) else "") + f"{abs(int(wide))}."
    return str(number)


def _read(text: str) -> Any:
    if text in ("True", "False"):
        return text == "True"
    return float(text.replace("np.", "")) if "." in text or "e" in text else int(text)


def _same(one: Array, other: Array) -> bool:
    return one.tobytes() == other.tobytes()


def _place(place: Any) -> str:
    if isinstance(place, slice):
        return f"{'' if place.start is None else place.start}:{'' if place.stop is None else place.stop}"
    return literal(place)
