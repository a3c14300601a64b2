"""Threads: the blocks of a call on a pool, while BLAS is held to one thread.

A BLAS of several threads under a pool of several threads is slow, and results would depend on how many it has. Its
limit is one number for the whole process, so calls that overlap must share one change of it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from functools import lru_cache
from threading import Lock
from typing import Any, Generic, TypeVar

import numpy as np
from threadpoolctl import ThreadpoolController

Task = TypeVar("Task")


class BlasLimit:
    """Hold BLAS to one thread while anyone is inside; the last to leave restores what the first found."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._users = 0
        self._found: list[int] = []

    def __enter__(self) -> int:
        """Give how many threads BLAS may use outside."""
        with self._lock:
            if not self._users:
                self._found = [library.num_threads for library in _libraries()]
                _set_threads([1] * len(self._found))
            self._users += 1
            return max(self._found, default=_cores())

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._users -= 1
            if not self._users:
                _set_threads(self._found)


BLAS = BlasLimit()


def share(work: Callable[[Task], object], tasks: Iterator[Task]) -> None:
    """Do ``work`` on every task, in the calling thread and in as many helpers as BLAS may use threads.

    Each task is handed out once, in order, to whoever is free; ``tasks`` may be a generator. A helper that comes late
    finds nothing left, so a busy machine costs no more than one thread would take.
    """
    with BLAS as threads:
        feed = _Feed(work, tasks)
        helpers = [_pool().submit(feed.drain) for _ in range(min(threads, _cores()) - 1)]
        try:
            feed.drain()
        finally:
            feed.stop()
            wait([helper for helper in helpers if not helper.cancel()])
    for helper in helpers:
        if not helper.cancelled():
            helper.result()


class _Feed(Generic[Task]):
    """One iterator for several threads."""

    def __init__(self, work: Callable[[Task], object], tasks: Iterator[Task]) -> None:
        self._work = work
        self._tasks = tasks
        self._lock = Lock()
        self._open = True

    def drain(self) -> None:
        """Work until nothing is left."""
        with np.errstate(all="ignore"):  # the state is each thread's own
            for task in iter(self._next, None):
                self._work(task)

    def stop(self) -> None:
        """Hand out no more."""
        with self._lock:
            self._open = False

    def _next(self) -> Task | None:
        with self._lock:
            return next(self._tasks, None) if self._open else None


def _set_threads(numbers: list[int]) -> None:
    for library, number in zip(_libraries(), numbers, strict=True):
        library.set_num_threads(number)


@lru_cache(maxsize=1)
def _libraries() -> tuple[Any, ...]:
    """Give the controllers of NumPy's BLAS: the one in its wheel, or all that are loaded where there is none."""
    every = ThreadpoolController().select(user_api="blas").lib_controllers
    own = [library for library in every if os.sep + "numpy" in library.filepath]
    return tuple(own or every)


@lru_cache(maxsize=1)
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max_workers=_cores(), thread_name_prefix="attnkit-numpy")


@lru_cache(maxsize=1)
def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _after_fork() -> None:
    """Forget the pool, whose threads do not survive a fork, and the users that the parent had."""
    global BLAS
    _pool.cache_clear()
    BLAS = BlasLimit()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
