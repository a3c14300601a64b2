"""The one limit on BLAS threads, and work shared by threads."""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

import attnkit as ak
from attnkit_numpy import threads
from attnkit_numpy.threads import share, single_threaded

LARGE = 10**9


def blas() -> list[dict[str, Any]]:
    """Give the libraries that NumPy may compute with; others, loaded later, come with other packages."""
    own = {library.filepath for kind in threads._libraries() for library in kind}
    return [library for library in threadpool_info() if library["filepath"] in own]


def attend(_: object = None) -> Any:
    x = np.random.default_rng(0).standard_normal((1, 4, 300, 32)).astype(np.float32)
    return ak.attention(x, x, x, backend="numpy:tiled")


def test_limit_is_back_after_callers_that_overlap() -> None:
    before = blas()
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(attend, range(24)))
    assert blas() == before


def test_limit_stays_until_the_last_one_leaves() -> None:
    with threadpool_limits(2, user_api="blas"):
        before = blas()
        inside, leave, left = threading.Event(), threading.Event(), threading.Event()

        def hold() -> None:
            with single_threaded():
                inside.set()
                leave.wait(10)
            left.set()

        thread = threading.Thread(target=hold)
        with single_threaded() as first:
            thread.start()
            assert inside.wait(10)
        assert first == 2
        assert [library["num_threads"] for library in blas()] == [1] * len(before)
        with single_threaded() as second:
            assert second == 2
        leave.set()
        assert left.wait(10)
        thread.join()
        assert blas() == before


def test_limit_is_back_after_an_exception() -> None:
    before = blas()

    def fail(task: int) -> None:
        if task == 3:
            raise ValueError("task 3")

    with pytest.raises(ValueError, match="task 3"):
        share(fail, iter(range(100)), products=LARGE)
    assert blas() == before
    attend()
    assert blas() == before


def test_exception_of_a_helper_reaches_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    caller, met = threading.get_ident(), threading.Event()
    monkeypatch.setattr(threads, "_cores", lambda: 2)

    def work(_: int) -> None:
        if threading.get_ident() != caller:
            met.set()
            raise ValueError("helper")
        met.wait(10)

    with threadpool_limits(2, user_api="blas"), pytest.raises(ValueError, match="helper"):
        share(work, iter(range(4)), products=LARGE)


def test_every_task_is_done_once_even_from_a_generator() -> None:
    done: list[int] = []

    def tasks() -> Iterator[int]:
        yield from range(200)

    share(done.append, tasks(), products=LARGE)
    assert sorted(done) == list(range(200))


def test_no_warning_leaves_a_helper() -> None:
    x = np.full((1, 6, 300, 8), 1e30, np.float32)
    assert np.isnan(ak.attention(x, x, x, backend="numpy:tiled")).all()


def _child(results: Any) -> None:
    results.put(hash(attend().tobytes()))


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="this system cannot fork")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.filterwarnings(r"ignore:os\.fork\(\) was called:RuntimeWarning")  # by JAX, where another test imported it
def test_a_forked_child_has_a_pool_of_its_own() -> None:
    expected = hash(attend().tobytes())
    context = multiprocessing.get_context("fork")
    results = context.SimpleQueue()
    child = context.Process(target=_child, args=(results,))
    child.start()
    child.join(60)
    assert child.exitcode == 0
    assert results.get() == expected
