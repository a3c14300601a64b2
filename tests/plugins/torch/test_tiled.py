"""torch:tiled against the oracle, and what it must not do: hold T x S numbers, copy inputs, repeat heads.

Axes: ``B`` batch, ``H`` query heads, ``K`` key/value heads, ``T`` query length, ``S`` key length, ``D`` query/key head
size, ``E`` value head size.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import attnkit as ak
from attnkit.call import describe_call, gather_options
from attnkit_torch.tiling import blocks, kernel, tiles
from attnkit_torch.tiling.tiles import Sizes

CAUSAL = ak.Mask.causal()
WINDOW = ak.Mask.window(300)


class Recorder(TorchDispatchMode):
    """Notes the size of whatever is made, views aside."""

    def __init__(self, *known: torch.Tensor) -> None:
        super().__init__()
        self.seen = {tensor.untyped_storage().data_ptr() for tensor in known}
        self.largest = 0
        self.calls: list[str] = []

    def __torch_dispatch__(self, function: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        self.calls.append(str(function))
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor) and tensor.untyped_storage().data_ptr() not in self.seen:
                self.largest = max(self.largest, tensor.untyped_storage().nbytes() // tensor.element_size())
        return result


@pytest.fixture
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut small calls into many tiles."""
    monkeypatch.setattr(tiles, "tile_sizes", lambda request: Sizes(16, 32))
    monkeypatch.setattr(kernel, "tile_sizes", lambda request: Sizes(16, 2**62))


@pytest.fixture
def no_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compute everything in plain operations, as on devices other than the CPU."""
    monkeypatch.setattr(kernel, "takes", lambda request: False)


@pytest.mark.parametrize("seed", range(160))
@pytest.mark.usefixtures("small_tiles")
def test_random_calls(calls: Any, seed: int) -> None:
    case = calls.draw_case(seed)
    calls.check(case, calls.run(case, "tiled"))


@pytest.mark.parametrize("seed", range(160, 260))
@pytest.mark.usefixtures("small_tiles", "no_kernel")
def test_random_calls_in_plain_operations(calls: Any, seed: int) -> None:
    case = calls.draw_case(seed)
    calls.check(case, calls.run(case, "tiled"))


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
@pytest.mark.parametrize("distribution", ["uniform", "normal", "peaky", "huge", "zero-sum"])
@pytest.mark.parametrize("options", [{"mask": CAUSAL}, {"softcap": 5.0}], ids=["kernel", "plain"])
def test_distributions(calls: Any, distribution: str, dtype: str, options: dict[str, Any]) -> None:
    arrays = calls.draw(np.random.default_rng(5), distribution, (1, 2, 1, 8, 1100, 80, 24), dtype)
    case = calls.Case(arrays, options)
    calls.check(case, calls.run(case, "tiled"))


@pytest.mark.parametrize("rows", [127, 129, 257])
@pytest.mark.parametrize(
    "mask", [None, CAUSAL, ak.Mask.window(100), ak.Mask.window(40, 30), ak.Mask.chunked(100), ak.Mask.prefix(150)]
)
@pytest.mark.parametrize("softcap", [None, 20.0])
def test_tile_edges(calls: Any, rows: int, mask: ak.Mask | None, softcap: float | None) -> None:
    arrays = calls.draw(np.random.default_rng(6), "normal", (1, 1, 1, rows, 300, 8, 8), "float32")
    case = calls.Case(arrays, {"mask": mask, "softcap": softcap})
    calls.check(case, calls.run(case, "tiled"))


@pytest.mark.parametrize("offset", [-3, 0, 2, 40])
@pytest.mark.usefixtures("small_tiles")
def test_squares_off_the_diagonal(calls: Any, offset: int) -> None:
    arrays = calls.draw(np.random.default_rng(7), "normal", (1, 2, 2, 40, 30, 8, 8), "float32")
    case = calls.Case(arrays, {"mask": CAUSAL, "query_offset": np.array([offset])})
    calls.check(case, calls.run(case, "tiled"))


@pytest.mark.parametrize("scale", [0.0, -0.5, -1e-25, 1e-30, 1e25])
@pytest.mark.parametrize("mask", [None, CAUSAL, ak.Mask.window(3)])
def test_scales(calls: Any, scale: float, mask: ak.Mask | None) -> None:
    query, key, value = calls.draw(np.random.default_rng(8), "normal", (1, 1, 1, 9, 9, 8, 8), "float32")
    small = np.float32(1 if abs(scale) < 1 else 1e-13)
    case = calls.Case([query * small, key * small, value], {"mask": mask, "scale": scale})
    calls.check(case, calls.run(case, "tiled"))


@pytest.mark.parametrize("sizes", [(2, 2, 1, 0, 5, 4, 4), (2, 2, 1, 5, 0, 4, 3), (0, 2, 1, 3, 3, 4, 4)])
@pytest.mark.parametrize("sinks", [None, np.array([0.5, -2.0], np.float32)])
def test_empty_axes(calls: Any, sizes: tuple[int, ...], sinks: Any) -> None:
    arrays = calls.draw(np.random.default_rng(9), "normal", sizes, "float32")
    case = calls.Case(arrays, {"mask": CAUSAL} if sinks is None else {"sinks": sinks})
    calls.check(case, calls.run(case, "tiled"))


def test_no_heads() -> None:
    nothing = torch.zeros(2, 0, 3, 4)
    assert ak.attention(nothing, nothing, nothing, backend="torch:tiled").shape == (2, 0, 3, 4)


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
@pytest.mark.parametrize("heads", [2, 6])
@pytest.mark.parametrize("mask", [CAUSAL & ak.Mask.window(20), ak.Mask.window(9, 7), ak.Mask.window(30, 2)])
@pytest.mark.usefixtures("small_tiles")
def test_blocks_of_a_window_in_one_call(calls: Any, mask: ak.Mask, heads: int, dtype: str) -> None:
    arrays = calls.draw(np.random.default_rng(18), "normal", (2, heads, 2, 210, 190, 16, 12), dtype)
    case = calls.Case(arrays, {"mask": mask, "query_offset": np.array([-30, -3])})
    tensors, options = case.tensors()
    with Recorder(*tensors) as recorder:
        calls.check(case, ak.attention_with_lse(*tensors, **options, backend="torch:tiled"))
    runs = [call for call in recorder.calls if "flash_attention_for_cpu" in call]
    assert 2 <= len(runs) <= 12  # for 2 * 14 blocks


def views(array: torch.Tensor) -> dict[str, torch.Tensor]:
    """Give the same numbers behind other strides."""
    wide = torch.full((*array.shape[:3], 2 * array.shape[3]), 7.0)
    wide[..., ::2] = array
    return {
        "transposed": array.transpose(1, 2).contiguous().transpose(1, 2),
        "columns": array.mT.contiguous().mT,
        "every second": wide[..., ::2],
    }


@pytest.mark.parametrize("kind", ["transposed", "columns", "every second"])
@pytest.mark.parametrize("options", [{"mask": CAUSAL}, {"softcap": 3.0}], ids=["kernel", "plain"])
def test_strides(calls: Any, kind: str, options: dict[str, Any]) -> None:
    arrays = calls.draw(np.random.default_rng(10), "normal", (2, 4, 2, 19, 23, 8, 8), "float32")
    tensors = [views(torch.from_numpy(array))[kind] for array in arrays]
    calls.check(calls.Case(arrays, options), ak.attention_with_lse(*tensors, **options, backend="torch:tiled"))


@pytest.mark.parametrize("options", [{"mask": CAUSAL}, {"softcap": 3.0}], ids=["kernel", "plain"])
def test_one_row_for_all(calls: Any, options: dict[str, Any]) -> None:
    row = torch.from_numpy(np.random.default_rng(11).standard_normal((1, 1, 1, 8), np.float32))
    tensors = [row.expand(2, heads, length, 8) for heads, length in ((4, 19), (2, 23), (2, 23))]
    case = calls.Case([tensor.numpy() for tensor in tensors], options)
    calls.check(case, ak.attention_with_lse(*tensors, **options, backend="torch:tiled"))


@pytest.mark.parametrize("mask", [ak.Mask.window(5), ak.Mask.chunked(6), ak.Mask.prefix(2), ak.Mask.window(4, 2)])
@pytest.mark.parametrize("heads", [2, 4])
def test_numbers_that_overflow_at_hidden_keys(calls: Any, mask: ak.Mask, heads: int) -> None:
    query, key, value = calls.draw(np.random.default_rng(12), "normal", (1, heads, 2, 20, 20, 8, 8), "float32")
    shown = mask.as_array(20, 20)[3]
    before = calls.run(calls.Case([query, key, value], {"mask": mask}), "tiled")
    key[:, :, ~shown] = np.finfo(np.float32).max
    value[:, :, ~shown] = -np.finfo(np.float32).max
    after = calls.run(calls.Case([query, key, value], {"mask": mask}), "tiled")
    assert (~shown).any()
    calls.assert_same_bits([part[:, :, 3] for part in before], [part[:, :, 3] for part in after])


@pytest.mark.parametrize("mask", [None, CAUSAL, ak.Mask.window(4, 2)])
def test_large_numbers_at_visible_keys(calls: Any, mask: ak.Mask | None) -> None:
    query, key, value = calls.draw(np.random.default_rng(13), "normal", (1, 2, 2, 12, 12, 8, 8), "float32")
    key[:, :, 4] *= np.float32(1e25)
    query *= np.float32(1e-25)
    case = calls.Case([query, key, value], {"mask": mask})
    calls.check(case, calls.run(case, "tiled"))


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_bias_of_nan_shows(calls: Any, bad: float) -> None:
    arrays = calls.draw(np.random.default_rng(14), "normal", (1, 1, 1, 6, 3, 8, 8), "float32")
    bias = np.zeros((6, 3), np.float32)
    bias[2], bias[5, 0] = bad, bad
    found = calls.run(calls.Case(arrays, {"bias": bias}), "tiled")
    assert torch.isnan(found.output).all(-1).flatten().tolist() == [False, False, True, False, False, True]


@pytest.mark.parametrize("fill", [np.nan, np.inf, 3e38])
def test_padding_is_never_read(calls: Any, fill: float) -> None:
    query, key, value = calls.draw(np.random.default_rng(15), "normal", (2, 2, 1, 9, 12, 8, 8), "float32")
    options = {"mask": CAUSAL, "query_lengths": np.array([4, 9]), "kv_lengths": np.array([12, 5])}
    before = calls.run(calls.Case([query.copy(), key.copy(), value.copy()], options), "tiled")
    query[0, :, 4:], key[1, :, 5:], value[1, :, 5:] = fill, fill, fill
    calls.assert_same_bits(before, calls.run(calls.Case([query, key, value], options), "tiled"))


def test_keys_in_another_dtype_than_the_query(calls: Any) -> None:
    config = ak.KVCacheConfig(num_layers=1, batch_size=2, num_kv_heads=2, head_dim=16, dtype="bfloat16")
    cache = ak.make_cache(config, backend="torch:tiled")
    query, key, value = calls.draw(np.random.default_rng(16), "normal", (2, 4, 2, 3, 9, 16, 16), "float32")
    cache[0].append(torch.from_numpy(key), torch.from_numpy(value))
    stored = [array.astype(calls.DTYPES["bfloat16"]).astype(np.float32) for array in (key, value)]
    case = calls.Case([query, *stored], {"mask": CAUSAL})
    calls.check(case, cache[0].attend_with_lse(torch.from_numpy(query), mask=CAUSAL))


LONG: dict[str, dict[str, Any]] = {
    "causal": {"mask": CAUSAL},
    "causal, turned": {"mask": CAUSAL, "scale": -0.5},
    "causal, late keys": {"mask": CAUSAL, "query_offset": np.array([-1000])},
    "window": {"mask": CAUSAL & WINDOW},
    "wide window": {"mask": ak.Mask.window(3000, 5)},
    "softcap": {"mask": WINDOW, "softcap": 3.0},
    "alibi": {"mask": CAUSAL, "alibi": torch.tensor([0.1, 0.2])},
    "documents": {"mask": CAUSAL & ak.Mask.documents(np.arange(4096) // 700, np.arange(4096) // 700)},
    "chunked": {"mask": ak.Mask.chunked(1000)},
    "prefix": {"mask": ak.Mask.prefix(1500)},
}


@pytest.mark.parametrize("name", LONG)
@pytest.mark.parametrize("grad", [False, True], ids=["forward", "backward"])
def test_nothing_grows_with_the_square_of_the_length(name: str, grad: bool) -> None:
    arrays = [torch.randn(1, 2, 4096, 8, requires_grad=grad) for _ in range(3)]
    with Recorder(*arrays) as recorder:
        output = ak.attention(*arrays, **LONG[name], backend="torch:tiled")
        if grad:
            output.sum().backward()
    assert 0 < recorder.largest <= 2**22  # of 2**25


@pytest.mark.parametrize("options", [{}, {"mask": CAUSAL}, {"mask": WINDOW, "softcap": 2.0}])
def test_inputs_are_neither_copied_nor_repeated_nor_tracked(options: dict[str, Any]) -> None:
    query, key, value = torch.randn(1, 8, 600, 64), torch.randn(1, 1, 600, 64), torch.randn(1, 1, 600, 64)
    with Recorder(query, key, value) as recorder:
        output = ak.attention(query, key, value, **options, backend="torch:tiled")
    assert output.grad_fn is None
    assert not [call for call in recorder.calls if "repeat" in call or "autograd" in call]
    copies = [call for call in recorder.calls if call.split(".")[1] in ("clone", "_to_copy")]
    assert len(copies) <= (5 if options.get("softcap") else 0)  # a group's queries side by side, block by block


def groups_of(*shape: int, **options: Any) -> list[tiles.Group]:
    query, key = torch.zeros(*shape[:2], shape[2], 4), torch.zeros(*shape[:2], shape[3], 4)
    request, operands = describe_call(query, key, key, gather_options(**options), False)
    return list(tiles.groups(operands, request))


def test_sequences_of_equal_bounds_are_computed_together() -> None:
    assert len(groups_of(3, 2, 5, 7, mask=CAUSAL)) == 1
    assert [group.sequences for group in groups_of(4, 2, 5, 7, kv_lengths=np.array([7, 7, 3, 3]))] == [
        slice(0, 2),
        slice(2, 4),
    ]
    assert len(groups_of(2, 3, 5, 7, mask=ak.Mask.dense(np.ones((2, 1, 5, 7), bool)))) == 2
    assert len(groups_of(2, 3, 5, 7, mask=ak.Mask.dense(np.ones((3, 5, 7), bool)))) == 3


def test_tiles_between_documents_are_skipped() -> None:
    ids = np.arange(8192) // 1024
    (group,) = groups_of(1, 2, 8192, 8192, mask=ak.Mask.documents(ids, ids))
    visited = [tile.stop - tile.start for block in group.blocks() for tile in block.tiles]
    assert sum(visited) * group.schedule.tile_queries == 8192 * 1024


def test_the_sinks_of_rows_without_keys(calls: Any) -> None:
    arrays = calls.draw(np.random.default_rng(17), "normal", (1, 2, 2, 4, 3, 8, 8), "float32")
    sinks = np.array([0.3, -np.inf], np.float32)
    found = calls.run(calls.Case(arrays, {"mask": CAUSAL, "query_offset": np.array([-2]), "sinks": sinks}), "tiled")
    assert found.lse is not None
    assert found.lse[0, 0, :2].tolist() == [sinks[0], sinks[0]]
    assert found.lse[0, 1, :2].tolist() == [-np.inf, -np.inf]
    assert not found.output[0, :, :2].any()


def test_the_kernel_is_used_where_it_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    arrays = [torch.randn(1, 2, 30, 8) for _ in range(3)]

    def never(*_: object) -> None:
        raise AssertionError("computed in plain operations")

    monkeypatch.setattr(blocks.Tiled, "solve", never)
    ak.attention(*arrays, mask=ak.Mask.window(5), backend="torch:tiled")
    with pytest.raises(AssertionError, match="plain operations"):
        ak.attention(*arrays, softcap=3.0, backend="torch:tiled")
