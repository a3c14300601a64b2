"""Attention over the pages of a cache, wherever its tokens lie, against the oracle on the decoded tokens.

Axes: ``B`` batch, ``K`` key/value heads, ``N`` slots, ``n`` tokens, ``D`` key head size, ``E`` value head size, ``F``
features of a plane.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import attnkit as ak
from attnkit import Codec, Pages, Planes, SlotTable
from attnkit.call import Options, describe_call
from attnkit.pages import melted
from attnkit_torch import sources

BACKEND = ak.get_backend("torch")
LAYOUTS = ("span", "shared", "rows", "ring", "slots", "pages of 3", "pages of 16", "pages and spans")
CAUSAL = ak.Mask.causal()
CODECS = ("native", "int8", "int4", "fp8")


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let short calls meet long spans, short ones, several blocks, and no copy of everything."""
    monkeypatch.setattr(sources, "_SMALL_VIEWS", -1)
    monkeypatch.setattr(sources, "_SMALL_COPIES", -1)
    monkeypatch.setattr(sources, "_LONG", 12)
    monkeypatch.setattr(sources, "_FEWEST", 7)
    monkeypatch.setattr(sources, "_COPIED", {"cpu": 0})


def paged(rng: np.random.Generator, lengths: list[int], size: int) -> tuple[list[Any], int]:
    """Put sequences into shuffled pages; give their slots, and how many slots there are."""
    needed = [-(-n // size) for n in lengths]
    pages = rng.permutation(sum(needed) + 3)
    slots = (pages[:, None] * size + np.arange(size)).reshape(-1, size)
    ends = np.cumsum([0, *needed])
    return [slots[low:high].ravel()[:n] for (low, high), n in zip(pairwise(ends), lengths, strict=True)], slots.size


def lay(rng: np.random.Generator, layout: str, lengths: list[int]) -> tuple[list[Any], int]:
    """Give the slots of sequences, and how many slots there are."""
    longest = max(lengths, default=0)
    if layout == "span":
        gaps = rng.integers(0, 9, len(lengths))
        starts = np.cumsum([0, *lengths[:-1]]) + np.cumsum(gaps)
        return [start + np.arange(n) for start, n in zip(starts, lengths, strict=True)], int(sum(gaps)) + sum(lengths)
    if layout == "shared":
        return [
            np.concatenate([np.arange(4, n // 2 + 4), np.arange(longest + 9, longest + 9 + n - n // 2)])
            for n in lengths
        ], 2 * longest + 9
    if layout == "rows":
        step = longest + int(rng.integers(0, 5))
        return [b * step + np.arange(n) for b, n in enumerate(lengths)], step * (len(lengths) - 1) + lengths[-1]
    if layout == "ring":
        step, first = longest + 3, int(rng.integers(0, longest + 3))
        return [b * step + (first + np.arange(n)) % step for b, n in enumerate(lengths)], step * len(lengths)
    if layout == "pages and spans":
        (first,), count = paged(rng, lengths[:1], 16)
        others = [count + b * longest + np.arange(n) for b, n in enumerate(lengths[1:])]
        return [first, *others], count + longest * len(others)
    size = {"slots": 1, "pages of 3": 3, "pages of 16": 16}[layout]
    return paged(rng, lengths, size)


def store(tokens: list[Any], slots: list[Any], count: int, codec: str) -> tuple[Planes, Any]:
    """Store tokens ``[K, n, F]`` of each sequence, and poison all other slots; give what decoding gives too."""
    heads, _, size = tokens[0].shape
    dtype, made = tokens[0].dtype.name, Codec.model_validate(codec)
    arrays = []
    for features, name in made.planes(size, dtype):
        plane = BACKEND.allocate((heads, count, features), name)
        plane.fill_(torch.nan if plane.is_floating_point() else 77)
        arrays.append(plane)
    for token, place in zip(tokens, slots, strict=True):
        for plane, part in zip(arrays, made.encode(BACKEND.from_numpy(token), dtype), strict=True):
            plane[:, torch.from_numpy(place)] = part
    decoded = np.zeros((len(tokens), heads, max(map(len, slots), default=0), size), tokens[0].dtype)
    for row, place in zip(decoded, slots, strict=True):
        held = tuple(plane[:, torch.from_numpy(place)] for plane in arrays)
        row[:, : len(place)] = BACKEND.to_numpy(made.decode(held, size, dtype))
    return Planes(tuple(arrays), made, size, dtype), decoded


class Held(NamedTuple):
    """A call, and the pages that its keys and values lie in."""

    case: Any
    pages: Pages
    table: SlotTable

    def attend(self, path: str, *, lse: bool = False) -> ak.AttentionOutput:
        query, operands, plan = self.planned(path, lse)
        return BACKEND.attend_pages(query, self.pages, self.table, operands, plan)

    def planned(self, path: str, lse: bool = False) -> tuple[Any, Any, Any]:
        arrays, options = self.case.tensors()
        request, operands = describe_call(*arrays, Options(**options), lse, cached=True)
        BACKEND.refuse(request, path)
        return arrays[0], operands, BACKEND.plan(request, path)


def hold(rng: np.random.Generator, case: Any, layout: str, codecs: tuple[str, str], *, ragged: bool) -> Held:
    """Lay the keys and values of a call into pages; the call becomes one over what they decode to."""
    query, key, value = case.arrays
    lengths = [key.shape[2]] * len(key)
    if ragged:
        lengths[1:] = [int(n) for n in rng.integers(0, key.shape[2] + 1, len(key) - 1)]
    slots, count = lay(rng, layout, lengths)
    table = SlotTable(tuple(melted((int(slot), int(slot) + 1) for slot in row) for row in slots))
    (keys, decoded_keys), (values, decoded_values) = (
        store([tokens[:, :n] for tokens, n in zip(half, lengths, strict=True)], slots, count, codec)
        for half, codec in zip((key, value), codecs, strict=True)
    )
    options = {**case.options, "kv_lengths": np.array(lengths)} if len(set(lengths)) > 1 else case.options
    case = case._replace(arrays=[query, decoded_keys, decoded_values], options=options)
    return Held(case, Pages(keys, values, 16), table)


def plain(calls: Any, seed: int, rows: int, dtype: str, mask: ak.Mask | None = CAUSAL) -> Any:
    """Draw a call of several sequences and grouped heads, without options."""
    rng = np.random.default_rng(seed)
    sizes = (3, 6, 2, rows, 90, 16, 12)
    return calls.Case(calls.draw(rng, str(rng.choice(["uniform", "normal", "zero-sum"])), sizes, dtype), {"mask": mask})


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("seed", range(24))
def test_any_call_equals_oracle(calls: Any, layout: str, seed: int, small_pieces: None) -> None:
    case, codec = calls.draw_case(9000 + seed).without("kv_lengths", "key_offset"), CODECS[seed % 4]
    held = hold(np.random.default_rng(seed), case, layout, (codec, codec), ragged=seed % 3 == 0)
    calls.check(held.case, held.attend("decode", lse=seed % 5 > 0))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
@pytest.mark.parametrize("rows", [1, 2, 5])
def test_decoding_equals_oracle(calls: Any, layout: str, dtype: str, rows: int, small_pieces: None) -> None:
    """Without the log-sum-exp 16-bit calls take the kernel too: its results for every piece are merged."""
    for seed, mask in enumerate((CAUSAL, CAUSAL & ak.Mask.window(40), None)):
        case = plain(calls, seed, rows, dtype, mask)
        held = hold(np.random.default_rng(seed), case, layout, ("native", "native"), ragged=seed == 1)
        calls.check(held.case, held.attend("decode"))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("codec", ["native", "int8"])
def test_heads_with_masks_of_their_own_equal_oracle(calls: Any, layout: str, codec: str, small_pieces: None) -> None:
    rng = np.random.default_rng(2)
    case = plain(calls, 2, 2, "float32", CAUSAL & ak.Mask.dense(rng.random((1, 6, 2, 90)) < 0.7))
    held = hold(rng, case, layout, (codec, codec), ragged=False)
    calls.check(held.case, held.attend("decode"))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("codecs", [("int8", "int8"), ("int4", "fp8"), ("native", "int8"), ("fp8", "native")], ids=str)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_codes_are_decoded_piece_by_piece(
    calls: Any, layout: str, codecs: tuple[str, str], dtype: str, small_pieces: None
) -> None:
    held = hold(np.random.default_rng(3), plain(calls, 3, 2, dtype), layout, codecs, ragged=False)
    calls.check(held.case, held.attend("decode"))


@pytest.mark.parametrize("path", ["sdpa", "tiled", "decode", "dense", "flex"])
@pytest.mark.parametrize("codec", ["native", "int4"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_path_attends_over_pages(calls: Any, path: str, codec: str, layout: str) -> None:
    case = plain(calls, 4, 3, "float32")
    held = hold(np.random.default_rng(4), case, layout, (codec, codec), ragged=path != "flex")
    calls.check(held.case, held.attend(path))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_empty_sequences_see_nothing(calls: Any, layout: str, small_pieces: None) -> None:
    case = plain(calls, 5, 1, "float32")
    case = case._replace(arrays=[case.arrays[0], *(array[:, :, :0] for array in case.arrays[1:])])
    held = hold(np.random.default_rng(5), case, layout, ("native", "native"), ragged=False)
    assert not held.attend("decode").output.any()


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_second_call_gives_the_same_bits(calls: Any, codec: str, layout: str, small_pieces: None) -> None:
    held = hold(np.random.default_rng(6), plain(calls, 6, 1, "float32"), layout, (codec, codec), ragged=False)
    calls.assert_same_bits(held.attend("decode", lse=True), held.attend("decode", lse=True))


@pytest.mark.parametrize(
    "surroundings", [torch.inference_mode, torch.no_grad, lambda: torch.autocast("cpu", torch.bfloat16)]
)
def test_surroundings_do_not_matter(calls: Any, surroundings: Any, small_pieces: None) -> None:
    held = hold(np.random.default_rng(7), plain(calls, 7, 2, "float32"), "pages of 3", ("native", "int8"), ragged=True)
    expected = held.attend("decode", lse=True)
    with surroundings():
        found = held.attend("decode", lse=True)
    calls.assert_same_bits(found, expected)


@pytest.mark.parametrize("codec", ["native", "int8"])
def test_gradients_of_the_query_flow_past_pages(calls: Any, codec: str) -> None:
    held = hold(np.random.default_rng(8), plain(calls, 8, 2, "float64"), "pages of 3", (codec, codec), ragged=False)
    queries, grads = [], []
    for pages in (True, False):
        (query, key, value), options = held.case.tensors()
        query.requires_grad_()
        request, operands = describe_call(query, key, value, Options(**options), False, cached=True)
        assert BACKEND.unsupported(request, "decode")
        plan = BACKEND.plan(request, "sdpa")
        if pages:
            output = BACKEND.attend_pages(query, held.pages, held.table, operands, plan).output
        else:
            output = plan.run(query, key, value, operands).output
        output.sum().backward()
        queries.append(output)
        grads.append(query.grad)
    torch.testing.assert_close(*queries)
    torch.testing.assert_close(*grads)


class Largest(TorchDispatchMode):
    """Watches how many bytes the largest tensor has that an operation makes."""

    nbytes = 0

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = operation(*args, **(kwargs or {}))
        known = {tensor.untyped_storage().data_ptr() for tensor in args if isinstance(tensor, torch.Tensor)}
        for tensor in found if isinstance(found, tuple) else (found,):
            if isinstance(tensor, torch.Tensor) and tensor.untyped_storage().data_ptr() not in known:
                self.nbytes = max(self.nbytes, tensor.untyped_storage().nbytes())
        return found


@pytest.mark.parametrize("codec", ["native", "int8"])
@pytest.mark.parametrize("layout", ["span", "rows", "ring", "slots", "pages of 16"])
@pytest.mark.parametrize("options", [{}, {"softcap": 5.0}], ids=["kernel", "written out"])
def test_a_step_never_copies_the_history(calls: Any, codec: str, layout: str, options: dict[str, Any]) -> None:
    """What a step needs beside the pages is a piece of them, however long they are."""
    history = calls.draw(np.random.default_rng(9), "normal", (2, 4, 2, 1, 6000, 64, 64), "float32")
    held = hold(
        np.random.default_rng(9), calls.Case(history, {"mask": CAUSAL, **options}), layout, (codec, codec), ragged=False
    )
    query, operands, plan = held.planned("decode")
    with Largest() as largest:
        output = BACKEND.attend_pages(query, held.pages, held.table, operands, plan)
    calls.check(held.case, output)
    assert 0 < largest.nbytes <= 2**20 < history[1].nbytes / 2


@pytest.mark.parametrize("length", [40, 600])
@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_short_and_long_histories_equal_oracle(calls: Any, length: int, codec: str, layout: str) -> None:
    """As they come, without smaller pieces: some are copied at once, some are views."""
    arrays = calls.draw(np.random.default_rng(10), "normal", (3, 4, 2, 1, length, 32, 32), "float32")
    case = calls.Case(arrays, {"mask": CAUSAL})
    held = hold(np.random.default_rng(10), case, layout, (codec, codec), ragged=length == 40)
    calls.check(held.case, held.attend("decode"))
