"""Every call that a model makes is answered within the budget of the oracle, whatever comes from transformers."""

# ruff: noqa: E402  # imports follow the skip of those who lack the packages

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="pip install 'attnkit[torch]'")
pytest.importorskip("transformers", reason="pip install 'attnkit[transformers]'")

from attnkit.integrations.transformers.attention import attend
from attnkit.integrations.transformers.masks import make_mask
from attnkit.numerics import numerics_for

PROFILES = {"float64": "float64", "float32": "strict-fp32"}


@pytest.fixture
def checked(definition, implementation):
    """Register attention that compares each of its answers; gives its name and the list of calls."""

    def register(backend: str) -> tuple[str, list[str]]:
        calls: list[str] = []

        def compared(module, query, key, value, mask, **options):
            found, _ = attend(module, query, key, value, mask, backend=backend, **options)
            assert found.is_contiguous()
            truth = definition.truth(module, query, key, value, mask, **options)
            dtype = str(query.dtype).removeprefix("torch.")
            tolerance = truth.tolerance(numerics_for(PROFILES[dtype], dtype)).output
            assert (np.abs(found.transpose(1, 2).double().numpy() - truth.output) <= tolerance).all()
            calls.append(type(module).__name__)
            return found, None

        return implementation(compared, make_mask), calls

    return register


@pytest.mark.parametrize("backend", ["torch", "numpy"])
def test_calls_of_models(zoo, checked, case, backend) -> None:
    name, mode = case
    attention, calls = checked(backend)
    zoo.run(zoo.model(name, attention, "float64"), name, mode)
    steps = {"decode": 3, "static": 3, "chunks": 2}.get(mode, 1)
    kinds = 3 if name in ("t5", "whisper") else 1  # in the encoder, in the decoder, and from it to the encoder
    assert len(calls) == 2 * steps * kinds


class Module(torch.nn.Module):
    is_causal = True


@pytest.mark.parametrize("backend", ["torch", "numpy"])
@pytest.mark.parametrize("rows", [1, 5])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_calls_without_a_mask(checked, backend, rows, causal, dtype) -> None:
    """Several queries of a causal module count from the first key, one sees everything."""
    from transformers import AttentionInterface

    name, _ = checked(backend)
    module = Module()
    module.is_causal = causal
    torch.manual_seed(0)
    kind = getattr(torch, dtype)
    query, key, value = (
        torch.randn(2, 4, rows, 16).to(kind),
        torch.randn(2, 2, 9, 16).to(kind),
        torch.randn(2, 2, 9, 12).to(kind),
    )
    AttentionInterface()[name](module, query, key, value, None, scaling=0.3)


@pytest.mark.parametrize("backend", ["torch", "numpy"])
def test_strides_of_any_kind(checked, backend) -> None:
    from transformers import AttentionInterface

    name, calls = checked(backend)
    torch.manual_seed(0)
    query = torch.randn(2, 5, 4, 16, dtype=torch.float64).transpose(1, 2)
    key = torch.randn(2, 2, 9, 16, dtype=torch.float64).expand(2, 2, 9, 16)[..., ::1].flip(2)
    value = torch.randn(1, 2, 9, 12, dtype=torch.float64).expand(2, -1, -1, -1)
    mask = torch.rand(1, 1, 5, 9) < 0.5
    mask[:, :, 2] = False
    AttentionInterface()[name](Module(), query, key, value, mask, scaling=1.0)
    AttentionInterface()[name](Module(), query, key, value, mask.expand(2, 4, 5, 9), scaling=-0.5)
    assert len(calls) == 2


@pytest.mark.parametrize("backend", ["torch", "numpy"])
def test_a_mask_of_floats_is_added(backend) -> None:
    torch.manual_seed(0)
    query, key = torch.randn(2, 4, 5, 16), torch.randn(2, 4, 5, 16)
    shown = torch.rand(2, 1, 5, 5) < 0.7
    shown[..., 0] = True
    added, bias = torch.randn(2, 1, 5, 5), torch.randn(1, 4, 5, 5)
    both = torch.where(shown, added, -torch.inf)
    found, _ = attend(Module(), query, key, key, both, scaling=1.0, position_bias=bias, backend=backend)
    scores = (query @ key.mT + added + bias).masked_fill(~shown, -torch.inf)
    torch.testing.assert_close(found, (scores.softmax(-1) @ key).transpose(1, 2), atol=1e-5, rtol=1e-5)


def test_scale_is_the_usual_one_only_if_none_is_given() -> None:
    torch.manual_seed(0)
    query = torch.randn(1, 2, 3, 16, dtype=torch.float64)
    left_out, _ = attend(Module(), query, query, query, None, backend="torch")
    usual, _ = attend(Module(), query, query, query, None, scaling=0.25, backend="torch")
    one, _ = attend(Module(), query, query, query, None, scaling=1.0, backend="torch")
    torch.testing.assert_close(left_out, usual, rtol=0, atol=1e-14)
    assert (one - usual).abs().max() > 1e-2


def test_a_batch_of_one_goes_with_a_larger_one() -> None:
    torch.manual_seed(0)
    query, key = torch.randn(1, 2, 3, 16), torch.randn(4, 2, 5, 16)
    module = Module()
    module.is_causal = False
    found, _ = attend(module, query, key, key, None, scaling=1.0, backend="torch")
    whole, _ = attend(module, query.expand(4, -1, -1, -1), key, key, None, scaling=1.0, backend="torch")
    assert torch.equal(found, whole)
