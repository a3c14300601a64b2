"""Read a mask from text such as ``causal & window(512)``: the constructors of ``Mask`` and ``&``, nothing else."""

from __future__ import annotations

import ast
import inspect

from attnkit.errors import ShapeError
from attnkit.masks import Mask

_KINDS = ("causal", "chunked", "dense", "documents", "prefix", "window")
_FORM = f"a mask is written like 'causal & window(512)'; kinds: {', '.join(_KINDS)}"


def parse_mask(text: str) -> Mask | None:
    """Read a mask; ``none`` is no mask.

    Nothing is evaluated: the text is parsed as a Python expression, and only calls of the mask kinds with literal
    arguments, joined by ``&``, are let through.

    Raises
    ------
    ShapeError
        If the text is not of that form, or an argument is out of range.
    """
    if text.strip().lower() == "none":
        return None
    try:
        return _read(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, RecursionError, MemoryError) as error:
        raise ShapeError(f"mask: cannot read {text[:80]!r}; {_FORM}") from error


def _read(node: ast.expr) -> Mask:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitAnd):
        return _read(node.left) & _read(node.right)
    if isinstance(node, ast.Name):
        return _build(node.id, [], {})
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        named = {keyword.arg: keyword.value for keyword in node.keywords if keyword.arg is not None}
        if len(named) == len(node.keywords):
            return _build(node.func.id, node.args, named)
    raise ShapeError(f"mask: cannot read {ast.unparse(node)!r}; {_FORM}")


def _build(kind: str, arguments: list[ast.expr], named: dict[str, ast.expr]) -> Mask:
    if kind not in _KINDS:
        raise ShapeError(f"mask: there is no kind {kind!r}; {_FORM}")
    constructor = getattr(Mask, kind)
    try:
        bound = inspect.signature(constructor).bind(
            *map(ast.literal_eval, arguments), **{name: ast.literal_eval(value) for name, value in named.items()}
        )
    except (TypeError, ValueError) as error:
        raise ShapeError(f"mask: {kind}{inspect.signature(constructor)} does not take that: {error}") from error
    mask: Mask = constructor(*bound.args, **bound.kwargs)
    return mask
