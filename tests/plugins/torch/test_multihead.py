"""TorchMultiHeadAttention against ``torch.nn.MultiheadAttention`` with the same parameters, and beyond it."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest

import attnkit as ak

torch = pytest.importorskip("torch", reason="pip install 'attnkit[torch]'")
from torch import nn  # noqa: E402  # torch is asked for above

from attnkit_torch.multihead import TorchMultiHeadAttention  # noqa: E402

CAUSAL = ak.Mask.causal()
SIZES = {"batch": 3, "queries": 5, "keys": 7}


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(7)


def pair(embed_dim=12, num_heads=3, dtype=torch.float64, **options):
    """Give torch's module and ours with its parameters; biases are drawn too, since torch's are zeros at first."""
    theirs = nn.MultiheadAttention(embed_dim, num_heads, dtype=dtype, **options)
    for parameter in theirs.parameters():
        nn.init.normal_(parameter, std=2 / embed_dim**0.5)  # scores of about 1, at any size
    ours = TorchMultiHeadAttention(embed_dim, num_heads, dtype=dtype, **options)
    ours.load_state_dict(theirs.state_dict())
    return theirs, ours


def inputs(batch=3, queries=5, keys=7, sizes=(12, 12, 12), batch_first=True, dtype=torch.float64):
    shapes = [(batch, queries), (batch, keys), (batch, keys)]
    arrays = [torch.randn(*shape, size, dtype=dtype) for shape, size in zip(shapes, sizes, strict=True)]
    if batch is None:
        return arrays
    return arrays if batch_first else [array.transpose(0, 1).contiguous() for array in arrays]


def same(found, expected):
    assert (found[1] is None) == (expected[1] is None)
    for mine, theirs in zip(found, expected, strict=True):
        if theirs is not None:
            assert mine.dtype == theirs.dtype
            sums = 64 * torch.finfo(theirs.dtype).eps  # no sum here is longer
            torch.testing.assert_close(mine, theirs, rtol=0, atol=sums * float(theirs.detach().abs().max()))


def agree(theirs, ours, arrays, **options):
    for need in (False, True):
        same(ours(*arrays, need_weights=need, **options), theirs(*arrays, need_weights=need, **options))


def hidden(*shape, share=0.3):
    """Give booleans, True = hidden, of which no row hides everything."""
    mask = torch.rand(*shape) < share
    mask[..., 0] = False
    return mask


MASKS = {
    "none": dict,
    "bool 2-D": lambda: {"attn_mask": hidden(5, 7)},
    "bool 3-D": lambda: {"attn_mask": hidden(9, 5, 7)},
    "float 2-D": lambda: {"attn_mask": torch.randn(5, 7, dtype=torch.float64)},
    "float 3-D": lambda: {"attn_mask": torch.randn(9, 5, 7, dtype=torch.float64)},
    "float with -inf": lambda: {
        "attn_mask": torch.zeros(5, 7, dtype=torch.float64).masked_fill(hidden(5, 7), -torch.inf)
    },
    "padding bool": lambda: {"key_padding_mask": hidden(3, 7)},
    "padding float": lambda: {"key_padding_mask": torch.randn(3, 7, dtype=torch.float64)},
    "both bool": lambda: {"attn_mask": hidden(5, 7), "key_padding_mask": hidden(3, 7)},
    "both bool, 3-D": lambda: {"attn_mask": hidden(9, 5, 7), "key_padding_mask": hidden(3, 7)},
    "both float": lambda: {
        "attn_mask": torch.randn(9, 5, 7, dtype=torch.float64),
        "key_padding_mask": torch.randn(3, 7, dtype=torch.float64),
    },
}


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("masks", MASKS.values(), ids=MASKS.keys())
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"bias": False},
        {"kdim": 5, "vdim": 4},
        {"add_bias_kv": True},
        {"add_zero_attn": True},
        {"add_bias_kv": True, "add_zero_attn": True, "kdim": 6},
    ],
    ids=str,
)
def test_the_same_numbers(options, masks, batch_first):
    theirs, ours = pair(batch_first=batch_first, **options)
    arrays = inputs(sizes=(12, ours.kdim, ours.vdim), batch_first=batch_first)
    agree(theirs, ours, arrays, **masks())


@pytest.mark.parametrize("options", [{}, {"kdim": 5, "vdim": 4}, {"add_bias_kv": True, "add_zero_attn": True}], ids=str)
@pytest.mark.parametrize(
    "masks",
    [
        dict,
        lambda: {"attn_mask": hidden(5, 7), "key_padding_mask": hidden(7)},
        lambda: {"attn_mask": torch.randn(3, 5, 7, dtype=torch.float64)},
        lambda: {"key_padding_mask": torch.randn(7, dtype=torch.float64)},
    ],
)
@pytest.mark.parametrize("average", [True, False])
def test_the_same_numbers_without_a_batch(options, masks, average):
    theirs, ours = pair(**options)
    arrays = [array[0] for array in inputs(sizes=(12, ours.kdim, ours.vdim))]
    agree(theirs, ours, arrays, average_attn_weights=average, **masks())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("train", [True, False])
def test_the_same_numbers_in_self_attention(dtype, batch_first, train):
    theirs, ours = pair(embed_dim=64, num_heads=4, batch_first=batch_first, dtype=dtype)
    x = torch.randn(4, 33, 64, dtype=dtype)
    theirs.train(train), ours.train(train)
    agree(theirs, ours, (x, x, x), average_attn_weights=False)
    with torch.no_grad():  # torch takes another way here: one kernel for the whole module
        agree(theirs, ours, (x, x, x))
    y = torch.randn(4, 33, 64, dtype=dtype)
    agree(theirs, ours, (x, y, y))


@pytest.mark.parametrize("need", [True, False])
@pytest.mark.parametrize("sizes", [(5, 5), (5, 7), (7, 5)])
def test_is_causal_counts_from_the_first_key(need, sizes):
    theirs, ours = pair(batch_first=True)
    arrays = inputs(queries=sizes[0], keys=sizes[1])
    future = torch.ones(*sizes, dtype=torch.bool).triu(1)
    expected = theirs(*arrays, attn_mask=future, is_causal=True, need_weights=need)
    same(ours(*arrays, attn_mask=future, is_causal=True, need_weights=need), expected)
    same(ours(*arrays, is_causal=True, need_weights=need), expected)


def test_is_causal_does_not_hide_a_mask_that_says_more():
    theirs, ours = pair(batch_first=True)
    arrays, mask = inputs(keys=5), hidden(5, 5)
    expected = theirs(*arrays, attn_mask=mask | torch.ones(5, 5, dtype=torch.bool).triu(1))
    same(ours(*arrays, attn_mask=mask, is_causal=True), expected)
    same(ours(*arrays, attn_mask=mask, is_causal=True, need_weights=False), (expected[0], None))


def test_the_first_parameters_are_torch_s():
    for options in ({}, {"kdim": 6, "vdim": 9, "add_bias_kv": True}, {"bias": False}):
        torch.manual_seed(3)
        theirs = nn.MultiheadAttention(12, 3, **options).state_dict()
        torch.manual_seed(3)
        ours = TorchMultiHeadAttention(12, 3, **options).state_dict()
        assert theirs.keys() == ours.keys()
        assert all(torch.equal(theirs[name], ours[name]) for name in theirs)


def test_reset_parameters_draws_anew():
    module = TorchMultiHeadAttention(12, 3, add_bias_kv=True)
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    nn.init.ones_(module.in_proj_bias), nn.init.ones_(module.out_proj.bias)
    module.reset_parameters()
    after = module.state_dict()
    assert not torch.equal(before["in_proj_weight"], after["in_proj_weight"])
    assert after["in_proj_weight"].abs().max() <= (6 / (36 + 12)) ** 0.5
    assert not after["in_proj_bias"].any()
    assert not after["out_proj.bias"].any()


@pytest.mark.parametrize("options", [{}, {"kdim": 6}, {"bias": False}, {"add_bias_kv": True}], ids=str)
def test_a_state_dict_goes_either_way(options):
    ours = TorchMultiHeadAttention(12, 3, **options)
    theirs = nn.MultiheadAttention(12, 3, **options)
    theirs.load_state_dict(ours.state_dict())
    assert all(torch.equal(tensor, theirs.state_dict()[name]) for name, tensor in ours.state_dict().items())


@pytest.mark.parametrize("need", [True, False])
@pytest.mark.parametrize(
    "options", [{}, {"kdim": 5, "vdim": 4, "add_zero_attn": True}, {"add_bias_kv": True, "batch_first": True}], ids=str
)
def test_the_same_gradients(options, need):
    theirs, ours = pair(**options)
    arrays = inputs(sizes=(12, ours.kdim, ours.vdim), batch_first=ours.batch_first)
    mask = torch.randn(5, 7, dtype=torch.float64).masked_fill(hidden(5, 7), -torch.inf)
    found = [gradients(module, arrays, mask, need) for module in (ours, theirs)]
    for mine, expected in zip(*found, strict=True):
        torch.testing.assert_close(mine, expected, rtol=1e-10, atol=1e-10)


def gradients(module, arrays, mask, need):
    leaves = [array.clone().requires_grad_() for array in (*arrays, mask)]
    output, weights = module(*leaves[:3], attn_mask=leaves[3], need_weights=need)
    loss = output.square().sum() if weights is None else output.square().sum() + weights.pow(3).sum()
    return torch.autograd.grad(loss, [*leaves, *module.parameters()])


def test_a_query_that_sees_nothing_gives_zeros():
    _, ours = pair(batch_first=True)
    arrays = [array.requires_grad_() for array in inputs()]
    padded = torch.zeros(3, 7, dtype=torch.bool)
    padded[1] = True
    output, weights = ours(*arrays, key_padding_mask=padded)
    torch.testing.assert_close(output[1], ours.out_proj.bias.expand(5, 12))
    assert not weights[1].any()
    torch.testing.assert_close(weights[0].sum(-1), torch.ones(5, dtype=torch.float64))
    output[:, :, 0].sum().backward()
    assert not arrays[0].grad[1].any()
    assert all(torch.isfinite(array.grad).all() for array in arrays)


def test_no_tokens():
    _, ours = pair(batch_first=True)
    assert ours(*inputs(queries=0))[0].shape == (3, 0, 12)
    output, weights = ours(*inputs(keys=0))
    assert weights.shape == (3, 5, 0)
    torch.testing.assert_close(output, ours.out_proj.bias.expand(3, 5, 12))
    assert ours(*inputs(batch=0))[1].shape == (0, 5, 7)


@pytest.mark.parametrize("need", [True, False])
@pytest.mark.parametrize("train", [True, False])
def test_inside_torch_s_encoder_layer(need, train):
    layer = nn.TransformerEncoderLayer(12, 2, 16, dropout=0.0, batch_first=True, dtype=torch.float64)
    x, padding = torch.randn(3, 5, 12, dtype=torch.float64), hidden(3, 5)
    mine = copy.deepcopy(layer)
    mine.self_attn = TorchMultiHeadAttention(12, 2, batch_first=True, dtype=torch.float64)
    mine.load_state_dict(layer.state_dict())
    layer.train(train), mine.train(train)
    with torch.set_grad_enabled(train), ak.trace() as calls:
        expected = layer(x, src_key_padding_mask=padding)
        torch.testing.assert_close(mine(x, src_key_padding_mask=padding)[~padding], expected[~padding])
    assert len(calls) == 1  # in evaluation torch's layer does not go round it


class TestBeyondTorch:
    """What ``torch.nn.MultiheadAttention`` does not have, against ``attnkit.MultiHeadAttention``."""

    OPTIONS = [
        {"mask": CAUSAL},
        {"mask": CAUSAL & ak.Mask.window(3), "num_kv_heads": 2},
        {"num_kv_heads": 1, "scale": 0.3},
        {"num_kv_heads": 2, "softcap": 0.7, "mask": ak.Mask.prefix(2)},
        {"rope": ak.RopeConfig(theta=50.0), "mask": CAUSAL, "num_kv_heads": 2},
        {"rope": ak.RopeConfig(theta=50.0, dim=2, style="interleaved")},
    ]

    @pytest.mark.parametrize("options", OPTIONS, ids=str)
    def test_options(self, options):
        module, core = self.both(options)
        x = torch.randn(2, 9, 16, dtype=torch.float64)
        output, weights = module(x, x, x)
        torch.testing.assert_close(output, torch.from_numpy(core(x.numpy())), rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(module(x, x, x, need_weights=False)[0], output)
        assert weights.shape == (2, 9, 9)

    @pytest.mark.parametrize("options", OPTIONS, ids=str)
    def test_weights_are_what_mixes_the_values(self, options):
        module, _ = self.both(options)
        query, key = torch.randn(2, 4, 16, dtype=torch.float64), torch.randn(2, 6, 16, dtype=torch.float64)
        output, weights = module(query, key, key, average_attn_weights=False)
        inner = module.config.num_kv_heads * 4
        values = nn.functional.linear(key, module.in_proj_weight[-inner:], module.in_proj_bias[-inner:])
        values = values.unflatten(-1, (-1, 4)).transpose(1, 2).repeat_interleave(4 // module.config.num_kv_heads, 1)
        mixed = (weights @ values).transpose(1, 2).flatten(2)
        torch.testing.assert_close(output, module.out_proj(mixed), rtol=1e-12, atol=1e-12)

    @pytest.mark.parametrize("options", OPTIONS[:5], ids=str)
    @pytest.mark.parametrize("need", [True, False])
    @torch.no_grad()
    def test_a_cache_and_chunks(self, options, need):
        module, _ = self.both(options)
        x = torch.randn(2, 9, 16, dtype=torch.float64)
        mask = None if module.config.mask is not None else torch.ones(9, 9, dtype=torch.bool).triu(1)
        whole, weights = module(x, x, x, attn_mask=mask, need_weights=need)
        cache = self.cache(module)
        for start, stop in ((0, 4), (4, 5), (5, 9)):
            piece = x[:, start:stop]
            rows = None if mask is None else mask[start:stop, :stop]
            output, shares = module(piece, piece, piece, attn_mask=rows, need_weights=need, cache=cache[0])
            torch.testing.assert_close(output, whole[:, start:stop], rtol=1e-12, atol=1e-12)
            if need:
                torch.testing.assert_close(shares, weights[:, start:stop, :stop], rtol=1e-12, atol=1e-12)
        assert cache.stored.tolist() == [9, 9]

    @torch.no_grad()
    def test_a_cache_of_uneven_sequences(self):
        module, core = self.both({"mask": CAUSAL, "rope": ak.RopeConfig(), "num_kv_heads": 2})
        mine, theirs = self.cache(module), self.cache(module, "numpy")
        x, step = torch.randn(2, 5, 16, dtype=torch.float64), torch.randn(2, 2, 16, dtype=torch.float64)
        module(x, x, x, cache=mine[0])
        core(x.numpy(), cache=theirs[0])
        mine.truncate([5, 3]), theirs.truncate([5, 3])
        output, weights = module(step, step, step, cache=mine[0])
        expected = core(step.numpy(), cache=theirs[0])
        torch.testing.assert_close(output, torch.from_numpy(expected), rtol=1e-12, atol=1e-12)
        assert not weights[1, :, 5:].any()
        torch.testing.assert_close(weights.sum(-1), torch.ones(2, 2, dtype=torch.float64))

    def test_the_backend_is_the_one_that_was_asked_for(self):
        x = torch.randn(2, 5, 16)
        with ak.trace() as calls:
            TorchMultiHeadAttention(16, 4, backend="torch:dense")(x, x, x)
        assert [(call.backend, call.path) for call in calls] == [("torch", "dense")]

    @staticmethod
    def both(options):
        module = TorchMultiHeadAttention(16, 4, batch_first=True, dtype=torch.float64, **options)
        for parameter in module.parameters():
            nn.init.normal_(parameter, std=0.5)
        sizes = [16, *(module.config.num_kv_heads * 4,) * 2]
        weights = [part.detach().numpy().T for part in (*module.in_proj_weight.split(sizes), module.out_proj.weight)]
        biases = [part.detach().numpy() for part in (*module.in_proj_bias.split(sizes), module.out_proj.bias)]
        named = dict(zip(("bq", "bk", "bv", "bo"), biases, strict=True))
        return module, ak.MultiHeadAttention(module.config, *weights, **named, backend="numpy")

    @staticmethod
    def cache(module, backend="torch"):
        sizes = {"batch_size": 2, "num_kv_heads": module.config.num_kv_heads, "head_dim": 4, "dtype": "float64"}
        return ak.make_cache(ak.KVCacheConfig(**sizes), backend=backend)


def test_torch_compile_takes_it_whole():
    module = TorchMultiHeadAttention(16, 4, batch_first=True, mask=CAUSAL, num_kv_heads=2)
    x, padding = torch.randn(2, 5, 16, requires_grad=True), hidden(2, 5)
    compiled = torch.compile(module, backend="eager", fullgraph=True)
    found, expected = (call(x, x, x, key_padding_mask=padding, need_weights=False)[0] for call in (compiled, module))
    torch.testing.assert_close(found, expected)
    (mine,), (theirs,) = (torch.autograd.grad(output.square().sum(), x) for output in (found, expected))
    torch.testing.assert_close(mine, theirs)


@torch.no_grad()
def test_torch_compile_gives_the_weights():
    module = TorchMultiHeadAttention(16, 4, batch_first=True, mask=CAUSAL, num_kv_heads=2)
    x = torch.randn(2, 5, 16)
    for found, expected in zip(torch.compile(module, backend="eager")(x, x, x), module(x, x, x), strict=True):
        torch.testing.assert_close(found, expected)


def test_copies_and_pickles():
    module = TorchMultiHeadAttention(16, 4, mask=CAUSAL & ak.Mask.window(3), rope=ak.RopeConfig(), num_kv_heads=2)
    x = torch.randn(5, 2, 16)
    for other in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert torch.equal(other(x, x, x)[0], module(x, x, x)[0])


def test_a_module_says_what_it_is():
    module = TorchMultiHeadAttention(16, 4, mask=CAUSAL, num_kv_heads=2, scale=0.5, backend="torch:dense")
    words = ["embed_dim=16", "num_heads=4", "num_kv_heads=2", "mask=causal()", "scale=0.5", "backend='torch:dense'"]
    assert all(word in repr(module) for word in words)
    assert "softcap" not in repr(module)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_and_autocast(dtype):
    module = TorchMultiHeadAttention(32, 4, batch_first=True)
    x = torch.randn(2, 9, 32)
    expected, shares = module(x, x, x)
    half = x.to(dtype)
    output, weights = copy.deepcopy(module).to(dtype)(half, half, half)
    assert output.dtype == weights.dtype == dtype
    torch.testing.assert_close(output.float(), expected, atol=0.05, rtol=0.05)
    with torch.autocast("cpu", dtype):
        output, weights = module(x, x, x)
    assert output.dtype == dtype
    torch.testing.assert_close(weights.float(), shares, atol=0.05, rtol=0.05)


X = torch.zeros(2, 5, 12)


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"key": torch.zeros(2, 5, 11)}, ak.ShapeError, r"\[B, T, M\], \[B, S, kdim\].* \[12, 12, 12\], got"),
        ({"query": torch.zeros(5, 12)}, ak.ShapeError, "query, key, value must be"),
        ({"key": torch.zeros(3, 5, 12), "value": torch.zeros(3, 5, 12)}, ak.ShapeError, "query, key, value must be"),
        ({"value": torch.zeros(2, 6, 12)}, ak.ShapeError, "query, key, value must be"),
        ({"attn_mask": torch.zeros(5, 4)}, ak.ShapeError, r"attn_mask must be \[T, S\] = \[5, 5\] or .*\[6, 5, 5\]"),
        ({"attn_mask": torch.zeros(2, 5, 5)}, ak.ShapeError, r"got \[2, 5, 5\]"),
        ({"attn_mask": torch.zeros(5, 5, dtype=torch.int64)}, ak.DTypeError, "attn_mask must be boolean .*int64"),
        ({"key_padding_mask": torch.zeros(5, 2) > 0}, ak.ShapeError, r"key_padding_mask must be \[B, S\] = \[2, 5\]"),
        ({"key_padding_mask": torch.zeros(2, 5).int()}, ak.DTypeError, "key_padding_mask must be boolean"),
    ],
)
def test_calls_that_do_not_fit(arguments, error, words):
    module = TorchMultiHeadAttention(12, 3, batch_first=True)
    with pytest.raises(error, match=words):
        module(**{"query": X, "key": X, "value": X, **arguments})


def test_what_is_refused():
    dropping = TorchMultiHeadAttention(12, 3, dropout=0.1)
    with pytest.raises(ak.UnsupportedError, match=r"dropout = 0.1 in training"):
        dropping(X, X, X)
    assert dropping.eval()(X, X, X)[0].shape == X.shape
    for arguments, words in (
        ({"embed_dim": 12, "num_heads": 5}, "embed_dim must be a multiple of num_heads"),
        ({"embed_dim": 12, "num_heads": 4, "num_kv_heads": 3}, "num_heads must be a multiple of num_kv_heads"),
        ({"embed_dim": 12, "num_heads": 4, "softcap": 0.0}, "softcap"),
        ({"embed_dim": 12, "num_heads": 4, "add_bias_kv": True, "mask": CAUSAL}, "add_bias_kv does not go with mask"),
        ({"embed_dim": 9, "num_heads": 3, "rope": ak.RopeConfig()}, "rope.dim must be even"),
    ):
        with pytest.raises(ValueError, match=words):
            TorchMultiHeadAttention(**arguments)
    with pytest.raises(ak.ShapeError, match="add_bias_kv, whose key has no position"):
        TorchMultiHeadAttention(12, 3, add_bias_kv=True)(X, X, X, is_causal=True)
    with pytest.raises(ak.ShapeError, match=r"T = 2 must be S = 1"):
        TorchMultiHeadAttention(12, 3, mask=CAUSAL)(X, X[:1], X[:1], is_causal=True)


def test_a_refused_call_leaves_a_cache_as_it_was():
    module = TorchMultiHeadAttention(12, 3, batch_first=True)
    cache = ak.make_cache(ak.KVCacheConfig(batch_size=2, num_kv_heads=3, head_dim=4), backend="torch")
    with pytest.raises(ak.UnsupportedError, match=r"under torch.no_grad\(\)"):
        module(X, X, X, cache=cache[0])
    with torch.no_grad():
        with pytest.raises(ak.ShapeError, match="is_causal, which counts from the first key"):
            module(X, X, X, is_causal=True, cache=cache[0])
        with pytest.raises(ak.ShapeError, match=r"\[T, S\] = \[5, 5\]"):
            module(X, X, X, attn_mask=torch.zeros(5, 4), cache=cache[0])
        with pytest.raises(ak.ShapeError, match="add_bias_kv"):
            TorchMultiHeadAttention(12, 3, add_bias_kv=True)(X, X, X, cache=cache[0])
    assert cache.stored.tolist() == [0, 0]
    module.requires_grad_(False)
    module(X, X, X, cache=cache[0])
    assert cache.stored.tolist() == [5, 5]
    assert np.isfinite(ak.get_backend("torch").to_numpy(cache[0].read()[0])).all()
