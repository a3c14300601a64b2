"""The suite's items as plain calls, so that hundreds of backends can be judged in one process."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache

from attnkit_conformance import suite
from attnkit_conformance.items import Item, items
from attnkit_conformance.subject import Subject

CLASSES = tuple(suite.__all__)


@cache
def items_of(name: str, *, seed: int = 0) -> tuple[Item, ...]:
    """Give the items of ``Class`` or ``Class::test``."""
    return tuple(item for item in items(seed=seed) if name in (item.test, item.test.partition("::")[0]))


def failures(subject: Subject, chosen: str | Iterable[Item]) -> Iterator[tuple[Item, Exception]]:
    """Run items, or those of ``Class`` or ``Class::test``, and give those that fail, each with its error."""
    for item in items_of(chosen) if isinstance(chosen, str) else chosen:
        error = failure(subject, item)
        if error is not None:
            yield item, error


def failure(subject: Subject, item: Item) -> Exception | None:
    """Run one item; give the error with which it fails, if it does."""
    try:
        item.run(subject)
    except Exception as error:  # a backend may raise anything
        return error
    return None
