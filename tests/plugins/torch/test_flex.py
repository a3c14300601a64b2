"""The FlexAttention path: its functions evaluated as they stand, its blocks, and compiled kernels, against the oracle.

Axes: ``B`` batch, ``H`` query heads, ``K`` key/value heads, ``T`` query length, ``S`` key length, ``D`` query/key head
size, ``E`` value head size.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import attnkit as ak
from attnkit_torch import flex
from attnkit_torch.flexing import block_mask
from attnkit_torch.flexing.mods import mods_for

CAUSAL = ak.Mask.causal()
LARGE = (2, 4, 2, 300, 500, 16, 24)  # B, H, K, T, S, D, E of more scores than are evaluated as they stand

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # torch's own compiler uses it


@pytest.mark.parametrize("seed", range(200))
def test_random_calls(calls: Any, seed: int) -> None:
    case = calls.draw_case(seed)
    calls.check(case, calls.run(case, "flex"))


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
@pytest.mark.parametrize("distribution", ["uniform", "normal", "peaky", "huge", "zero-sum"])
def test_distributions(calls: Any, distribution: str, dtype: str) -> None:
    arrays = calls.draw(np.random.default_rng(5), distribution, (1, 2, 1, 8, 1100, 80, 24), dtype)
    case = calls.Case(arrays, {"mask": CAUSAL})
    calls.check(case, calls.run(case, "flex"))


def test_padding_may_hold_anything(calls: Any) -> None:
    rng = np.random.default_rng(6)
    query, key, value = calls.draw(rng, "normal", (2, 2, 1, 5, 9, 8, 8), "float32")
    options = {"query_lengths": np.array([5, 2]), "kv_lengths": np.array([4, 9]), "mask": CAUSAL}
    clean = calls.run(calls.Case([query, key, value], options), "flex")
    query[1, :, 2:], key[0, :, 4:], value[0, :, 4:] = np.nan, np.inf, np.nan
    calls.assert_same_bits(clean, calls.run(calls.Case([query, key, value], options), "flex"))


MASKS: dict[str, Any] = {
    "causal": CAUSAL,
    "window": ak.Mask.window(20, 3),
    "prefix": ak.Mask.prefix(40),
    "chunked": ak.Mask.chunked(24) & CAUSAL,
    "neutral": ak.Mask.window(None, None),
    "documents": ak.Mask.documents(np.arange(70) // 23, np.arange(150) // 50) & ak.Mask.window(90),
}


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("lengths", [{}, {"kv_lengths": np.array([150, 33]), "query_lengths": np.array([70, 40])}])
def test_blocks_cover_what_is_visible(name: str, lengths: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Every block with a visible key is visited, and a block called whole has no hidden one."""
    monkeypatch.setattr(block_mask, "SIZE", 16)
    requests: list[tuple[ak.AttentionRequest, ak.Operands]] = []

    class Asked(ak.Backend):
        name = "asked"

        def capabilities(self) -> ak.Capabilities:
            return ak.get_backend("torch").capabilities()

        def attention(self, query: Any, key: Any, value: Any, operands: Any, request: Any) -> ak.AttentionOutput:
            requests.append((request, operands))
            return ak.AttentionOutput(query)

        def from_numpy(self, array: Any) -> Any:
            return torch.from_numpy(array)

        def to_numpy(self, array: Any) -> Any:
            return array.numpy()

    query, key = torch.zeros(2, 1, 70, 8), torch.zeros(2, 1, 150, 8)
    ak.attention(query, key, key, mask=MASKS[name], **lengths, backend=Asked())
    [(request, operands)] = requests
    shown = np.broadcast_to(request.visible(operands), (2, 1, 70, 150))
    operands = operands._replace(
        documents=tuple((torch.tensor(ids_q), torch.tensor(ids_k)) for ids_q, ids_k in operands.documents)
    )
    mods = mods_for(request, operands, query.device)
    visited, whole = (np.broadcast_to(found.numpy(), (2, 1, 5, 10)) for found in block_mask._visited(mods, 70, 150))
    for b, row, column in np.ndindex(2, 5, 10):
        block = shown[b, 0, 16 * row : 16 * row + 16, 16 * column : 16 * column + 16]
        assert visited[b, 0, row, column] or not block.any()
        assert not whole[b, 0, row, column] or block.all()
        if not mods.by_arrays:
            assert bool(visited[b, 0, row, column]) == bool(block.any())
            assert bool(whole[b, 0, row, column] & visited[b, 0, row, column]) == bool(block.all())


def large_case(calls: Any, dtype: str, seed: int, **options: Any) -> Any:
    return calls.Case(calls.draw(np.random.default_rng(seed), "normal", LARGE, dtype), options)


def test_a_compiled_kernel_with_everything(calls: Any) -> None:
    rng = np.random.default_rng(7)
    bias = rng.standard_normal((1, 4, 300, 500)).astype(np.float32)
    bias[rng.random(bias.shape) < 0.1] = -np.inf
    options: dict[str, Any] = {"bias": bias, "alibi": rng.random(4).astype(np.float32), "softcap": 3.0, "scale": -0.3}
    documents = ak.Mask.documents(np.sort(rng.integers(0, 3, (2, 300))), np.sort(rng.integers(0, 3, 500)))
    dense = ak.Mask.dense(rng.random((2, 1, 300, 500)) < 0.9)
    options["kv_lengths"], options["key_offset"] = np.array([450, 500]), np.array([3, 0])
    case = large_case(calls, "float32", 7, mask=ak.Mask.window(200, 50) & documents & dense, **options)
    calls.check(case, calls.run(case, "flex", lse=False))


def test_a_compiled_kernel_serves_every_mask_and_length(calls: Any) -> None:
    before = flex._kernel.cache_info().misses
    lengths = {"kv_lengths": np.array([130, 333]), "query_lengths": np.array([300, 7])}
    for seed, mask in enumerate([CAUSAL, ak.Mask.prefix(140), ak.Mask.window(50) & ak.Mask.chunked(256)]):
        case = large_case(calls, "bfloat16", seed, mask=mask, **lengths)
        case.arrays[1][0, :, 130:], case.arrays[2][0, :, 130:] = np.nan, np.inf
        calls.check(case, calls.run(case, "flex", lse=False))
    assert flex._kernel.cache_info().misses == before + 1


REFUSED: dict[str, tuple[str, str, dict[str, Any]]] = {
    "lse": ("lse", "float32", {}),
    "sinks": ("sinks", "float32", {"sinks": np.zeros(4, np.float32)}),
    "float64": ("dtype", "float64", {}),
    "scale": ("scale", "float32", {"scale": 1e-38}),
    "softcap": ("softcap", "float32", {"softcap": 1e39}),
}


@pytest.mark.parametrize("name", REFUSED)
def test_large_calls_that_are_refused_on_a_cpu(calls: Any, name: str) -> None:
    field, dtype, options = REFUSED[name]
    arrays, options = large_case(calls, dtype, 0, **options).tensors()
    why = ak.explain(*arrays, **options, lse=name == "lse", backend="torch:flex").rejected["torch:flex"]
    assert [(reason.code, reason.field) for reason in why] == [("path", field)]


def test_gradients_are_refused(calls: Any) -> None:
    query = torch.zeros(1, 1, 3, 8, requires_grad=True)
    with pytest.raises(ak.UnsupportedError, match="grad"):
        ak.attention(query, query, query, backend="torch:flex")


def test_no_compiler_is_a_refusal_that_says_what_to_do(calls: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    arrays, _ = calls.Case(
        calls.draw(np.random.default_rng(0), "normal", (1, 2, 2, 700, 1024, 8, 8), "float32"), {}
    ).tensors()
    with pytest.raises(ak.UnsupportedError, match=r"install g\+\+"):
        ak.attention(*arrays, backend="torch:flex")


def test_a_failed_compilation_says_what_to_do(calls: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> Any:
        raise torch._dynamo.exc.InternalTorchDynamoError("no such thing")

    monkeypatch.setattr(flex, "_kernel", lambda *_: fail)
    arrays, options = large_case(calls, "float32", 0).tensors()
    with pytest.raises(ak.BackendUnavailableError, match="use torch:tiled"):
        ak.attention(*arrays, **options, backend="torch:flex")


def test_never_chosen_by_itself(calls: Any) -> None:
    arrays, options = large_case(calls, "float32", 0, mask=CAUSAL).tensors()
    with ak.trace() as found:
        ak.attention(*arrays, **options)
    assert found[0].path != "flex"
