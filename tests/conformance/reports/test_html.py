"""The page: everything is on it, everything is escaped, and it can be read."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable
from html.parser import HTMLParser
from importlib.resources import files

import pytest

from attnkit_conformance.reports.html import MOST, html_text
from attnkit_conformance.reports.kinds import count, kind_of
from attnkit_conformance.requirements import requirements
from attnkit_conformance.results import Report, Result, Status, Worst

Alter = Callable[..., Report]
VOID = {"meta", "link", "rect", "line", "br", "wbr"}
HOSTILE = "</pre><script>alert(1)</script><img src=x onerror=alert(2)>{{ 7 * 7 }}"


class Reader(HTMLParser):
    """Reads a page: its text, its elements, and what is not closed."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.words: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in ("style", "script"):
            self.words.append(data)

    @property
    def text(self) -> str:
        return re.sub(r"\s+", " ", "".join(self.words))

    def classes(self, word: str) -> list[str]:
        """Give the classes that begin with a word, one for each element that has one."""
        names = [name for _, attributes in self.elements for name in (attributes.get("class") or "").split()]
        return [name for name in names if name.startswith(word)]


@pytest.fixture(scope="module")
def page(faulty: Report) -> Reader:
    return Reader(html_text(faulty))


def test_it_is_well_formed_and_refers_to_itself_alone(page: Reader) -> None:
    assert page.open == []
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert [name for name, number in Counter(ids).items() if number > 1] == []
    links = [attributes["href"] or "" for tag, attributes in page.elements if tag == "a"]
    assert {link.removeprefix("#") for link in links} <= set(map(str, ids))
    assert all(link.startswith("#") for link in links)


def test_it_needs_no_network(faulty: Report) -> None:
    text = html_text(faulty)
    assert re.findall(r"(?:https?:)?//[a-z]|url\(|@import|\bsrc=", text) == []
    assert "default-src 'none'" in text


def test_it_has_every_requirement_failure_and_count(page: Reader, faulty: Report) -> None:
    known = {requirement.id: requirement for requirement in requirements()}
    for name in {result.requirement for result in faulty.results}:
        assert name in page.text
        assert known[name].title.replace("`", "") in page.text
        assert known[name].statement.replace("`", "") in page.text
    failed = [result for result in faulty.results if result.status == "FAIL"]
    assert failed
    for result in failed:
        assert result.id.partition("/")[2] in page.text
        assert re.sub(r"\s+", " ", result.message) in page.text
    assert "NO VERDICT" in page.text
    for kind, number in count(faulty.results).items():
        assert f"{kind}{number}" in page.text.replace(" ", "")


def test_every_cell_has_a_sign_beside_its_colour(page: Reader) -> None:
    assert set(page.classes("k-")) >= {"k-answered", "k-refused", "k-failed"}
    cells = re.findall(r"[✗○!✓–⊘] \d+ (?:failed|not run|waived|answered|refused|outside)", page.text)
    assert len(cells) > 20


def test_a_failure_tells_where_it_is_worst(page: Reader, failure: Result) -> None:
    worst = failure.worst
    assert worst is not None
    for text in (f"{worst.expected:.9g}", f"{worst.actual:.9g}", f"{worst.tau:.9g}", worst.what):
        assert text in page.text
    place = [result.worst.at for result in (failure,) if result.worst]
    assert f"i={place[0][2]}" in page.text


@pytest.mark.parametrize("row", [0, 63, 64, 130])
def test_tile_positions(clean: Report, changed: Alter, row: int) -> None:
    worst = Worst(what="output", ratio=3.0, at=(1, 2, row, 21), expected=math.inf, actual=math.nan, term="the weights")
    page = Reader(html_text(changed(clean, status="FAIL", message="wrong", worst=worst, repro="repro/12ab")))
    for text in (f"row {row % 64} of 64, column 5 of 8", "∞", "NaN", "the weights", "repro/12ab", f"i={row}, e=21"):
        assert text in page.text
    [hit] = [attributes for tag, attributes in page.elements if tag == "rect" and attributes["class"] == "hit"]
    assert (hit["x"], hit["y"]) == (f"{row % 64 + 0.1}", "5.1")


def test_what_fails_by_no_number_shows_none(clean: Report, changed: Alter) -> None:
    worst = Worst(what="an earlier output", ratio=0.5, at=(0, 0, 3, 3))
    page = Reader(html_text(changed(clean, status="FAIL", message="ValueError: no", worst=worst)))
    assert "an earlier output" not in page.text
    assert "Place in a tile" not in page.text
    assert "hit" not in page.classes("hit")


def test_nothing_that_a_backend_says_is_markup(clean: Report, changed: Alter, headed: Alter) -> None:
    report = headed(
        changed(clean, status="FAIL", message=HOSTILE, repro=HOSTILE, dtype=HOSTILE, outcome=HOSTILE),
        backend=HOSTILE, path=HOSTILE, paths=(HOSTILE,), source=HOSTILE, contract_version=HOSTILE, started=HOSTILE,
        environment={HOSTILE: HOSTILE}, waivers=({HOSTILE: HOSTILE},),
        capabilities={**clean.header.capabilities, HOSTILE: HOSTILE},
    )  # fmt: skip
    harmless = Reader(html_text(changed(clean, status="FAIL", message="wrong")))
    page = Reader(html_text(report))
    assert page.open == []
    assert [tag for tag, _ in page.elements].count("script") == 1
    assert {tag for tag, _ in page.elements} == {tag for tag, _ in harmless.elements} | {"h2", "dl"}
    assert not any(name.startswith("on") for _, attributes in page.elements for name in attributes)
    assert HOSTILE in page.text


def test_a_requirement_of_another_suite_is_shown_too(clean: Report, changed: Alter) -> None:
    text = Reader(html_text(changed(clean, requirement="ATTN-OLD-001"))).text
    assert "ATTN-OLD-001" in text
    assert "Not a requirement of this suite" in text


@pytest.mark.parametrize(
    ("status", "tone"), [("PASS", "good"), ("FAIL", "bad"), ("TIMEOUT", "bad"), ("NOT_RUN", "open"), ("WAIVED", "good")]
)
def test_the_verdict_looks_like_what_it_says(
    clean: Report, changed: Alter, headed: Alter, status: Status, tone: str
) -> None:
    whole = changed(headed(clean, sample=1.0), status=status, message="it does")
    page = Reader(html_text(whole))
    [verdict] = [attributes["class"] for _, attributes in page.elements if "verdict" in (attributes.get("class") or "")]
    assert verdict == f"verdict {tone}"
    assert (status == "WAIVED") == ("CONFORMANT WITH WAIVERS(1)" in page.text)


def test_a_run_that_was_cut_short_says_so(clean: Report) -> None:
    page = Reader(html_text(clean.model_copy(update={"footer": None, "results": clean.results[:3]})))
    assert "NO VERDICT" in page.text
    assert "the run was cut short" in page.text
    assert page.classes("good") == []


def test_a_run_of_nothing_is_still_a_page(clean: Report, headed: Alter) -> None:
    page = Reader(html_text(headed(clean.model_copy(update={"results": ()}), capabilities={}, sample=1.0)))
    assert page.open == []
    assert "there are no results" in page.text


def test_reasons_for_what_was_not_run_stand_on_it(clean: Report, changed: Alter) -> None:
    page = Reader(html_text(changed(clean, status="NOT_RUN", outcome="no device of kind cuda")))
    assert "1 × no device of kind cuda" in page.text


def test_of_many_failures_some_are_shown_and_all_are_named(faulty: Report) -> None:
    worst = Worst(what="output", ratio=2.0, at=(0, 0, 0, 0))
    results = [
        result.model_copy(update={"requirement": "ATTN-OLD-001", "status": "FAIL", "message": "wrong", "worst": worst})
        for result in faulty.results
    ]
    page = Reader(html_text(faulty.model_copy(update={"results": tuple(results)})))
    assert len(results) > MOST
    assert page.classes("failure") == ["failure"] * MOST
    assert f"{len(results) - MOST} more, in full in report.json" in page.text
    assert all(result.id in page.text for result in results)


def test_the_largest_errors_come_first(faulty: Report, page: Reader) -> None:
    ratios: dict[str, dict[int, float]] = {}
    for result in faulty.results:
        if kind_of(result) == "failed" and result.worst:
            place = page.text.index(result.id.partition("/")[2])
            ratios.setdefault(result.requirement, {})[place] = result.worst.ratio
    several = [[ratio for _, ratio in sorted(found.items())] for found in ratios.values() if len(found) > 1]
    assert several
    assert several == [sorted(found, reverse=True) for found in several]


# Contrast, https://www.w3.org/TR/WCAG21/#contrast-minimum


def luminance(colour: str) -> float:
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(one: str, other: str) -> float:
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def test_contrast_is_computed_as_it_is_defined() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_every_text_stands_out(theme: int) -> None:
    style = (files("attnkit_conformance.reports") / "templates" / "style.css").read_text("utf-8")
    themes = [dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", part)) for part in style.split("prefers-color-scheme")]
    assert len(themes) == 2
    assert set(themes[0]) == set(themes[1])
    colours = themes[theme]
    pairs = [(name, name[:-2] + "fg") for name in colours if name.endswith("-bg")]
    assert len(pairs) > 12
    pairs += [(ground, ink) for ground in ("page", "panel") for ink in ("ink", "soft", "link")]
    assert {pair: contrast(*map(colours.get, pair)) for pair in pairs if contrast(*map(colours.get, pair)) < 4.5} == {}


def test_every_colour_of_a_kind_is_defined(page: Reader) -> None:
    style = (files("attnkit_conformance.reports") / "templates" / "style.css").read_text("utf-8")
    for name in {*page.classes("k-"), *page.classes("h-")}:
        assert f".{name} " in style
