"""The one hook that a plug-in implements.

A plug-in is a module named by an entry point of the group ``attnkit``::

    # pyproject.toml: [project.entry-points.attnkit]  mine = "attnkit_mine.plugin"
    @attnkit.hookimpl
    def attnkit_register_backends():
        return attnkit.BackendSpec(name="mine", load=...)
"""

from __future__ import annotations

from collections.abc import Sequence

import pluggy

from attnkit.backend import BackendSpec

PROJECT = "attnkit"
hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


@hookspec
def attnkit_register_backends() -> BackendSpec | Sequence[BackendSpec]:  # type: ignore[empty-body]  # a specification
    """Give the backends of the plug-in: one spec, or several."""
