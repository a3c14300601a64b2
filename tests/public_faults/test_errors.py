"""A refusal says what, why and by whom, in one exception; an ordinary call is not refused (E, A18)."""

from __future__ import annotations

import numpy as np
import pytest

import attnkit as ak


class _Picky(ak.Backend):
    """Declares little and computes nothing."""

    name = "picky"

    def capabilities(self) -> ak.Capabilities:
        return ak.Capabilities(dtypes=frozenset({"float16"}), head_dims=ak.Sizes(8, 64, 8))

    def attention(self, query, key, value, operands, request) -> ak.AttentionOutput:
        raise AssertionError("never reached: it refuses first")

    def from_numpy(self, array):
        return array

    to_numpy = from_numpy


class _Choosy(_Picky):
    name = "choosy"

    def capabilities(self) -> ak.Capabilities:
        return ak.Capabilities(dtypes=frozenset({"float32"}))


@pytest.mark.fault("pytorch/pytorch#117354")
def test_one_exception_with_every_reason(lab) -> None:
    """'No available kernel', with the reasons in warnings if anywhere."""
    arrays = lab.draw(1, 2, 3, 3, head_dim=70)
    with pytest.raises(ak.UnsupportedError) as caught:
        ak.attention(*arrays, mask=ak.Mask.window(2), backend=[_Picky(), _Choosy()])
    message = str(caught.value)
    for part in (
        "none of the chosen backends (picky, choosy) takes this call",
        "picky: dtype must be float16, got float32",
        "picky: head_dim must be from 8 to 64, a multiple of 8, got 70",
        "picky: mask.window must be absent, got given",
        "choosy: mask.window must be absent, got given",
    ):
        assert part in message
    codes = {name: [reason.code for reason in reasons] for name, reasons in caught.value.reasons.items()}
    assert codes == {"picky": ["dtypes", "head_dims", "window"], "choosy": ["window"]}


@pytest.mark.fault("pytorch/pytorch#117354")
def test_arrays_of_three_axes_are_fine(attend, lab) -> None:
    """The same report: 3-D inputs were refused, and the message did not say so."""
    arrays = lab.draw(1, 2, 3, 3)
    found = attend(*(array[0] for array in arrays))
    lab.same_bits(found.output, attend(*arrays).output[0])
    lab.same_bits(found.lse, attend(*arrays).lse[0])
    with pytest.raises(ak.ShapeError, match=r"all \[H, T, D\].*got \[2, 3, 8\], \[1, 2, 3, 8\]"):
        attend(arrays[0][0], *arrays[1:])


@pytest.mark.fault("facebookresearch/xformers#683")
@pytest.mark.parametrize("size", [1, 7, 10, 77])
def test_odd_lengths_with_a_mask(attend, lab, size) -> None:
    """A mask of an odd length failed with words about a stride; the remedy was to cut it from a padded one."""
    keep = np.random.default_rng(size).random((3, 5, size)) < 0.7
    attend.checked(*lab.draw(2, 3, 5, size), mask=ak.Mask.dense(keep))
    attend.checked(*lab.draw(2, 3, 5, size), bias=np.where(keep, 0.5, -np.inf).astype(np.float32))


@pytest.mark.fault("ml-explore/mlx#3585")
def test_a_transposed_view_is_the_layout(attend, lab) -> None:
    """Arrays ``[B, T, H, D]`` were given where ``[B, H, T, D]`` is meant; axes are fixed, and a view turns them."""
    stored = [np.ascontiguousarray(array.swapaxes(1, 2)) for array in lab.draw(1, 4, 5, 5, kv_heads=2)]
    turned = [array.swapaxes(1, 2) for array in stored]
    expected = attend.checked(*map(np.ascontiguousarray, turned)).output
    lab.close(attend(*turned).output, expected, 1e-5)
    with pytest.raises(ak.ShapeError, match=r"\[B, H, T, D\], \[B, K, S, D\].*got \[1, 5, 4, 8\], \[1, 5, 2, 8\]"):
        attend(stored[0], stored[1], stored[2].swapaxes(1, 2))
