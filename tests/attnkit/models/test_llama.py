from __future__ import annotations

import numpy as np
import pytest

import attnkit as ak
from attnkit.models import GGUFFile, Llama, Weights, gguf_weights, load_model

IDS = [5, 17, 200, 3, 3, 90, 41, 8, 77, 120, 6]


@pytest.fixture(params=[{}, {"tie_embeddings": False}, {"num_kv_heads": 4}, {"num_kv_heads": 1, "head_dim": 32}])
def case(request, lab):
    config = lab.config(**request.param)
    arrays = lab.arrays(config)
    return config, arrays, lab.plain_logits(config, arrays, IDS)


def test_logits_equal_those_of_a_plain_decoder(case):
    config, arrays, expected = case
    model = Llama(config, Weights.from_arrays(arrays), backend="numpy", dtype="float64")
    np.testing.assert_allclose(model.forward(IDS, all_logits=True), expected, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(model.forward(IDS), expected[-1:], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("chunks", [[11], [1] * 11, [4, 7], [10, 1]])
def test_a_cache_and_chunks_change_nothing(case, chunks):
    config, arrays, expected = case
    model = Llama(config, Weights.from_arrays(arrays), backend="numpy", dtype="float64")
    cache = model.make_cache()
    start, found = 0, []
    for size in chunks:
        found.append(model.forward(IDS[start : start + size], cache, all_logits=True))
        start += size
    assert cache.next_position.tolist() == [len(IDS)]
    np.testing.assert_allclose(np.concatenate(found), expected, rtol=1e-9, atol=1e-9)


def test_float32_is_as_exact_as_float32_is(case):
    config, arrays, expected = case
    logits = Llama(config, Weights.from_arrays(arrays), backend="numpy").forward(IDS, all_logits=True)
    assert logits.dtype == np.float32
    np.testing.assert_allclose(logits, expected, atol=1e-5 * abs(expected).max())


@pytest.mark.parametrize(("dtype", "bound"), [("float16", 0.02), ("bfloat16", 0.15)])
def test_half_precision_is_computed_in_half_precision(lab, dtype, bound):
    config = lab.config()
    arrays = lab.arrays(config)
    model = Llama(config, Weights.from_arrays(arrays), backend="numpy", dtype=dtype)
    logits = model.forward(IDS, model.make_cache(), all_logits=True)
    expected = lab.plain_logits(config, arrays, IDS)
    assert logits.dtype.name == dtype
    np.testing.assert_allclose(logits.astype(np.float64), expected, atol=bound * abs(expected).max())


def test_sequences_of_a_batch_are_independent(lab):
    config = lab.config()
    model = Llama(config, Weights.from_arrays(lab.arrays(config)), backend="numpy", dtype="float64")
    rows = [IDS, IDS[::-1]]
    cache = model.make_cache(batch_size=2)
    model.forward([row[:4] for row in rows], cache)
    found = model.forward([row[4:] for row in rows], cache)
    assert found.shape == (2, 1, config.vocab_size)
    for row, logits in zip(rows, found, strict=True):
        np.testing.assert_allclose(logits, model.forward(row), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("backend", [info.name for info in ak.backends() if info.available])
def test_every_backend_that_runs_here_gives_the_same_logits(lab, backend):
    config = lab.config()
    arrays = lab.arrays(config)
    expected = lab.plain_logits(config, arrays, IDS)
    model = Llama(config, Weights.from_arrays(arrays), backend=backend)
    cache = model.make_cache()
    found = [model.to_numpy(model.forward(piece, cache, all_logits=True)) for piece in (IDS[:6], IDS[6:10], IDS[10:])]
    np.testing.assert_allclose(np.concatenate(found), expected, atol=1e-4 * abs(expected).max())
    whole = model.to_numpy(model.forward(IDS, all_logits=True))
    np.testing.assert_allclose(whole, expected, atol=1e-4 * abs(expected).max())


def test_every_layer_asks_attnkit_for_attention(lab):
    config = lab.config()
    model = Llama(config, Weights.from_arrays(lab.arrays(config)), backend="numpy")
    with ak.trace() as calls:
        model.forward(IDS)
        model.forward(IDS, model.make_cache())
    assert [call.backend for call in calls] == ["numpy"] * 2 * config.num_layers


def test_a_path_of_a_backend_may_be_forced(lab):
    config = lab.config()
    weights = Weights.from_arrays(lab.arrays(config))
    path = ak.get_backend("numpy").paths[0]
    model = Llama(config, weights, backend=f"numpy:{path}")
    with ak.trace() as calls:
        model.forward(IDS, model.make_cache())
    assert {call.path for call in calls} == {path}


def test_the_context_chooses_the_backend(lab):
    config = lab.config()
    with ak.use_backend("numpy"):
        assert Llama(config, Weights.from_arrays(lab.arrays(config))).backend is ak.get_backend("numpy")
    with pytest.raises(ak.BackendNotFoundError, match="nowhere"):
        Llama(config, Weights.from_arrays(lab.arrays(config)), backend="nowhere")


def test_gguf_rotation_order_is_undone(gguf_path, lab):
    config = lab.config()
    file = GGUFFile(gguf_path())
    model = Llama(config, gguf_weights(file, config), backend="numpy", dtype="float64")
    expected = lab.plain_logits(config, lab.arrays(config), IDS)
    np.testing.assert_allclose(model.forward(IDS, all_logits=True), expected, rtol=1e-9, atol=1e-9)


def test_a_directory_and_a_file_give_the_same_model(gguf_path, lab, tmp_path):
    config = lab.config()
    from_file, tokenizer = load_model(gguf_path(), backend="numpy")
    tokenizer._engine.save(str(tmp_path / "tokenizer.json"))
    lab.write_hf(tmp_path, config, lab.arrays(config))
    from_directory, _ = load_model(tmp_path, backend="numpy")
    np.testing.assert_allclose(from_directory.forward(IDS), from_file.forward(IDS), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("ids", "words"),
    [
        ([], "at least one token"),
        ([[[1]]], r"\[T\] or \[B, T\]"),
        ([0.5], "integers, got float64"),
        ([5, -1], "got -1"),
        ([5, 10**6], "got 1000000"),
        ([1] * 129, "position 129; the model's context is 128"),
    ],
)
def test_token_ids_that_do_not_fit_are_refused(lab, ids, words):
    config = lab.config()
    model = Llama(config, Weights.from_arrays(lab.arrays(config)), backend="numpy")
    with pytest.raises(ak.ShapeError, match=words):
        model.forward(ids)


def test_a_batch_that_does_not_fit_the_cache_is_refused(lab):
    config = lab.config()
    model = Llama(config, Weights.from_arrays(lab.arrays(config)), backend="numpy")
    with pytest.raises(ak.ShapeError, match="2 sequences"):
        model.forward([[1], [2]], model.make_cache())
    with pytest.raises(ak.DTypeError, match="int8"):
        Llama(config, Weights.from_arrays(lab.arrays(config)), backend="numpy", dtype="int8")
