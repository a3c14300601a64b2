"""Pages lead to each other, and what they quote is what is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
EXAMPLE = ROOT / "docs" / "examples" / "attnkit-example"
TUTORIAL = (ROOT / "docs" / "writing-a-backend.md").read_text("utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", TUTORIAL, re.M | re.S)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page) -> None:
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text("utf-8")):
        assert (page.parent / target).exists(), target


def test_the_tutorial_quotes_the_whole_module() -> None:
    source = (EXAMPLE / "attnkit_example.py").read_text("utf-8")
    quoted = [block for block in blocks("python") if block.strip() in source]
    lines = {line for block in quoted for line in block.splitlines()}
    assert [line for line in source.splitlines() if line not in lines | {""}] == []


def test_everything_that_the_tutorial_quotes_is_in_the_example() -> None:
    sources = [path.read_text("utf-8") for path in EXAMPLE.glob("*") if path.suffix in {".py", ".toml"}]
    for block in blocks("python") + blocks("toml"):
        assert any(block.strip() in source for source in sources), block


def test_the_design_names_every_module() -> None:
    design = (ROOT / "docs" / "design.md").read_text("utf-8")
    modules = {path.name for path in (ROOT / "attnkit").glob("[a-z]*.py")}
    assert {name for name in modules if name not in design} == set()
