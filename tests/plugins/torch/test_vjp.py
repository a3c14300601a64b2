"""Gradients for tools that do not know tensors: what ``TorchBackend.vjp`` gives."""

from __future__ import annotations

import pytest
import torch

import attnkit as ak

BACKEND = ak.get_backend("torch")


def test_results_and_gradients_by_hand() -> None:
    x, y = torch.tensor([2.0, 3.0]), torch.tensor([5.0, 7.0])
    cotangents = [torch.tensor([1.0, 10.0]), torch.tensor([100.0, 100.0])]
    results, gradients = BACKEND.vjp(lambda x, y: (x * y, x), [x, y], cotangents)
    assert [result.tolist() for result in results] == [[10, 21], [2, 3]]
    assert [gradient.tolist() for gradient in gradients] == [[105, 170], [2, 30]]


def test_nothing_is_left_behind() -> None:
    x = torch.ones(3)
    results, gradients = BACKEND.vjp(lambda x: (x.exp(),), [x], [torch.ones(3)])
    assert not x.requires_grad
    assert x.grad is None
    assert not any(tensor.requires_grad for tensor in (*results, *gradients))


def test_it_works_where_gradients_are_off() -> None:
    with torch.no_grad():
        _, (gradient,) = BACKEND.vjp(lambda x: (x**2,), [torch.tensor([3.0])], [torch.tensor([1.0])])
    assert gradient.tolist() == [6]


def test_what_has_no_say_gets_zeros() -> None:
    x, y = torch.ones(2), torch.ones(3, dtype=torch.bfloat16)
    _, gradients = BACKEND.vjp(lambda x, y: (x + 1, torch.zeros(0)), [x, y], [torch.ones(2), torch.zeros(0)])
    assert [gradient.tolist() for gradient in gradients] == [[1, 1], [0, 0, 0]]
    assert gradients[1].dtype == torch.bfloat16
    _, (alone,) = BACKEND.vjp(lambda x: (torch.zeros(0),), [x], [torch.zeros(0)])
    assert alone.tolist() == [0, 0]


def test_strides_reach_the_function() -> None:
    seen = []

    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        seen.append(x.stride())
        return (x.sum(dim=0),)

    BACKEND.vjp(function, [torch.ones(2, 3).mT], [torch.ones(2)])
    assert seen == [(1, 3)]


def test_results_and_cotangents_are_as_many() -> None:
    with pytest.raises(ValueError, match="shorter"):
        BACKEND.vjp(lambda x: (x, x), [torch.ones(2)], [torch.ones(2)])
