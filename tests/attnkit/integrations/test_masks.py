"""Masks mean what transformers' own mean, whether they are looked into or handed on."""

# ruff: noqa: E402  # imports follow the skip of those who lack the packages

from __future__ import annotations

import copy
import functools
import pickle

import pytest

torch = pytest.importorskip("torch", reason="pip install 'attnkit[torch]'")
pytest.importorskip("transformers", reason="pip install 'attnkit[transformers]'")

from transformers import masking_utils

import attnkit as ak
from attnkit.integrations.transformers.masks import MaskTensor, make_mask
from attnkit.integrations.transformers.patterns import Pattern, read_pattern

PADDING = torch.tensor([[0, 0, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 0, 0], [0, 0, 0, 0, 0, 0, 0]]).bool()
STARTS = torch.tensor([2, 0, 7])
PACKED = torch.tensor([[0, 0, 0, 1, 1, 2, 2], [0, 0, 0, 0, 0, 0, 0], [0, 1, 2, 3, 4, 5, 6]])
POSITIONS = torch.tensor([[0, 1, 2, 0, 1, 0, 1], [0, 1, 2, 3, 4, 5, 6], [0, 0, 0, 0, 0, 0, 0]])
CAUSAL = masking_utils.causal_mask_function
WINDOW = masking_utils.sliding_window_causal_mask_function(3)
FUNCTIONS = {
    "causal": (CAUSAL, None),
    "window": (WINDOW, 3),
    "both ways": (masking_utils.sliding_window_bidirectional_mask_function(2), 2),
    "chunks": (masking_utils.chunked_causal_mask_function(3, STARTS), 3),
}


def packed(function):
    renumbered = masking_utils.remap_positions_for_packed_sequence(function, POSITIONS)
    return masking_utils.and_masks(renumbered, masking_utils.packed_sequence_mask_function(PACKED))


# queries, keys, position of the first query, position of the first key: a prompt, one after others, one more token, a
# cache that has dropped its first keys, a prompt in front of empty slots.
PLACES = [(7, 7, 0, 0), (3, 7, 4, 0), (1, 7, 6, 0), (2, 4, 5, 3), (3, 7, 0, 0), (2, 9, 7, 0)]


def visible(mask, keys: int, queries: int):
    """Read the mask through attention: with zero queries a key weighs 1 / n where n are visible."""
    query = torch.zeros(3, 1, queries, 1, dtype=torch.float64)
    weights = ak.attention(
        query, query.new_zeros(3, 1, keys, 1), torch.eye(keys).double().expand(3, 1, keys, keys), **mask
    )
    return weights > 0


@pytest.mark.parametrize("backend", ["torch", "numpy"])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("kind", FUNCTIONS)
@pytest.mark.parametrize("place", PLACES, ids=str)
def test_mask_tensor_means_what_it_shows(place, kind, padded, backend) -> None:
    queries, keys, first_query, first_key = place
    function, local = FUNCTIONS[kind]
    arguments = {
        "batch_size": 3,
        "q_length": queries,
        "kv_length": keys,
        "q_offset": first_query,
        "kv_offset": first_key,
        "mask_function": function,
        "attention_mask": PADDING if padded else None,
        "local_size": local,
    }
    expected = masking_utils.sdpa_mask(**arguments, allow_is_causal_skip=False)
    mask = make_mask(**arguments)
    if mask is None:
        assert (queries, kind, padded) == (1, "causal", False)
        assert bool(expected.all())
        return
    if isinstance(mask, MaskTensor):
        with ak.use_backend(backend):
            assert torch.equal(visible(mask.arguments, keys, queries), expected)
        assert mask.untouched
    else:
        assert (queries, kind) == (1, "causal")
    assert torch.equal(mask.clone(), expected)


@pytest.mark.parametrize("function", [CAUSAL, WINDOW], ids=["causal", "window"])
def test_packed_sequences_stay_apart(function) -> None:
    arguments = {"batch_size": 3, "q_length": 7, "kv_length": 7, "mask_function": packed(function)}
    expected = masking_utils.sdpa_mask(**arguments, allow_is_causal_skip=False)
    mask = make_mask(**arguments, allow_is_causal_skip=False)
    assert isinstance(mask, MaskTensor)
    assert torch.equal(visible(mask.arguments, 7, 7), expected)
    assert torch.equal(mask.clone(), expected)


def test_what_is_not_known_is_written_out() -> None:
    def prefix(_batch, _head, row, key):
        return (key < 2) | (key <= row)

    unknown = [
        prefix,
        functools.partial(prefix),
        masking_utils.and_masks(CAUSAL, prefix),
        masking_utils.or_masks(CAUSAL, prefix),
        masking_utils.or_masks(CAUSAL, masking_utils.blockwise_overlay(PACKED)),
        masking_utils.and_masks(WINDOW, masking_utils.sliding_window_overlay(2)),
        masking_utils.remap_positions_for_packed_sequence(CAUSAL, POSITIONS),
        packed(masking_utils.chunked_causal_mask_function(3, STARTS)),
    ]
    for function in unknown:
        assert read_pattern(function) is None
        arguments = {"batch_size": 3, "q_length": 7, "kv_length": 7, "mask_function": function}
        mask = make_mask(**arguments, allow_is_causal_skip=False)
        assert type(mask) is torch.Tensor
        assert torch.equal(mask, masking_utils.sdpa_mask(**arguments, allow_is_causal_skip=False))


def test_patterns_are_read() -> None:
    assert read_pattern(CAUSAL) == Pattern(causal=True)
    assert read_pattern(WINDOW) == Pattern(causal=True, left=3)
    assert read_pattern(FUNCTIONS["both ways"][0]) == Pattern(left=3, right=2)
    assert read_pattern(masking_utils.bidirectional_mask_function) == Pattern()


def test_a_static_cache_gets_plain_booleans() -> None:
    mask = make_mask(batch_size=1, q_length=2, kv_length=8, q_offset=torch.tensor(3))
    assert type(mask) is torch.Tensor


@pytest.fixture
def mask():
    return make_mask(batch_size=2, q_length=4, kv_length=6, q_offset=2, mask_function=WINDOW, local_size=3)


EXPECTED = masking_utils.sdpa_mask(2, 4, 6, 2, 0, WINDOW, allow_is_causal_skip=False)


@pytest.mark.parametrize(
    "look",
    [
        lambda mask: mask.clone(),
        lambda mask: mask[:],
        lambda mask: mask.reshape(-1).reshape(2, 1, 4, 6),
        lambda mask: mask & mask,
        lambda mask: torch.cat([mask[:1], mask[1:]]),
        lambda mask: torch.tensor(mask.tolist()),
        lambda mask: torch.from_numpy(mask.numpy()),
        lambda mask: pickle.loads(pickle.dumps(mask)),
        lambda mask: copy.deepcopy(mask),
        lambda mask: mask.to(torch.float32) > 0,
        lambda mask: torch.where(mask, 0.0, -1.0) == 0,
    ],
)
def test_whatever_looks_inside_finds_the_booleans(mask, look) -> None:
    assert torch.equal(look(mask), EXPECTED)


def test_shape_and_kind_are_known_without_looking(mask) -> None:
    assert isinstance(mask, torch.Tensor)
    assert (mask.shape, mask.ndim, mask.dtype, str(mask.device)) == ((2, 1, 4, 6), 4, torch.bool, "cpu")
    assert mask.untouched
    assert "True" in repr(mask)


def test_a_mask_that_was_written_to_is_what_was_written(mask) -> None:
    from attnkit.integrations.transformers.attention import attend

    torch.manual_seed(0)
    query, key = torch.randn(2, 1, 4, 8), torch.randn(2, 1, 6, 8)
    module = torch.nn.Module()
    mask[:, :, :, 5] = False
    changed = EXPECTED.clone()
    changed[:, :, :, 5] = False
    found, _ = attend(module, query, key, key, mask, backend="torch")
    expected, _ = attend(module, query, key, key, changed, backend="torch")
    assert torch.equal(found, expected)
