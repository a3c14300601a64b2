"""Registry: which backends there are, where each comes from, and why one cannot run here.

Entry points are loaded one by one, so that a plug-in that fails to import, or two of one name, never hide the others.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Any

import pluggy

from attnkit import hookspecs
from attnkit.backend import Backend, BackendSpec
from attnkit.capabilities import CONTRACT_VERSION, Capabilities
from attnkit.errors import BackendNotFoundError, BackendUnavailableError, PluginError

GROUP = "attnkit"


@dataclass(frozen=True, slots=True)
class BackendInfo:
    """One line of ``attnkit.backends()``.

    Attributes
    ----------
    name
        What ``backend=`` takes.
    source
        The plug-in it comes from: distribution and version, or the name given to ``register``.
    available
        Whether it can run here.
    reason
        Why not, or an empty string.
    install_hint
        The command that mends it.
    summary
        One sentence.
    owns
        ``(array type, device kind)`` pairs.
    paths
        Names of its paths, as far as its spec tells them.
    """

    name: str
    source: str
    available: bool
    reason: str = ""
    install_hint: str = ""
    summary: str = ""
    owns: tuple[tuple[str, str], ...] = ()
    paths: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Entry:
    source: str
    spec: BackendSpec


class Registry:
    """The backends of one process; ``attnkit.register`` and friends work on the shared one."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._entries: dict[str, list[_Entry]] = {}
        self._broken: list[BackendInfo] = []
        self._loaded: dict[str, Backend] = {}
        self._discovered = False
        self.generation = 0

    def discover(self) -> None:
        """Load every entry point of the group, once; a broken one is noted and passed over."""
        with self._lock:
            if self._discovered:
                return
            points = sorted(entry_points(group=GROUP), key=lambda point: point.name)
            self._discovered = True  # now, for a plug-in may ask for the backends while it is loaded
            try:
                for point in points:
                    self._discover_one(point)
            except BaseException:  # interrupted: the next call starts again
                self._discovered = False
                self._entries.clear()
                self._broken.clear()
                raise

    def register(self, plugin: object, name: str | None = None) -> None:
        """Add a plug-in by hand: a module or object with ``attnkit_register_backends``, or a ``BackendSpec``.

        Raises
        ------
        PluginError
            If it is broken, gives no backend, or one whose name is taken; nothing is registered then.
        """
        self.discover()
        source = name or str(getattr(plugin, "__name__", type(plugin).__name__))
        specs = [plugin] if isinstance(plugin, BackendSpec) else _specs(plugin, source)
        with self._lock:
            self._add(specs, source, refuse_taken=True)
            self.generation += 1

    def unregister(self, name: str) -> None:
        """Take a backend out again.

        Raises
        ------
        BackendNotFoundError
            If there is none of that name.
        """
        self.discover()
        with self._lock:
            self._one(name)
            del self._entries[name]
            self._loaded.pop(name, None)
            self.generation += 1

    def names(self) -> list[str]:
        """Give the names of all backends, sorted."""
        self.discover()
        return sorted(self._entries)

    def spec(self, name: str) -> BackendSpec:
        """Give the spec of a backend.

        Raises
        ------
        BackendNotFoundError
            If there is none of that name.
        PluginError
            If two plug-ins claim it.
        """
        self.discover()
        return self._one(name).spec

    def infos(self) -> list[BackendInfo]:
        """Give a line for every backend and for every plug-in that could not be loaded."""
        self.discover()
        lines = [self._info(name, entries) for name, entries in self._entries.items()]
        return sorted([*lines, *self._broken], key=lambda line: line.name)

    def load(self, name: str) -> Backend:
        """Give a backend, imported at its first use.

        Raises
        ------
        BackendNotFoundError
            If there is none of that name.
        BackendUnavailableError
            If it cannot run here.
        PluginError
            If it is broken, ambiguous, or written for another major version of the contract.
        """
        backend = self._loaded.get(name)
        if backend is not None:
            return backend
        entry = self._entry(name)
        with self._lock:
            if name not in self._loaded:
                self._loaded[name] = _load(entry)
            return self._loaded[name]

    def _discover_one(self, point: EntryPoint) -> None:
        source = _source(point)
        try:
            self._add(_specs(point.load(), source), source)
        except (Exception, SystemExit) as error:  # whatever a plug-in does must not hide the others
            self._broken.append(BackendInfo(point.name, source, False, f"{type(error).__name__}: {error}"))

    def _entry(self, name: str) -> _Entry:
        self.discover()
        return self._one(name)

    def _one(self, name: str) -> _Entry:
        entries = self._entries.get(name, [])
        if len(entries) > 1:
            raise PluginError(_clash(name, entries))
        if entries:
            return entries[0]
        broken = [f"of {info.source} failed to load: {info.reason}" for info in self._broken if info.name == name]
        if broken:
            raise BackendUnavailableError(f"backend {name!r} {'; '.join(broken)}")
        raise BackendNotFoundError(f"no backend named {name!r}; available: {', '.join(self.names()) or 'none'}")

    def _info(self, name: str, entries: Sequence[_Entry]) -> BackendInfo:
        spec = entries[0].spec
        source = ", ".join(entry.source for entry in entries)
        reason = _clash(name, entries) if len(entries) > 1 else unavailable(spec)
        return BackendInfo(
            name, source, not reason, reason or "", spec.install_hint, spec.summary, spec.owns, spec.paths
        )

    def _add(self, specs: Sequence[BackendSpec], source: str, refuse_taken: bool = False) -> None:
        fresh: dict[str, list[_Entry]] = {}
        for spec in specs:
            _check_spec(spec, source)
            fresh.setdefault(spec.name, []).append(_Entry(source, spec))
        for name, entries in fresh.items():
            claims = [*self._entries.get(name, []), *entries]
            if refuse_taken and len(claims) > 1:
                raise PluginError(_clash(name, claims))
        for name, entries in fresh.items():
            self._entries.setdefault(name, []).extend(entries)


def _specs(plugin: object, source: str) -> list[BackendSpec]:
    """Call the hook of one plug-in, with a manager of its own: a plug-in that raises would stop the calls of all."""
    try:
        manager = pluggy.PluginManager(hookspecs.PROJECT)
        manager.add_hookspecs(hookspecs)
        manager.register(plugin, source)
        specs = _flatten(manager.hook.attnkit_register_backends())
    except Exception as error:
        raise PluginError(f"plug-in {source} is broken: {type(error).__name__}: {error}") from error
    if not specs:
        raise PluginError(
            f"plug-in {source} gives no backend; implement attnkit_register_backends with attnkit.hookimpl"
        )
    return specs


def unavailable(spec: BackendSpec) -> str | None:
    """Give the reason why a backend cannot run here, or ``None``; a check that raises is a reason too."""
    try:
        reason: object = spec.available()
    except (Exception, SystemExit) as error:
        return f"its availability check failed: {type(error).__name__}: {error}"
    if reason is None or isinstance(reason, str):
        return reason
    return f"its availability check must give a text or None, got {reason!r}"


def _load(entry: _Entry) -> Backend:
    spec = entry.spec
    hint = f"; {spec.install_hint}" if spec.install_hint else ""
    reason = unavailable(spec)
    if reason:
        raise BackendUnavailableError(f"backend {spec.name!r} cannot run here: {reason}{hint}")
    try:
        backend = spec.load()
    except ImportError as error:
        raise BackendUnavailableError(f"backend {spec.name!r} failed to import: {error}{hint}") from error
    except (Exception, SystemExit) as error:
        raise PluginError(
            f"backend {spec.name!r} of {entry.source} failed to load: {type(error).__name__}: {error}"
        ) from error
    if not isinstance(backend, Backend):
        raise PluginError(
            f"backend {spec.name!r} of {entry.source}: load() must give a Backend, got {type(backend).__name__}"
        )
    if getattr(backend, "name", None) != spec.name:
        raise PluginError(
            f"backend {spec.name!r} of {entry.source}: its name must be that of its spec, "
            f"got {getattr(backend, 'name', None)!r}"
        )
    _check_attributes(backend, entry)
    _check_version(backend, entry)
    _check_capabilities(backend, entry)
    return backend


def _check_attributes(backend: Backend, entry: _Entry) -> None:
    paths: object = backend.paths
    if not isinstance(paths, tuple) or not paths or not all(isinstance(path, str) and path for path in paths):
        raise PluginError(
            f"backend {entry.spec.name!r} of {entry.source}: paths must be a tuple of names, got {paths!r}"
        )
    if entry.spec.paths not in ((), paths):
        raise PluginError(
            f"backend {entry.spec.name!r} of {entry.source}: its paths must be those of its spec, "
            f"{entry.spec.paths!r}, got {paths!r}"
        )
    priority: object = backend.priority
    if isinstance(priority, bool) or not isinstance(priority, int):
        raise PluginError(f"backend {entry.spec.name!r} of {entry.source}: priority must be an int, got {priority!r}")


def _check_version(backend: Backend, entry: _Entry) -> None:
    major = str(backend.contract_version).partition(".")[0]
    if major != CONTRACT_VERSION.partition(".")[0]:
        raise PluginError(
            f"backend {entry.spec.name!r} of {entry.source} is written for contract {backend.contract_version}; "
            f"this attnkit speaks {CONTRACT_VERSION}: install versions of both that share the major number"
        )


def _check_capabilities(backend: Backend, entry: _Entry) -> None:
    try:
        declared: object = backend.capabilities()
    except Exception as error:
        declared = f"{type(error).__name__}: {error}"
    if not isinstance(declared, Capabilities):
        raise PluginError(
            f"backend {entry.spec.name!r} of {entry.source}: capabilities() must give Capabilities, got {declared!r}"
        )


def _check_spec(spec: object, source: str) -> None:
    if not isinstance(spec, BackendSpec):
        raise PluginError(
            f"plug-in {source}: attnkit_register_backends must give BackendSpec, got {type(spec).__name__}"
        )
    if not spec.name or spec.name != spec.name.lower() or set(spec.name) & set(":, "):
        raise PluginError(
            f"plug-in {source}: a backend's name is lower case without colon, comma or space, got {spec.name!r}"
        )
    if not isinstance(spec.owns, tuple | list) or not all(map(_is_claim, spec.owns)):
        raise PluginError(
            f"plug-in {source}: owns of backend {spec.name!r} must be a tuple of (array type, device kind) pairs, "
            f'such as (("numpy.ndarray", "cpu"),), got {spec.owns!r}'
        )


def _is_claim(claim: object) -> bool:
    return isinstance(claim, tuple | list) and len(claim) == 2 and all(isinstance(part, str) for part in claim)


def _flatten(results: Iterable[Any]) -> list[BackendSpec]:
    return [spec for result in results for spec in ([result] if isinstance(result, BackendSpec) else list(result))]


def _clash(name: str, entries: Sequence[_Entry]) -> str:
    sources = " and ".join(entry.source for entry in entries)
    return f"backend {name!r} is claimed by {sources}; uninstall one of them"


def _source(point: EntryPoint) -> str:
    return f"{point.dist.name} {point.dist.version} ({point.value})" if point.dist else point.value


registry = Registry()
