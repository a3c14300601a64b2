"""``AttnkitCache`` holds what transformers' own caches hold, whoever owns the bytes."""

# ruff: noqa: E402  # imports follow the skip of those who lack the packages

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="pip install 'attnkit[torch]'")
transformers = pytest.importorskip("transformers", reason="pip install 'attnkit[transformers]'")

from transformers import DynamicCache, EncoderDecoderCache

import attnkit as ak
from attnkit.integrations.transformers import AttnkitCache, AttnkitLayer

OWNERS = pytest.mark.parametrize("owner", ["torch", "numpy"])
DECODERS = ["llama", "mistral", "gemma2", "gemma3", "qwen3", "gpt_oss", "deepseek_v3", "llama4", "gpt2"]
IDS = torch.tensor([[0, 0, 5, 9, 11, 23, 4], [3, 7, 8, 50, 61, 99, 4]])
KEPT = (IDS > 0).long()


def tokens(count: int, *, batch: int = 2, dtype=torch.float32):
    torch.manual_seed(count)
    return torch.randn(batch, 2, count, 8).to(dtype), torch.randn(batch, 2, count, 4).to(dtype)


@pytest.fixture
def both():
    """Give an ``AttnkitCache`` and a ``DynamicCache`` that do the same, and a check that they hold the same."""

    def make(owner: str, **options):
        return Both(AttnkitCache(backend=owner, **options), DynamicCache())

    return make


class Both:
    def __init__(self, own: AttnkitCache, theirs: DynamicCache) -> None:
        self.own, self.theirs = own, theirs

    def update(self, key, value, layer: int = 0) -> None:
        for found, expected in zip(
            self.own.update(key, value, layer), self.theirs.update(key, value, layer), strict=True
        ):
            assert torch.equal(found, expected)

    def do(self, method: str, *arguments) -> None:
        getattr(self.own, method)(*arguments)
        getattr(self.theirs, method)(*arguments)
        self.check()

    def check(self) -> None:
        assert self.own.get_seq_length() == self.theirs.get_seq_length()
        assert self.own.get_mask_sizes(3, 0) == self.theirs.get_mask_sizes(3, 0)
        for found, expected in zip(self.own.layers, self.theirs.layers, strict=True):
            assert torch.equal(found.keys, expected.keys)
            assert torch.equal(found.values, expected.values)


@OWNERS
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_it_grows(both, owner, dtype) -> None:
    caches = both(owner)
    for count in (3, 1, 100, 0, 1):
        for layer in (0, 1):
            caches.update(*tokens(count, dtype=dtype), layer)
        caches.check()
    assert caches.own.nbytes == 2 * 2 * 2 * (8 + 4) * 128 * torch.empty((), dtype=dtype).element_size()
    assert caches.own.get_max_length() == -1


@OWNERS
def test_it_forgets(both, owner) -> None:
    caches = both(owner)
    caches.update(*tokens(6))
    caches.do("crop", -2)
    caches.do("crop", 0)
    caches.update(*tokens(3))
    caches.check()
    with pytest.raises(ak.ShapeError, match="negative"):
        caches.own.crop(3)
    caches.own.reset()
    assert caches.own.get_seq_length() == 0
    caches.own.update(*tokens(2, batch=5), 0)
    assert caches.own.batch_size == 5


@OWNERS
def test_sequences_change_places(both, owner) -> None:
    caches = both(owner)
    caches.update(*tokens(4, batch=3))
    caches.do("reorder_cache", torch.tensor([2, 0, 0]))
    caches.update(*tokens(1, batch=3))
    caches.do("batch_repeat_interleave", 2)
    caches.update(*tokens(2, batch=6))
    caches.do("batch_select_indices", torch.tensor([4, 1]))
    caches.update(*tokens(1, batch=2))
    caches.check()


@OWNERS
def test_sequences_that_stay_are_not_copied(both, owner) -> None:
    caches = both(owner, max_length=9)
    caches.update(*tokens(4, batch=3))
    storage, place = caches.own.layers[0].storage, caches.own.layers[0].keys.data_ptr()
    caches.do("batch_select_indices", torch.tensor([0, 1]))
    assert caches.own.layers[0].storage is storage
    assert caches.own.layers[0].keys.data_ptr() == place
    assert caches.own.batch_size == 2
    caches.update(*tokens(1))
    caches.check()


@OWNERS
def test_a_full_cache_stays_as_it_was(owner) -> None:
    cache = AttnkitCache(backend=owner, max_length=5)
    kept = [part.clone() for part in cache.update(*tokens(4), 0)]
    with pytest.raises(ak.CacheCapacityError, match="max_length = 5"):
        cache.update(*tokens(2), 0)
    assert cache.get_max_length() == 5
    assert all(map(torch.equal, (cache.layers[0].keys, cache.layers[0].values), kept))
    cache.update(*tokens(1), 0)


@OWNERS
def test_the_users_tensors_are_copied(owner) -> None:
    cache, (key, value) = AttnkitCache(backend=owner), tokens(3)
    found, _ = cache.update(key, value, 0)
    expected = key.clone()
    key.zero_()
    assert torch.equal(found, expected)


@OWNERS
def test_a_step_copies_only_the_new_token(owner) -> None:
    """What is handed out lies in the pages."""
    cache = AttnkitCache(backend=owner, max_length=8)
    first, _ = cache.update(*tokens(3), 0)
    second, _ = cache.update(*tokens(1), 0)
    assert first.data_ptr() == second.data_ptr()


@OWNERS
def test_gradients_into_the_cache_are_refused(owner) -> None:
    cache, (key, value) = AttnkitCache(backend=owner), tokens(3)
    with pytest.raises(ak.UnsupportedError, match="no_grad"):
        cache.update(key.requires_grad_(), value, 0)
    with torch.no_grad():
        cache.update(key, value, 0)
    assert cache.get_seq_length() == 3


@OWNERS
def test_it_is_filled_in_and_out_of_inference_mode(both, owner) -> None:
    caches = both(owner)
    with torch.inference_mode():
        caches.update(*tokens(3))
    caches.update(*tokens(80))
    with torch.inference_mode():
        caches.update(*tokens(80))
        caches.do("crop", -100)
    caches.update(*tokens(2))
    caches.check()


def test_an_unknown_owner_is_refused() -> None:
    with pytest.raises(ak.BackendNotFoundError):
        AttnkitLayer("nowhere").update(*tokens(1))


@OWNERS
@pytest.mark.parametrize("name", DECODERS)
def test_steps_of_models_are_those_of_their_own_cache(zoo, name, owner) -> None:
    """Windows are left to masks: the logits agree although transformers' cache drops keys, and this one does not."""
    model = zoo.model(name, "attnkit")
    own, theirs = AttnkitCache(backend=owner), DynamicCache(config=model.config)
    with torch.no_grad():
        for part, kept in ((IDS[:, :5], 5), (IDS[:, 5:6], 6), (IDS[:, 6:], 7), (IDS[:, :3], 10)):
            padding = torch.cat([KEPT, KEPT.new_ones(2, 3)], dim=1)[:, :kept]
            found, expected = (
                model(part, attention_mask=padding, cache=cache).logits.numpy() for cache in (own, theirs)
            )
            np.testing.assert_allclose(found[1], expected[1], rtol=0, atol=1e-5 * np.abs(expected).max())
            np.testing.assert_allclose(found[0, -1], expected[0, -1], rtol=0, atol=1e-5 * np.abs(expected).max())


@OWNERS
@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("name", ["mistral", "gpt_oss", "deepseek_v3"])
def test_generated_tokens_are_those_of_eager(zoo, name, beams, owner) -> None:
    settings = {"attention_mask": KEPT, "max_new_tokens": 8, "do_sample": False, "num_beams": beams, "pad_token_id": 0}
    expected = zoo.model(name, "eager").generate(IDS, **settings)
    attention = {"torch": "attnkit", "numpy": "attnkit_numpy"}[owner]
    found = zoo.model(name, attention).generate(IDS, **settings, cache=AttnkitCache(backend=owner))
    assert torch.equal(found, expected)


@OWNERS
def test_generation_goes_on_from_a_cache(zoo, owner) -> None:
    model, cache = zoo.model("llama", "attnkit"), AttnkitCache(backend=owner)
    settings = {"do_sample": False, "pad_token_id": 0, "eos_token_id": None}
    whole = model.generate(IDS[1:], max_new_tokens=6, **settings)
    part = model.generate(IDS[1:], max_new_tokens=3, cache=cache, **settings)
    assert torch.equal(model.generate(part, max_new_tokens=3, cache=cache, **settings), whole)


@OWNERS
@pytest.mark.parametrize("name", ["t5", "whisper"])
def test_encoder_and_decoder_have_a_cache_each(zoo, name, owner) -> None:
    inputs = {"inputs": IDS} if name == "t5" else {"input_features": torch.randn(2, 8, 20)}
    settings = {"max_new_tokens": 6, "do_sample": False}
    if name == "t5":
        settings["attention_mask"] = KEPT
    expected = zoo.model(name, "eager").generate(**inputs, **settings)
    cache = EncoderDecoderCache(AttnkitCache(backend=owner), AttnkitCache(backend=owner))
    found = zoo.model(name, "attnkit").generate(**inputs, **settings, cache=cache)
    assert torch.equal(found, expected)
    assert cache.self_attention_cache.nbytes > 0
    assert cache.cross_attention_cache.nbytes > 0


def test_drafted_tokens_are_taken_back(zoo) -> None:
    """Decoding with looked-up drafts crops the cache whenever a draft is wrong."""
    model = zoo.model("llama", "attnkit")
    prompt = IDS[1:].repeat(1, 3)
    settings = {"max_new_tokens": 8, "do_sample": False, "pad_token_id": 0}
    expected = model.generate(prompt, **settings)
    found = model.generate(prompt, **settings, prompt_lookup_num_tokens=3, cache=AttnkitCache())
    assert torch.equal(found, expected)
