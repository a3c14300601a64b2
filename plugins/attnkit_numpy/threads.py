"""Threads: the blocks of a call on a pool, while BLAS is held to one thread.

A BLAS of several threads under a pool of several threads is slow, and results would depend on how many it has. Its
limit is one number for the whole process, so calls that overlap must share one change of it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from functools import lru_cache
from threading import Lock, local
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
from threadpoolctl import ThreadpoolController

Task = TypeVar("Task")


class ProcessLimit:
    """Hold the BLAS whose limit is one for the process; the last to leave restores what the first found."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._users = 0
        self._found: list[int] = []

    def __enter__(self) -> list[int]:
        """Give how many threads each library may use outside."""
        with self._lock:
            if not self._users:
                self._found = _hold(_libraries().process)
            self._users += 1
            return self._found

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._users -= 1
            if not self._users:
                _set_threads(_libraries().process, self._found)

    def abandon(self) -> None:
        """Restore what was found although users are left, who will never leave: they are in the parent process."""
        if self._users:
            _set_threads(_libraries().process, self._found)


class ThreadLimit(local):
    """Hold the BLAS whose limit is each thread's own, as OpenMP's is; may be entered again inside."""

    def __init__(self) -> None:
        self._found: list[list[int]] = []

    def __enter__(self) -> list[int]:
        """Give how many threads each library may use outside."""
        self._found.append(_hold(_libraries().thread))
        return self._found[-1]

    def __exit__(self, *_: object) -> None:
        _set_threads(_libraries().thread, self._found.pop())


_PROCESS, _THREAD = ProcessLimit(), ThreadLimit()


@contextmanager
def single_threaded() -> Iterator[int]:
    """Hold BLAS to one thread in the calling thread; gives how many it may use outside."""
    with _PROCESS as process, _THREAD as thread:
        yield max([*process, *thread], default=_cores())


# Multiplications in the scores from which on helpers save more time than they cost: about 0.3 ms in one thread.
SHARED = 4_000_000


def share(work: Callable[[Task], object], tasks: Iterator[Task], products: int) -> None:
    """Do ``work`` on every task, in the calling thread and in as many helpers as BLAS may use threads.

    Each task is handed out once, in order, to whoever is free; ``tasks`` may be a generator. A helper that comes late
    finds nothing left, so a busy machine costs no more than one thread would take. ``products`` is the size of all
    tasks together, in multiplications; small work gets no helpers.
    """
    with single_threaded() as threads:
        feed = _Feed(work, tasks)
        count = min(threads, _cores(), products // (SHARED // 2))
        helpers = _helpers(feed.drain, count - 1)
        try:
            feed.drain()
        finally:
            feed.stop()
            wait([helper for helper in helpers if not helper.cancel()])
    for helper in helpers:
        if not helper.cancelled():
            helper.result()


def _helpers(work: Callable[[], None], count: int) -> list[Future[None]]:
    """Start helpers; none where no thread can be started, as when the interpreter shuts down."""
    helpers: list[Future[None]] = []
    with suppress(RuntimeError):
        for _ in range(count):
            helpers.append(_pool().submit(work))
    return helpers


class _Feed(Generic[Task]):
    """One iterator for several threads."""

    def __init__(self, work: Callable[[Task], object], tasks: Iterator[Task]) -> None:
        self._work = work
        self._tasks = tasks
        self._lock = Lock()
        self._open = True

    def drain(self) -> None:
        """Work until nothing is left."""
        with _THREAD, np.errstate(all="ignore"):  # both are each thread's own
            for task in iter(self._next, None):
                self._work(task)

    def stop(self) -> None:
        """Hand out no more."""
        with self._lock:
            self._open = False

    def _next(self) -> Task | None:
        with self._lock:
            return next(self._tasks, None) if self._open else None


class _Libraries(NamedTuple):
    """Controllers of BLAS libraries, by whether their limit is one for the process or each thread's own."""

    process: tuple[Any, ...]
    thread: tuple[Any, ...]


@lru_cache(maxsize=1)
def _libraries() -> _Libraries:
    """Find NumPy's BLAS: the one in its wheel, or all that are loaded where there is none."""
    every = ThreadpoolController().select(user_api="blas").lib_controllers
    used = [library for library in every if os.sep + "numpy" in library.filepath] or every
    own = [library for library in used if getattr(library, "threading_layer", "") == "openmp"]
    return _Libraries(tuple(library for library in used if library not in own), tuple(own))


def _hold(libraries: tuple[Any, ...]) -> list[int]:
    found = [library.num_threads for library in libraries]
    _set_threads(libraries, [1] * len(found))
    return found


def _set_threads(libraries: tuple[Any, ...], numbers: list[int]) -> None:
    for library, number in zip(libraries, numbers, strict=True):
        _release(library)
        library.set_num_threads(number)
        _release(library)


def _release(library: Any) -> None:
    """Let any thread set the limit: since 3.8 threadpoolctl ignores, in silence, all but the first that did."""
    release = getattr(library, "clear_controlling_thread", None)
    if release is not None:
        release(force=True)


@lru_cache(maxsize=1)
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max_workers=_cores(), thread_name_prefix="attnkit-numpy")


@lru_cache(maxsize=1)
def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _after_fork() -> None:
    """Forget the pool and the users of the limit, whose threads do not survive a fork; undo what they held."""
    global _PROCESS
    _pool.cache_clear()
    inherited, _PROCESS = _PROCESS, ProcessLimit()
    inherited.abandon()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
