"""The real model writes the same text by the CUDA kernels as by NumPy."""

from __future__ import annotations

import pytest
from threadpoolctl import threadpool_limits

import attnkit as ak
from attnkit.models import generate, load_model

pytestmark = pytest.mark.model


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """Hold BLAS to one thread: the threads of several test workers would wait for each other at every product."""
    with threadpool_limits(1, user_api="blas"):
        yield


LAYOUTS = {"native": {}, "pages of int8": {"layout": "paged", "page_size": 4, "codec": "int8"}}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_greedy_text_is_that_of_numpy(layout) -> None:
    texts = {}
    for backend in ("numpy", "cuda-emulated"):
        model, tokenizer = load_model(backend=backend)
        ids = tokenizer.encode("The capital of France is")
        cache = model.make_cache(**LAYOUTS[layout])
        with ak.trace() as calls:
            texts[backend] = list(generate(model, tokenizer, ids, max_tokens=4, cache=cache))
        assert {call.backend for call in calls} == {backend}
    assert texts["cuda-emulated"] == texts["numpy"]
    assert "Paris" in tokenizer.decode(texts["numpy"])
