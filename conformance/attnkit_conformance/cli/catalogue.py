"""``attnkit conform list``: the requirements, and every single item."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from attnkit.cli.output import print_json, print_line, print_table
from attnkit_conformance.cli.options import JsonOption, LevelOption, wrong_use
from attnkit_conformance.items import Item, items
from attnkit_conformance.requirements import LEVELS, Requirement, areas, requirements


def catalogue(
    level: LevelOption = 3,
    area: Annotated[str, typer.Option(help="Only ids of one area, such as CACHE in ATTN-CACHE-001.")] = "",
    every: Annotated[bool, typer.Option("--items", help="List the id of every single item instead.")] = False,
    json: JsonOption = False,
) -> None:
    """List the requirements, and how many items hold a backend to each."""
    chosen = _chosen(level, area)
    found = _items_of(chosen, level)
    if every:
        ids = [item.id for item in found]
        print_json(ids) if json else _print_lines(ids)
        return
    counts = Counter(item.requirement.id for item in found)
    if json:
        print_json([_record(requirement, counts[requirement.id]) for requirement in chosen])
        return
    rows = [(item.id, _level(item), item.when or "always", str(counts[item.id]), item.title) for item in chosen]
    print_table(("requirement", "level", "when", "items", "what"), rows)
    print_line(f"\n{len(chosen)} requirements, {len(found)} items; 'attnkit conform explain ID' has the rest")


def _chosen(level: int, area: str) -> list[Requirement]:
    """Give the requirements up to a level, of one area if one is named."""
    if area and area.upper() not in areas():
        wrong_use(f"--area must be one of {', '.join(areas())}, got {area!r}")
    return [item for item in requirements() if item.level <= level and area.upper() in ("", item.area)]


def _items_of(chosen: Sequence[Requirement], level: int) -> list[Item]:
    ids = {requirement.id for requirement in chosen}
    return [item for item in items(level) if item.requirement.id in ids]


def _level(requirement: Requirement) -> str:
    return f"L{requirement.level} {LEVELS[requirement.level]}"


def _record(requirement: Requirement, count: int) -> dict[str, Any]:
    return {
        "id": requirement.id,
        "title": requirement.title,
        "level": requirement.level,
        "rules": list(requirement.rules),
        "when": requirement.when,
        "statement": requirement.statement,
        "items": count,
    }


def _print_lines(lines: Sequence[str]) -> None:
    for line in lines:
        typer.echo(line)
