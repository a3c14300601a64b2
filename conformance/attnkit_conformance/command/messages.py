"""Messages: what goes to a program and what comes back, one object of JSON a line.

Numbers travel in files: a call has a folder, whose ``case.json``, ``case.tsv`` and ``index.tsv`` say what is where.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

PROTOCOL: Final = 1
LONGEST: Final = 1 << 20
"""Bytes of a line."""


class _Request(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    id: int


class Hello(_Request):
    """Asks who the program is."""

    command: Literal["hello"] = "hello"
    protocol: Literal[1] = PROTOCOL


class AskCapabilities(_Request):
    """Asks what the program can do."""

    command: Literal["capabilities"] = "capabilities"


class Attend(_Request):
    """Compute the call in a folder, and write ``out/output.bin`` and, where it is wanted, ``out/lse.bin`` there."""

    command: Literal["attend"] = "attend"
    folder: str


class Stop(_Request):
    """End."""

    command: Literal["stop"] = "stop"


Request = Annotated[Hello | AskCapabilities | Attend | Stop, Field(discriminator="command")]


class _Reply(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    id: int


class HelloReply(_Reply):
    """The program's name, its version, and the language it is written in."""

    status: Literal["ok"]
    protocol: Literal[1]
    name: Annotated[str, Field(max_length=100)]
    version: Annotated[str, Field(max_length=100)] = ""
    language: Annotated[str, Field(max_length=100)] = ""


class CapabilitiesReply(_Reply):
    """Fields of ``attnkit.Capabilities``; those left out are what a backend is that declares nothing."""

    status: Literal["ok"]
    capabilities: Mapping[str, Any]


class Done(_Reply):
    """The results are in their files."""

    status: Literal["ok"]


class Unsupported(_Reply):
    """The call is not for this program: the code of the reason, which is a field of ``attnkit.Capabilities``."""

    status: Literal["unsupported"]
    code: Annotated[str, Field(min_length=1, max_length=100)]
    message: Annotated[str, Field(max_length=10_000)] = ""


class Errored(_Reply):
    """The call failed."""

    status: Literal["error"]
    message: Annotated[str, Field(max_length=10_000)]


Reply = HelloReply | CapabilitiesReply | Done | Unsupported | Errored
_BOTH: Final[dict[str, TypeAdapter[Any]]] = {"request": TypeAdapter(Request), "reply": TypeAdapter(Reply)}


def schema() -> dict[str, Any]:
    """Give the JSON Schema of both directions."""
    parts = {name: adapter.json_schema(ref_template="#/$defs/{model}") for name, adapter in _BOTH.items()}
    definitions: dict[str, Any] = {}
    for part in parts.values():
        definitions |= part.pop("$defs", {})
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "attnkit subprocess protocol 1",
        "$defs": {**definitions, **parts},
        "anyOf": [{"$ref": f"#/$defs/{name}"} for name in parts],
    }
