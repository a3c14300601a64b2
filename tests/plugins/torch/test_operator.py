"""``attnkit.attention`` inside transformations of programs: compiled, exported, mapped, differentiated, autocast.

Axes: ``B`` batch, ``H`` query heads, ``K`` key/value heads, ``T`` query length, ``S`` key length, ``D`` query/key head
size, ``E`` value head size, ``N`` an axis that is mapped over.
"""

from __future__ import annotations

import io
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.func import grad, hessian, jacrev, vjp, vmap
from torch.library import opcheck

import attnkit as ak
from attnkit_torch.transforms.library import attention_operator

CAUSAL = ak.Mask.causal()
NEUTRAL: list[Any] = [[0, -1, -1, -1], [], [], *[None] * 9, "torch"]

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning"),  # torch's own compiler uses it
    pytest.mark.filterwarnings("ignore:.isinstance.treespec:FutureWarning"),  # so does its exporter
]


@pytest.fixture(autouse=True)
def fresh() -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)


def inputs(batch: int = 2, rows: int = 5, keys: int = 7) -> list[Tensor]:
    return [
        torch.randn(batch, heads, length, size) for heads, length, size in ((4, rows, 8), (2, keys, 8), (2, keys, 6))
    ]


def compiled(function: Callable[..., Any], backend: Any = "eager", **options: Any) -> Callable[..., Any]:
    return torch.compile(function, fullgraph=True, backend=backend, **options)  # type: ignore[no-any-return]


class Graphs(list[Any]):
    """A compiler that keeps the graphs it gets and runs them as they are."""

    def __call__(self, graph: Any, _inputs: Any) -> Any:
        self.append(graph)
        return graph


def assert_close(found: Any, expected: Any) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6, equal_nan=True)


FIRST_USE = """
import torch, attnkit as ak
def attend(x):
    return ak.attention(x, x, x, mask=ak.Mask.window(2) & ak.Mask.causal(), kv_lengths=3)
x = torch.randn(2, 2, 4, 8)
found = torch.compile(attend, fullgraph=True, backend="eager")(x)
assert torch.allclose(found, attend(x), atol=1e-6)
"""


def test_first_use_is_compiled() -> None:
    subprocess.run([sys.executable, "-c", FIRST_USE], check=True, timeout=300)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_every_option_compiles(backend: str) -> None:
    bias, slopes, sinks = torch.randn(5, 7), torch.rand(4), torch.randn(4)
    ids, dense = torch.arange(7) // 3, torch.rand(5, 7) < 0.8

    def attend(query: Tensor, key: Tensor, value: Tensor) -> ak.AttentionOutput:
        mask = ak.Mask.documents(ids[:5], ids) & ak.Mask.dense(dense) & ak.Mask.window(4, 1) & ak.Mask.chunked(6)
        added = {"bias": bias, "alibi": slopes, "sinks": sinks, "scale": 0.3, "softcap": 2.0}
        lengths = {"query_lengths": 4, "kv_lengths": [3, 7], "key_offset": np.array([2, 0])}
        return ak.attention_with_lse(
            query, key, value, mask=mask, **added, **lengths, query_offset=torch.tensor([1, 3])
        )

    arrays = inputs()
    assert_close(compiled(attend, backend)(*arrays), attend(*arrays))


def test_one_function_compiled_for_masks_that_change() -> None:
    def attend(arrays: list[Tensor], mask: ak.Mask | None, lengths: Any) -> Tensor:
        return ak.attention(*arrays, mask=mask, kv_lengths=lengths)

    rows, keys = np.arange(5), np.arange(7)
    masks = [ak.Mask.window(2), ak.Mask.window(3), ak.Mask.window(4), ak.Mask.window(None, 1), CAUSAL, None]
    masks += [ak.Mask.documents(rows // n, keys // n) for n in (2, 3)]
    masks += [ak.Mask.documents(torch.tensor(rows) // n, torch.tensor(keys) // n) for n in (2, 3)]
    masks += [ak.Mask.dense(rows[:, None] <= keys), ak.Mask.dense(rows[:, None] >= keys) & CAUSAL]
    masks += [ak.Mask.chunked(2), ak.Mask.chunked(3), ak.Mask.prefix(2), ak.Mask.prefix(3)]
    arrays = inputs()
    with torch._dynamo.config.patch(recompile_limit=200):
        run = compiled(attend)
        for mask in masks:
            assert_close(run(arrays, mask, None), attend(arrays, mask, None))
        for lengths in (3, 4, 5, np.int64(2), np.array([2, 5]), np.array([7, 1]), [3, 6], [1, 2], torch.tensor([1, 2])):
            for mask in (masks[0], masks[1]):
                assert_close(run(arrays, mask, lengths), attend(arrays, mask, lengths))


def test_masks_of_a_closure_that_change() -> None:
    box = [ak.Mask.window(2)]

    def attend(*arrays: Tensor) -> Tensor:
        return ak.attention(*arrays, mask=box[0])

    run, arrays = compiled(attend), inputs()
    for n in (2, 3, 4):
        for box[0] in (ak.Mask.window(n), ak.Mask.documents(np.arange(5) // n, np.arange(7) // n)):
            assert_close(run(*arrays), attend(*arrays))


def test_lengths_may_be_dynamic() -> None:
    graphs = Graphs()

    def attend(*arrays: Tensor) -> Tensor:
        return ak.attention(*arrays, mask=CAUSAL, kv_lengths=2)

    run = compiled(attend, graphs)
    for batch, rows, keys in ((2, 5, 7), (3, 6, 9), (4, 9, 9), (2, 7, 33)):
        arrays = inputs(batch, rows, keys)
        for array in arrays:
            torch._dynamo.mark_dynamic(array, 0)
            torch._dynamo.mark_dynamic(array, 2)
        assert_close(run(*arrays), attend(*arrays))
    assert len(graphs) == 1


def test_backends_are_chosen_when_a_graph_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    graphs, arrays = Graphs(), inputs()
    run = compiled(ak.attention, graphs)
    with ak.trace() as calls:
        with ak.use_backend("torch:dense"):
            run(*arrays)
        with ak.use_backend("numpy:tiled"):
            run(*arrays)
        monkeypatch.setenv("ATTNKIT_BACKEND", "torch:tiled")
        run(*arrays)
    assert [(call.backend, call.path) for call in calls] == [("torch", "dense"), ("numpy", "tiled"), ("torch", "tiled")]
    assert len(graphs) == 1


@pytest.mark.parametrize(
    ("choice", "expected"),
    [("numpy:tiled", ("numpy", "tiled")), (["numpy:decode", "torch:dense"], ("torch", "dense"))],
)
def test_backends_by_name(choice: Any, expected: tuple[str, str]) -> None:
    run = compiled(lambda *arrays: ak.attention(*arrays, backend=choice))
    with ak.trace() as calls:
        run(*inputs(rows=70, keys=70))  # more rows than numpy:decode takes
    assert (calls[0].backend, calls[0].path) == expected


def test_what_an_operator_cannot_hold_is_refused() -> None:
    backend, arrays = ak.get_backend("torch"), inputs()
    with pytest.raises((ak.BackendNotFoundError, torch._dynamo.exc.Unsupported), match="backend must be named"):
        compiled(lambda *arrays: ak.attention(*arrays, backend=backend))(*arrays)
    with pytest.raises((ak.DTypeError, torch._dynamo.exc.Unsupported), match="scale must be a Python number"):
        compiled(lambda *arrays: ak.attention(*arrays, scale=np.sqrt(arrays[0].shape[3])))(*arrays)
    with pytest.raises((ak.DTypeError, torch._dynamo.exc.Unsupported), match="bias must be a tensor"):
        compiled(lambda *arrays: ak.attention(*arrays, bias=np.zeros((5, 7))))(*arrays)


def losses(query: Tensor, key: Tensor, value: Tensor, bias: Tensor, sinks: Tensor) -> Tensor:
    output, lse = ak.attention_with_lse(query, key, value, mask=ak.Mask.window(4), bias=bias, sinks=sinks)
    return output.sin().sum() + (lse * lse).sum()


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_gradients(backend: str) -> None:
    leaves = [array.requires_grad_() for array in (*inputs(), torch.randn(5, 7), torch.randn(4))]
    expected = torch.autograd.grad(losses(*leaves), leaves)
    assert_close(torch.autograd.grad(compiled(losses, backend)(*leaves), leaves), expected)
    sought = [leaves[1], leaves[4]]
    assert_close(torch.autograd.grad(compiled(losses, backend)(*leaves), sought), (expected[1], expected[4]))


def test_gradients_without_keys_are_zeros() -> None:
    arrays = [array.requires_grad_() for array in inputs(keys=0)]
    for found in torch.autograd.grad(compiled(ak.attention)(*arrays).sum(), arrays):
        assert not found.any()


def test_gradients_of_a_backend_without_them_are_refused() -> None:
    arrays = [array.requires_grad_() for array in inputs()]
    output = compiled(lambda *arrays: ak.attention(*arrays, backend="numpy"))(*arrays)
    with pytest.raises(ak.UnsupportedError, match="grad"):
        output.sum().backward()


class Layer(torch.nn.Module):
    """Self-attention over ``[B, T, 8]`` with two heads and sinks."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = torch.nn.Linear(8, 24), torch.nn.Linear(8, 8)
        self.sinks = torch.nn.Parameter(torch.zeros(2))

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.inner(x).view(*x.shape[:2], 3, 2, 4).permute(2, 0, 3, 1, 4)
        output = ak.attention(query, key, value, mask=CAUSAL, sinks=self.sinks)
        return self.outer(output.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_training(backend: str) -> None:
    x, layer, twin = torch.randn(2, 6, 8), Layer(), Layer()
    twin.load_state_dict(layer.state_dict())
    for run, module in ((layer, layer), (compiled(twin, backend), twin)):
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        for _ in range(2):
            optimizer.zero_grad()
            run(x).square().mean().backward()
            optimizer.step()
    assert_close(list(twin.parameters()), list(layer.parameters()))


@pytest.mark.parametrize("strict", [False, True])
def test_export(strict: bool) -> None:
    layer, x = Layer().eval(), torch.randn(2, 6, 8)
    sizes = {0: torch.export.Dim("batch", min=1, max=64), 1: torch.export.Dim("length", min=2, max=512)}
    program = torch.export.export(layer, (x,), dynamic_shapes=(sizes,), strict=strict)
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    for exported in (program, torch.export.load(file)):
        for other in (x, torch.randn(3, 9, 8)):
            assert_close(exported.module()(other), layer(other))


def test_inference_mode() -> None:
    arrays = inputs()
    expected = ak.attention(*arrays)
    with torch.inference_mode():
        assert_close(ak.attention(*arrays), expected)
        assert_close(compiled(ak.attention, "aot_eager")(*arrays), expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast(dtype: torch.dtype) -> None:
    arrays, bias = inputs(), torch.randn(5, 7)
    expected = ak.attention(*(array.to(dtype) for array in arrays), bias=bias)

    def attend(*arrays: Tensor) -> Tensor:
        return ak.attention(*arrays, bias=bias)

    run = compiled(attend, "aot_eager")
    assert run(*arrays).dtype == torch.float32
    with torch.autocast("cpu", dtype):
        assert torch.equal(attend(*arrays), expected)
        assert torch.equal(attend(arrays[0].to(dtype), *arrays[1:]), expected)
        assert torch.equal(run(*arrays), expected)
        assert attend(*(array.double() for array in arrays)).dtype == torch.float64
    with torch.autocast("cpu", dtype, enabled=False):
        assert attend(*arrays).dtype == torch.float32


def test_gradients_under_autocast() -> None:
    arrays = [array.requires_grad_() for array in inputs()]
    with torch.autocast("cpu", torch.bfloat16):
        output, again = ak.attention(*arrays), compiled(ak.attention, "aot_eager")(*arrays)
    found, same = (torch.autograd.grad(out.float().sum(), arrays) for out in (output, again))
    assert [array.dtype for array in found] == [torch.float32] * 3
    torch.testing.assert_close(same, found, rtol=2e-2, atol=2e-2)


Mapped = tuple[Callable[..., Any], tuple[int | None, ...], tuple[tuple[int, ...], ...]]
SHAPES = {"q": (2, 4, 5, 8), "k": (2, 2, 7, 8), "v": (2, 2, 7, 6)}


def mapped(option: str, shape: tuple[int, ...], dim: int | None, dims: tuple[int | None, ...] = (0, 0, 0)) -> Any:
    return pytest.param(option, shape, dim, dims, id=f"{option} {shape} at {dim}, {dims}")


@pytest.mark.parametrize(
    ("option", "shape", "dim", "dims"),
    [
        mapped("none", (), None),
        mapped("none", (), None, (0, None, None)),
        mapped("none", (), None, (None, 0, 0)),
        mapped("none", (), None, (1, 4, 2)),
        mapped("bias", (2, 4, 5, 7), 0),
        mapped("bias", (2, 4, 5, 7), None),
        mapped("bias", (1, 4, 5, 7), None),
        mapped("bias", (1, 4, 5, 7), 2),
        mapped("bias", (5, 7), 2),
        mapped("bias", (5, 7), 0, (None, None, None)),
        mapped("alibi", (4,), 0),
        mapped("alibi", (2, 4), 1),
        mapped("alibi", (2, 4), None),
        mapped("sinks", (4,), 0),
        mapped("sinks", (4,), None),
        mapped("kv_lengths", (2,), 0),
        mapped("kv_lengths", (2,), None),
        mapped("query_offset", (2,), 1),
        mapped("documents", (7,), 0),
        mapped("documents", (2, 7), 0),
        mapped("documents", (2, 7), None),
        mapped("dense", (5, 7), 0),
        mapped("dense", (2, 1, 5, 7), None),
    ],
)
def test_vmap(option: str, shape: tuple[int, ...], dim: int | None, dims: tuple[int | None, ...]) -> None:
    count = 3

    def draw(shape: tuple[int, ...], dim: int | None) -> Tensor:
        return torch.randn(shape) if dim is None else torch.randn(*shape[:dim], count, *shape[dim:])

    extra = {
        "documents": lambda array: (array > 0).long(),
        "dense": lambda array: array > 0,
        "kv_lengths": lambda array: (array.abs() * 3).long(),
        "query_offset": lambda array: (array * 3).long(),
    }.get(option, lambda array: array)(draw(shape, dim))

    def attend(query: Tensor, key: Tensor, value: Tensor, extra: Tensor) -> tuple[Tensor, Tensor]:
        options: dict[str, Any] = {"mask": CAUSAL, option: extra}
        if option == "documents":
            options = {"mask": ak.Mask.documents(extra[..., :5], extra)}
        elif option == "dense":
            options = {"mask": ak.Mask.dense(extra) & CAUSAL}
        options.pop("none", None)
        return tuple(ak.attention_with_lse(query, key, value, **options))  # type: ignore[return-value]

    arrays = [*(draw(size, at) for size, at in zip(SHAPES.values(), dims, strict=True)), extra]
    places = (*dims, dim)
    single = [
        attend(*(array if at is None else array.select(at, n) for array, at in zip(arrays, places, strict=True)))
        for n in range(count)
    ]
    assert_close(vmap(attend, in_dims=places)(*arrays), tuple(map(torch.stack, zip(*single, strict=True))))


def test_vmap_nested_compiled_and_on_numpy() -> None:
    query, key, value = (torch.randn(2, 3, *shape) for shape in SHAPES.values())
    expected = ak.attention(query.flatten(0, 2), key.flatten(0, 2), value.flatten(0, 2)).reshape(2, 3, 2, 4, 5, 6)
    assert_close(vmap(vmap(ak.attention))(query, key, value), expected)
    assert_close(compiled(vmap(ak.attention), "aot_eager")(query[0], key[0], value[0]), expected[0])
    assert_close(vmap(lambda *arrays: ak.attention(*arrays, backend="numpy"))(query[0], key[0], value[0]), expected[0])


def loss(*arrays: Tensor) -> Tensor:
    return ak.attention(*arrays, mask=CAUSAL).sin().sum()


def expected_gradients(*arrays: Tensor) -> tuple[Tensor, ...]:
    leaves = [array.detach().clone().requires_grad_() for array in arrays]
    return torch.autograd.grad(loss(*leaves), leaves)  # type: ignore[no-any-return]


def test_functional_gradients() -> None:
    arrays = inputs()
    assert_close(grad(loss, (0, 1, 2))(*arrays), expected_gradients(*arrays))
    _, pull = vjp(loss, *arrays)
    assert_close(pull(torch.tensor(1.0)), expected_gradients(*arrays))
    rows = [array[0, 0] for array in arrays]
    jacobian = torch.autograd.functional.jacobian(lambda query: ak.attention(query, *rows[1:]), rows[0])
    assert_close(jacrev(lambda query: ak.attention(query, *rows[1:]))(rows[0]), jacobian)


def test_gradients_of_each_sample() -> None:
    query, key, value = (torch.randn(3, *shape) for shape in SHAPES.values())
    single = [expected_gradients(query[n], key[n], value[0]) for n in range(3)]
    found = vmap(grad(loss, (0, 1, 2)), (0, 0, None))(query, key, value[0])
    assert_close(found, tuple(map(torch.stack, zip(*single, strict=True))))


def test_derivatives_that_are_refused() -> None:
    query, key, value = inputs()
    with pytest.raises(ak.UnsupportedError, match="forward-mode"):
        hessian(lambda query: ak.attention(query, key, value).sum())(query)
    with pytest.raises(ak.UnsupportedError, match="second derivatives"):
        grad(lambda query: grad(loss)(query, key, value).sum())(query)
    query.requires_grad_()
    first = torch.autograd.grad(compiled(loss)(query, key, value), query, create_graph=True)[0]
    with pytest.raises(ak.UnsupportedError, match="second derivatives"):
        first.sum().backward()


def operator_calls() -> list[tuple[Any, ...]]:
    query, key, value = inputs()
    leaves = [array.clone().requires_grad_() for array in (query, key, value)]
    floats = [torch.randn(5, 7, requires_grad=True), torch.rand(4), torch.randn(4, requires_grad=True)]
    integers = [torch.tensor(numbers) for numbers in ([1, 5], [3, 7], [0, 3], [1, 0])]
    ids, dense = [torch.arange(5) // 2, torch.arange(7) // 2], [torch.rand(5, 7) < 0.5]
    return [
        (query, key, value, *NEUTRAL, False),
        (*leaves, *NEUTRAL, True),
        (query, leaves[1], value, [1, 3, -1, -1], ids, dense, 0.2, 3.0, *floats, *integers, "torch", True),
        (query[:, :, :1], key, value, *NEUTRAL, True),
        (query[:, :, :0], key, value, *NEUTRAL, True),
        (leaves[0], key[:, :, :0], value[:, :, :0], *NEUTRAL, True),
        (*(array.bfloat16() for array in (query, key, value)), [0, -1, -1, -1, 2], *NEUTRAL[1:], True),
        (*(array.double() for array in (query, key, value)), *NEUTRAL, True),
    ]


@pytest.mark.parametrize("index", range(8))
def test_operator_is_what_torch_asks_of_one(index: int) -> None:
    found = opcheck(attention_operator, operator_calls()[index])
    assert set(found.values()) == {"SUCCESS"}


def test_results_never_alias_arguments() -> None:
    query, key, value = inputs()
    output, lse = torch.ops.attnkit.attention(query, key, value, *NEUTRAL, True)
    owners = {array.untyped_storage().data_ptr() for array in (query, key, value)}
    assert output.untyped_storage().data_ptr() not in owners
    assert lse.untyped_storage().data_ptr() not in owners
    assert output.transpose(1, 2).is_contiguous()
    assert lse.is_contiguous()
