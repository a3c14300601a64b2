"""Targets that a front turns down before it starts anything."""

from __future__ import annotations

from attnkit_conformance.harness.targets import TargetError

_PROGRAM = "cmd:"


def refuse_programs(target: str) -> None:
    """Refuse a program as a target, which is spelled already and not there yet.

    Raises
    ------
    TargetError
        If the target is ``cmd:PROGRAM``.
    """
    if target.startswith(_PROGRAM):
        raise TargetError(
            f"{target}: programs of other languages come with cross-checking; until then give NAME, NAME:PATH "
            "or module:factory"
        )
