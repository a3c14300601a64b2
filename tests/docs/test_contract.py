"""The example matrices of docs/contract.md say what ``Mask`` and the oracle say."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from attnkit import reference
from attnkit.cli.maskspec import parse_mask

CONTRACT = Path(__file__).parents[2] / "docs" / "contract.md"
BLOCK = re.compile(
    r"^```mask\n(?P<spec>.+?)  T = (?P<t>\d+), S = (?P<s>\d+)\n(?P<columns>p\\j.*)\n(?P<rows>(?:.+\n)+?)```$", re.M
)


class Example(NamedTuple):
    spec: str
    query_length: int
    key_length: int
    columns: list[int]
    positions: list[int]
    shown: np.ndarray


def examples() -> list[Example]:
    return [read(match) for match in BLOCK.finditer(CONTRACT.read_text("utf-8"))]


def read(match: re.Match[str]) -> Example:
    rows = [line.split() for line in match["rows"].splitlines()]
    return Example(
        spec=match["spec"],
        query_length=int(match["t"]),
        key_length=int(match["s"]),
        columns=[int(number) for number in match["columns"].split()[1:]],
        positions=[int(row[0]) for row in rows],
        shown=np.array([[{"1": True, ".": False}[cell] for cell in row[1:]] for row in rows]),
    )


def name(example: Example) -> str:
    return f"{example.spec} T={example.query_length} S={example.key_length}"


def test_every_block_is_read() -> None:
    assert len(examples()) == CONTRACT.read_text("utf-8").count("```mask\n")


def test_every_kind_has_an_example() -> None:
    kinds = {kind for example in examples() for kind in re.findall(r"([a-z]+)\(", example.spec)}
    assert kinds == {"causal", "chunked", "dense", "documents", "prefix", "window"}


@pytest.mark.parametrize("example", examples(), ids=name)
def test_positions_follow_a3(example: Example) -> None:
    last = np.arange(example.query_length) + example.key_length - example.query_length
    assert example.positions == last.tolist()
    assert example.columns == list(range(example.key_length))


@pytest.mark.parametrize("example", examples(), ids=name)
def test_mask_agrees(example: Example) -> None:
    mask = parse_mask(example.spec)
    assert mask is not None
    np.testing.assert_array_equal(mask.as_array(example.query_length, example.key_length), example.shown)


@pytest.mark.parametrize("example", examples(), ids=name)
def test_oracle_agrees(example: Example) -> None:
    query, key = np.zeros((1, 1, example.query_length, 1)), np.zeros((1, 1, example.key_length, 1))
    truth = reference.attention(query, key, key, mask=parse_mask(example.spec))
    np.testing.assert_array_equal(truth.weights[0, 0] > 0, example.shown)
