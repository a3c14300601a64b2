"""The torch backend around its paths: discovery, modes of torch, threads."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch

import attnkit as ak
from attnkit_torch import plugin

OPTIONS: list[dict[str, Any]] = [
    {},
    {"mask": ak.Mask.causal()},
    {"mask": ak.Mask.window(5), "softcap": 3.0},
    {"mask": ak.Mask.dense(np.arange(63).reshape(7, 9) % 4 > 0), "kv_lengths": np.array([9, 6])},
]


def arrays(dtype: torch.dtype = torch.float32, rows: int = 7) -> list[torch.Tensor]:
    torch.manual_seed(4)
    return [torch.randn(shape).to(dtype) for shape in ((2, 4, rows, 16), (2, 2, 9, 16), (2, 2, 9, 16))]


def test_discovery_does_not_import_torch() -> None:
    program = "import sys, attnkit; print([b.name for b in attnkit.backends()], 'torch' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert "'torch'" in found
    assert found.endswith("False\n")


def test_owns_tensors() -> None:
    for kind in (torch.Tensor, torch.nn.Parameter):
        query, key, value = (kind(array) for array in arrays())
        assert ak.explain(query, key, value).backend == "torch"


def test_missing_torch_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = plugin.attnkit_register_backends()
    assert spec.available() is None
    monkeypatch.setattr(plugin, "find_spec", lambda name: None)
    assert spec.available() == "torch is not installed"
    assert spec.install_hint == "pip install 'attnkit[torch]'"


@pytest.mark.parametrize(
    ("version", "reason"),
    [
        ("2.4.1", "torch 2.4 is installed, 2.5 or newer is needed"),
        ("1.13.1+cpu", "torch 1.13 is installed, 2.5 or newer is needed"),
        ("2.5.0", None),
        ("2.13.0+cpu", None),
        ("3.0.0a0+git123", None),
        ("unknown", None),
    ],
)
def test_old_torch_is_a_reason(monkeypatch: pytest.MonkeyPatch, version: str, reason: str | None) -> None:
    monkeypatch.setattr(plugin, "version", lambda name: version)
    plugin._version.cache_clear()
    assert plugin.attnkit_register_backends().available() == reason
    plugin._version.cache_clear()


@pytest.mark.parametrize("options", OPTIONS)
def test_nothing_is_recorded_where_nothing_requires_grad(options: dict[str, Any]) -> None:
    found = ak.attention_with_lse(*arrays(), **options, backend="torch")
    assert not found.output.requires_grad
    assert not found.lse.requires_grad
    leaves = [array.requires_grad_() for array in arrays()]
    with torch.no_grad():
        assert not ak.attention(*leaves, **options, backend="torch").requires_grad


@pytest.mark.parametrize("options", OPTIONS)
def test_inference_mode_changes_no_bit(calls: Any, options: dict[str, Any]) -> None:
    plain = ak.attention_with_lse(*arrays(), **options, backend="torch")
    with torch.inference_mode():
        calls.assert_same_bits(ak.attention_with_lse(*arrays(), **options, backend="torch"), plain)


@pytest.mark.parametrize("path", [path for path in ak.get_backend("torch").paths if path != "flex"])
def test_autocast_does_not_touch_the_inside_of_a_path(calls: Any, path: str) -> None:
    """The plan is run directly: the arrays of a call are autocast's, the products inside are not."""
    backend = ak.get_backend("torch")
    tensors = arrays()
    request = ak.explain(*tensors, mask=ak.Mask.causal()).request
    operands = ak.Operands(7, 9)
    plan = backend.plan(request, path)
    plain = plan.run(*tensors, operands)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        calls.assert_same_bits(plan.run(*tensors, operands)[:1], plain[:1])


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("rows", [1, 7])
def test_threads_that_call_at_once_get_the_same_bits(calls: Any, options: dict[str, Any], rows: int) -> None:
    if rows == 1 and "kv_lengths" in options:
        options = {"kv_lengths": options["kv_lengths"]}
    tensors = arrays(rows=rows)

    def attend(_: int) -> ak.AttentionOutput:
        return ak.attention_with_lse(*tensors, **options, backend="torch")

    alone = attend(0)
    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(attend, range(32)):
            calls.assert_same_bits(found, alone)


@pytest.mark.parametrize("path", ["sdpa", "decode", "tiled", "dense"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_any_number_of_threads_is_right(calls: Any, path: str, dtype: str) -> None:
    case = calls.Case(
        calls.draw(np.random.default_rng(1), "zero-sum", (2, 4, 2, 20, 300, 32, 32), dtype), {"mask": ak.Mask.causal()}
    )
    before = torch.get_num_threads()
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            calls.check(case, calls.run(case, path, lse=False))
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("path", ["sdpa", "decode", "tiled", "dense"])
def test_arguments_are_neither_changed_nor_given_back(path: str) -> None:
    tensors = arrays()
    before = [array.clone() for array in tensors]
    found = ak.attention(*tensors, mask=ak.Mask.causal(), backend=f"torch:{path}")
    found.fill_(7)
    for array, same in zip(tensors, before, strict=True):
        assert torch.equal(array, same)


@pytest.mark.parametrize("path", ["sdpa", "decode", "tiled", "dense"])
def test_a_single_key_is_copied_not_aliased(path: str) -> None:
    value = torch.randn(1, 1, 1, 4)
    found = ak.attention(torch.randn(1, 1, 1, 8), torch.randn(1, 1, 1, 8), value, backend=f"torch:{path}")
    assert torch.equal(found, value)
    assert found.data_ptr() != value.data_ptr()


def test_arrays_of_a_mask_may_lie_in_numpy(calls: Any) -> None:
    ids, keep = np.array([0, 0, 1, 1, 1, 2, 2]), np.arange(63).reshape(7, 9) % 4 > 0
    ids_k = np.array([0, 0, 0, 1, 1, 2, 2, 2, 2])
    for backwards in (ids, ids[::-1]):
        host = ak.Mask.documents(backwards, ids_k) & ak.Mask.dense(keep)
        tensors = (torch.tensor(array.copy()) for array in (backwards, ids_k, keep))
        ids_q, own_ids, own_keep = tensors
        own = ak.Mask.documents(ids_q, own_ids) & ak.Mask.dense(own_keep)
        one, other = (ak.attention_with_lse(*arrays(), mask=mask, backend="torch") for mask in (host, own))
        calls.assert_same_bits(one, other)
