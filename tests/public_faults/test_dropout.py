"""Dropout, which there is none of: it is refused where it would be needed, and never done where it is not (A15)."""

from __future__ import annotations

import pytest
import torch

import attnkit as ak
from attnkit_torch.multihead import TorchMultiHeadAttention


def module(dropout: float) -> TorchMultiHeadAttention:
    torch.manual_seed(0)
    return TorchMultiHeadAttention(8, 2, dropout=dropout, batch_first=True)


@pytest.mark.fault("pytorch/pytorch#124464")
def test_a_function_has_no_dropout(lab) -> None:
    """The function dropped whenever the probability was above 0, since it could not know of training."""
    for attend in (ak.attention, ak.attention_with_lse):
        with pytest.raises(TypeError, match="unexpected keyword argument 'dropout'"):
            attend(*lab.draw(1, 1, 2, 2), dropout=0.5)


@pytest.mark.fault("pytorch/pytorch#124464")
@pytest.mark.parametrize("need_weights", [False, True])
def test_evaluation_drops_nothing(lab, need_weights) -> None:
    """Modules went on passing their probability in evaluation."""
    x = torch.linspace(-1, 1, 2 * 5 * 8).reshape(2, 5, 8)
    expected = module(0)(x, x, x, need_weights=need_weights)
    dropping = module(0.5).eval()
    for _ in range(5):
        for found, exact in zip(dropping(x, x, x, need_weights=need_weights), expected, strict=True):
            assert (found is exact is None) or torch.equal(found, exact)


@pytest.mark.fault("pytorch/pytorch#124464")
def test_training_with_dropout_is_refused(lab) -> None:
    """The other half: dropout that was asked for and is left out in silence would be as wrong."""
    x = torch.ones(1, 3, 8)
    for training in (module(0.5), module(0.5).eval().train()):
        with pytest.raises(ak.UnsupportedError, match=r"dropout = 0\.5 in training"):
            training(x, x, x)
    module(0).train()(x, x, x)
