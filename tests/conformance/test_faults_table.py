"""Every public fault is in the table, and what the table says of it is so."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from attnkit_conformance.faults_table import PublicFault, page, public_faults
from attnkit_conformance.items import items
from attnkit_conformance.requirements import requirements

ROOT = Path(__file__).parents[2]
FAULTS = public_faults()
REQUIREMENTS = {requirement.id for requirement in requirements()}
WITH_CASES = {item.requirement.id for item in items()}
by_id = pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.id)


def test_ids_are_unique() -> None:
    assert len({fault.id for fault in FAULTS}) == len(FAULTS)


def test_every_fault_that_has_a_test_is_in_the_table() -> None:
    texts = [file.read_text("utf-8") for file in (ROOT / "tests" / "public_faults").glob("test_*.py")]
    marked = {found for text in texts for found in re.findall(r'@pytest\.mark\.fault\("([^"]+)"\)', text)}
    assert len(marked) > 90
    assert marked - {fault.id for fault in FAULTS} == set()


@by_id
def test_it_is_well_formed(fault: PublicFault) -> None:
    assert re.fullmatch(r"[\w.-]+(/[\w.-]+)?#\d+", fault.id)
    assert re.fullmatch(r"[a-z-]+", fault.kind)
    assert fault.fault.endswith(".")
    assert "|" not in fault.fault + fault.outside


@by_id
def test_it_is_covered_or_the_table_says_why_not(fault: PublicFault) -> None:
    assert bool(fault.covered) != bool(fault.outside)
    assert set(fault.covered) <= WITH_CASES
    assert set(fault.new) <= set(fault.covered)
    assert set(re.findall(r"ATTN-[A-Z-]+\d+", fault.outside)) <= REQUIREMENTS


def test_most_are_covered() -> None:
    assert sum(bool(fault.covered) for fault in FAULTS) >= 0.75 * len(FAULTS)


def test_addresses_lead_to_where_they_are_discussed() -> None:
    addresses = {fault.id: fault.address for fault in FAULTS}
    assert addresses["onnx/onnx#7274"] == "https://github.com/onnx/onnx/issues/7274"
    assert addresses["discuss.huggingface.co#143839"] == "https://discuss.huggingface.co/t/143839"


def test_the_page_is_what_the_data_gives() -> None:
    assert (ROOT / "docs" / "public-faults.md").read_text("utf-8") == page(), (
        "run: python -m attnkit_conformance.faults_table > docs/public-faults.md"
    )
