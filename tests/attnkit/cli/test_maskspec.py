from __future__ import annotations

import pytest

import attnkit as ak
from attnkit.cli.maskspec import parse_mask


@pytest.mark.parametrize(
    ("text", "mask"),
    [
        ("causal", ak.Mask.causal()),
        ("causal()", ak.Mask.causal()),
        (" causal & window(512) ", ak.Mask.causal() & ak.Mask.window(512)),
        ("window(3, 1)", ak.Mask.window(3, 1)),
        ("window(left=3, right=None)", ak.Mask.window(3, None)),
        ("(causal & chunked(4)) & window(2)", ak.Mask.causal() & ak.Mask.chunked(4) & ak.Mask.window(2)),
        ("prefix(5)", ak.Mask.prefix(5)),
        ("documents([0, 1], [0, 0, 1])", ak.Mask.documents([0, 1], [0, 0, 1])),
        ("dense([[True, False]])", ak.Mask.dense([[True, False]])),
    ],
)
def test_reads_what_mask_builds(text, mask) -> None:
    assert parse_mask(text) == mask


def test_none_is_no_mask() -> None:
    assert parse_mask("none") is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "causal &",
        "causal + window(3)",
        "diagonal",
        "from_dict({})",
        "__class__",
        "__import__('os').getcwd()",
        "window(__import__('os'))",
        "window(**{'left': 3})",
        "window(1 << 2)",
        "window()",
        "window(3, 4, 5)",
        "window('3')",
        "window(0)",
        "prefix(2) & causal",
        "3",
    ],
)
def test_anything_else_is_refused(text) -> None:
    with pytest.raises(ak.ShapeError, match="mask"):
        parse_mask(text)
