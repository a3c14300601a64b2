from __future__ import annotations

import json

from attnkit_conformance.items import items
from attnkit_conformance.requirements import requirements


def test_lists_every_requirement_with_its_items(conform) -> None:
    records = json.loads(conform("list", "--json").output)
    assert [record["id"] for record in records] == [requirement.id for requirement in requirements()]
    assert sum(record["items"] for record in records) == len(items())
    assert all(record["statement"] and record["rules"] for record in records)


def test_the_table_is_for_people(conform) -> None:
    output = conform("list").output
    first = requirements()[0]
    line = next(line for line in output.splitlines() if line.startswith(first.id))
    assert first.title in line
    assert f"L{first.level}" in line
    assert f"{len(requirements())} requirements, {len(items())} items" in output


def test_a_level_contains_those_below_it(conform) -> None:
    levels = {record["level"] for record in json.loads(conform("list", "--level", 1, "--json").output)}
    assert levels == {0, 1}


def test_an_area(conform) -> None:
    records = json.loads(conform("list", "--area", "mask", "--json").output)
    assert records
    assert all(record["id"].startswith("ATTN-MASK-") for record in records)


def test_an_area_that_there_is_not_is_wrong_use(conform) -> None:
    result = conform("list", "--area", "colour")
    assert result.exit_code == 2
    assert "--area must be one of" in result.stderr
    assert "MASK" in result.stderr


def test_every_item(conform) -> None:
    assert conform("list", "--items", "--level", 0).output.split() == [item.id for item in items(0)]
    assert json.loads(conform("list", "--items", "--level", 0, "--json").output) == [item.id for item in items(0)]
