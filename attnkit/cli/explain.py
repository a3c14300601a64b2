"""``attnkit explain``: which backend and path would take a call, and every reason against the others."""

from __future__ import annotations

import math
from contextlib import suppress
from typing import Annotated

import typer

from attnkit.arrays import DTYPES
from attnkit.cli.maskspec import parse_mask
from attnkit.cli.output import FAULT, print_json, print_line, print_table
from attnkit.errors import BackendUnavailableError, DTypeError, PluginError, ShapeError
from attnkit.explanation import Explanation, explain_request
from attnkit.request import AttentionRequest, round_length
from attnkit.selection import current_choice, normalise, resolve

Size = Annotated[int, typer.Option(min=0)]


def explain(
    batch: Size = 1,
    heads: Annotated[int, typer.Option(min=0, help="Query heads, H.")] = 8,
    kv_heads: Annotated[int | None, typer.Option(min=0, help="Key/value heads, K; H by default.")] = None,
    queries: Annotated[int, typer.Option(min=0, help="Query length, T.")] = 1024,
    keys: Annotated[int | None, typer.Option(min=0, help="Key length, S; T by default.")] = None,
    head_dim: Annotated[int, typer.Option(min=1, help="Query/key head size, D.")] = 64,
    value_dim: Annotated[int | None, typer.Option(min=1, help="Value head size, E; D by default.")] = None,
    dtype: Annotated[str, typer.Option(help=f"One of {', '.join(DTYPES)}.")] = "float32",
    mask: Annotated[str, typer.Option(help="Such as 'causal & window(512)'.")] = "none",
    softcap: Annotated[float | None, typer.Option(help="Soft-cap of the scores.")] = None,
    bias: Annotated[bool, typer.Option("--bias", help="With an additive bias.")] = False,
    alibi: Annotated[bool, typer.Option("--alibi", help="With ALiBi slopes.")] = False,
    sinks: Annotated[bool, typer.Option("--sinks", help="With sink logits.")] = False,
    lengths: Annotated[bool, typer.Option("--lengths", help="With key lengths per sequence.")] = False,
    lse: Annotated[bool, typer.Option("--lse", help="With the log-sum-exp.")] = False,
    grad: Annotated[bool, typer.Option("--grad", help="With gradients.")] = False,
    array_type: Annotated[str, typer.Option(help="Class of the query.")] = "numpy.ndarray",
    device: Annotated[str, typer.Option(help="Such as cpu or cuda:0.")] = "cpu",
    backend: Annotated[str | None, typer.Option(help="Ask for these: 'numpy', 'numpy:tiled', 'torch,numpy'.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Say which backend and path would take a call, and all reasons why not for the others; runs nothing.

    Exits with 1 where nothing takes the call.
    """
    parsed = parse_mask(mask)
    request = AttentionRequest(
        array_type=(array_type,),
        device=device,
        dtype=_dtype(dtype),
        kv_dtype=dtype,
        batch=batch,
        num_heads=heads,
        num_kv_heads=_kv_heads(heads, kv_heads),
        query_length=queries,
        key_length=round_length(queries if keys is None else keys),
        head_dim=head_dim,
        value_dim=head_dim if value_dim is None else value_dim,
        scale=head_dim**-0.5,
        softcap=_softcap(softcap),
        bias=dtype if bias else None,
        alibi=alibi,
        sinks=sinks,
        kv_lengths=lengths,
        lse=lse,
        grad=grad,
    )
    if parsed is not None:
        request = request._replace(mask=parsed.structure)
    explanation = explain_request(request, current_choice(_choice(backend)))
    print_json(explanation.to_dict()) if json else _print(explanation)
    if explanation.backend is None:
        raise typer.Exit(FAULT)


def _dtype(name: str) -> str:
    if name not in DTYPES:
        raise DTypeError(f"--dtype must be one of {', '.join(DTYPES)}, got {name!r}")
    return name


def _softcap(softcap: float | None) -> float | None:
    if softcap is not None and not 0 < softcap < math.inf:
        raise ShapeError(f"--softcap must be a finite number > 0, got {softcap}")
    return softcap


def _kv_heads(heads: int, kv_heads: int | None) -> int:
    if kv_heads is None:
        return heads
    if kv_heads == 0 or heads % kv_heads:
        raise ShapeError(f"--heads must be a multiple of --kv-heads, got {heads} and {kv_heads}")
    return kv_heads


def _choice(backend: str | None) -> str | list[str] | None:
    """Read ``--backend``; a name or path that does not exist is wrong use."""
    if backend is None:
        return None
    names = [name.strip() for name in backend.split(",")]
    normalise(names)
    for name in names:
        with suppress(BackendUnavailableError, PluginError):  # these the explanation tells
            resolve(name)
    return names if len(names) > 1 else names[0]


def _print(explanation: Explanation) -> None:
    if explanation.backend is None:
        print_line(f"nothing takes the call ({explanation.choice})")
    else:
        print_line(f"{explanation.backend}:{explanation.path} takes the call ({explanation.choice})")
    if explanation.rejected:
        print_line("")
        rows = [(name, str(reason)) for name, reasons in explanation.rejected.items() for reason in reasons]
        print_table(("not taken", "why"), rows)
