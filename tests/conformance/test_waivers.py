"""Waivers: a known failure is named, has a reason and an end, and may not outlive what it waives."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from attnkit_conformance import Result, Waiver, WaiverError, load_waivers
from attnkit_conformance.items import Item, items
from attnkit_conformance.requirements import requirements
from attnkit_conformance.results import Status
from attnkit_conformance.waivers import Ledger

WHOLE = """
[[waiver]]
id = "ATTN-SINK-001"
backend = "mine"
reason = "the compiler drops the sink when T = 1"
link = "https://example.org/issues/7"
expires = "2999-01-01"
"""
FEW = next(one for one in requirements() if 1 < sum(item.requirement is one for item in items(2)) < 9)
ITEMS = [item for item in items(2) if item.requirement is FEW]


def waiver(id_: str, **fields: Any) -> Waiver:
    given = {"backend": "mine", "reason": "known", "link": "https://example.org/7", "expires": date(2999, 1, 1)}
    return Waiver(**{"id": id_, **given, **fields})


def result(item: Item, status: Status) -> Result:
    return Result(id=item.id, requirement=item.requirement.id, level=2, dtype="float32", status=status, message="odd")


def settled(waived: str, *statuses: Status, whole: bool = True) -> list[Result]:
    ledger = Ledger([waiver(waived)], "mine", ITEMS[: len(statuses)], whole=whole)
    return [ledger.settle(result(item, status)) for item, status in zip(ITEMS, statuses, strict=False)]


def test_a_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "waivers.toml"
    path.write_text(WHOLE + WHOLE.replace("SINK", "BIAS"))
    first, second = load_waivers(path)
    assert (first.id, second.id) == ("ATTN-SINK-001", "ATTN-BIAS-001")
    assert first.expires == date(2999, 1, 1)
    path.write_text("")
    assert load_waivers(path) == ()


@pytest.mark.parametrize("line", [line for line in WHOLE.splitlines() if " = " in line])
def test_everything_must_be_said(tmp_path: Path, line: str) -> None:
    path = tmp_path / "waivers.toml"
    for text in ("", f"{line.partition(' = ')[0]} = ''"):
        path.write_text(WHOLE.replace(line, text))
        with pytest.raises(WaiverError, match=f"waiver 1: {line.partition(' = ')[0]}"):
            load_waivers(path)


@pytest.mark.parametrize(
    "text",
    [
        "[[waiver]",
        WHOLE.replace("https://example.org", "see"),
        WHOLE + "until = 3",
        "waiver = 3",
        WHOLE.replace("waiver", "waivers"),
    ],
)
def test_what_is_no_file_of_waivers(tmp_path: Path, text: str) -> None:
    path = tmp_path / "waivers.toml"
    path.write_text(text)
    with pytest.raises(WaiverError, match=r"waivers\.toml"):
        load_waivers(path)
    with pytest.raises(WaiverError, match=r"none\.toml"):
        load_waivers(tmp_path / "none.toml")


@pytest.mark.parametrize("status", ["FAIL", "CRASH", "TIMEOUT"])
def test_a_failure_is_waived(status: Status) -> None:
    (waived,) = settled(ITEMS[0].id, status)
    assert waived.status == "WAIVED"
    assert waived.message == "odd"
    assert waived.outcome == "known (https://example.org/7)"


@pytest.mark.parametrize("status", ["ERROR", "NOT_RUN"])
def test_nothing_else_is_waived(status: Status) -> None:
    assert settled(ITEMS[0].id, status)[0].status == status


def test_an_item_that_passes_after_all() -> None:
    (found,) = settled(ITEMS[0].id, "PASS")
    assert found.status == "XPASS"
    assert ITEMS[0].id in found.message


def test_others_are_let_be() -> None:
    assert [found.status for found in settled(ITEMS[0].id, "FAIL", "FAIL")] == ["WAIVED", "FAIL"]
    both = [waiver(ITEMS[0].id, backend="other"), waiver(ITEMS[1].id)]
    ledger = Ledger(both, "mine", ITEMS, whole=True)
    assert ledger.settle(result(ITEMS[0], "FAIL")).status == "FAIL"
    assert list(ledger.waivers) == [ITEMS[1].id]


def test_a_requirement_is_waived_as_a_whole() -> None:
    assert [found.status for found in settled(FEW.id, "PASS", "FAIL")] == ["PASS", "WAIVED"]
    assert [found.status for found in settled(FEW.id, "CRASH", "PASS")] == ["WAIVED", "PASS"]


def test_a_requirement_of_which_nothing_fails() -> None:
    assert [found.status for found in settled(FEW.id, "PASS", "PASS")] == ["PASS", "XPASS"]
    assert [found.status for found in settled(FEW.id, "PASS", "NOT_RUN")] == ["PASS", "NOT_RUN"]
    assert [found.status for found in settled(FEW.id, "PASS", "PASS", whole=False)] == ["PASS", "PASS"]


def test_all_that_is_wrong_is_told_at_once() -> None:
    yesterday = datetime.now(UTC).date() - timedelta(days=1)
    wrong = [waiver("ATTN-NONE-001"), waiver(FEW.id, expires=yesterday), waiver(FEW.id), waiver("ATTN-*")]
    with pytest.raises(WaiverError) as caught:
        Ledger(wrong, "mine", ITEMS, whole=True)
    told = str(caught.value)
    assert "ATTN-NONE-001: there is no such item or requirement" in told
    assert "ATTN-*: there is no such item or requirement" in told
    assert f"{FEW.id}: expired on {yesterday}" in told
    assert f"{FEW.id}: given 2 times" in told


def test_the_last_day_counts() -> None:
    Ledger([waiver(FEW.id, expires=datetime.now(UTC).date())], "mine", ITEMS, whole=True)


def test_a_file_that_is_for_others_alone_is_an_error() -> None:
    with pytest.raises(WaiverError, match="none is for mine, they are for mien"):
        Ledger([waiver(ITEMS[0].id, backend="mien")], "mine", ITEMS, whole=True)
