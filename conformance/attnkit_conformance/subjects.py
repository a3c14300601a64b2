"""Subjects: where the subjects of a run come from. A backend that crashed or hung is started anew."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Self

import attnkit as ak
from attnkit_conformance.harness.local import Harness
from attnkit_conformance.harness.remote import RemoteHarness
from attnkit_conformance.harness.targets import open_target
from attnkit_conformance.subject import Subject


class Subjects:
    """Holds one subject at a time; a context manager, which ends its process.

    Parameters
    ----------
    target
        See ``harness.targets``; or a backend itself, which can only be asked in this process.
    isolated
        Each subject has a process of its own.
    device
        Where its arrays are to lie.
    numerics
        Element type -> what to hold it to in the place of what it declares, see ``Subject``.
    """

    def __init__(
        self,
        target: str | ak.Backend,
        *,
        isolated: bool = True,
        device: str = "",
        numerics: Mapping[str, str] | None = None,
    ) -> None:
        self.name = target if isinstance(target, str) else target.name
        self.isolated = isolated and isinstance(target, str)
        self._numerics = numerics
        self._make = _maker(target, isolated=isolated, device=device)
        self._subject: Subject | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def current(self) -> Subject:
        """Give the subject; another one if its process is there no more.

        Raises
        ------
        TargetError, BackendGone
            If it cannot be opened.
        """
        if self._subject is None or self._subject.harness.gone is not None:
            self._subject = Subject(self._make(), self._numerics)
        return self._subject

    def fresh(self) -> Subject:
        """Give a subject that has been asked nothing before; the last one is closed."""
        self.close()
        return self.current()

    def close(self) -> None:
        """End the process of the subject, if it has one."""
        if self._subject is not None:
            self._subject.harness.close()
            self._subject = None


def _maker(target: str | ak.Backend, *, isolated: bool, device: str) -> Callable[[], Harness]:
    if not isinstance(target, str):
        return lambda: Harness(target.name, target, target, device=device)
    if isolated:
        return lambda: RemoteHarness(target, device)
    return lambda: open_target(target, device)
