"""Reproduce: from an item that fails to a folder that shows it."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from attnkit_conformance.items import Item
from attnkit_conformance.repro.attempt import Bench
from attnkit_conformance.repro.folder import write
from attnkit_conformance.repro.searching import Search
from attnkit_conformance.subject import Subject

_SLOW: Final = 0.2
"""Seconds: a subject that takes longer to make is kept for several tries."""
_TIMES: Final = 8
"""How many times a program is tried, and a case must fail in a row where a fault shows only now and then."""


def reproduce(item: Item, make_subject: Callable[[], Subject], folder: Path, *, seconds: float = 10.0) -> Path | None:
    """Write the reproducer of an item that fails into ``folder / item.fingerprint``.

    Parameters
    ----------
    item
        The item.
    make_subject
        Gives the backend under test, as new as it can be had: a fault may lie in what a backend remembers, and one may
        crash. Its harness is closed after use.
    folder
        Where the folders of reproducers lie.
    seconds
        How long shrinking may go on; a try that has begun is not interrupted.

    Returns
    -------
    The folder, or ``None`` where the item does not fail again by itself, or where no call shows the fault.
    """
    started = time.perf_counter()
    subject = make_subject()
    slow = time.perf_counter() - started > _SLOW
    subject.harness.close()
    fresh = Bench(item, make_subject)
    benches = [Bench(item, make_subject, anew=False)] if slow else []
    for bench in (*benches, fresh, Bench(item, make_subject, times=_TIMES)):
        search = Search(bench, subject, seconds)
        try:
            found = search.found()
        finally:
            bench.close()
        share = 0.0 if found is None else search.how_often(found, fresh, times=1 if slow else _TIMES)
        if found is not None and (share == 1 or (share > 0 and bench.times > 1)):
            return write(folder, item, subject, found, share, *search.outcome(found, fresh))
    return None
