"""The pytest plug-in: ``--attnkit-backend NAME`` runs the suite on a backend, or on one path of it.

It imports nothing of attnkit, and changes nothing, until the option is given or a test of the suite is collected.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from attnkit_conformance.subject import Subject

_OPTION = "--attnkit-backend"
_MARK = "attnkit"
_KINDS = ("answered", "refused", "outside", "unchecked")
_SUBJECTS = pytest.StashKey[dict[str, "Subject"]]()

CHECKS = (
    "cache_equivalence",
    "cache_safety",
    "causality",
    "edges",
    "gradient_calls",
    "gradient_probes",
    "gradients",
    "merging",
    "numerics_checks",
    "probes",
    "refusals",
)
pytest.register_assert_rewrite(*(f"attnkit_conformance.{name}" for name in CHECKS))


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--attnkit-backend``."""
    parser.getgroup("attnkit", "attnkit conformance").addoption(
        _OPTION,
        action="append",
        default=[],
        metavar="NAME",
        help="backend to run the conformance suite on, NAME or NAME:PATH; may be given several times",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Add the mark of the suite's classes."""
    config.addinivalue_line("markers", f"{_MARK}: a check of attnkit's conformance suite")


def pytest_sessionstart(session: pytest.Session) -> None:
    """Find the backends that were asked for; one that is unknown or cannot run here is an error, never a skip."""
    names = dict.fromkeys(session.config.getoption(_OPTION))
    session.config.stash[_SUBJECTS] = {name: _subject(name) for name in names}


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Say what is under test, of which version, written for which contract."""
    subjects = config.stash.get(_SUBJECTS, {})
    if not subjects:
        return []
    import attnkit as ak

    sources = {info.name: info.source for info in ak.backends()}
    described = (
        f"{name} of {sources[subject.backend.name]}, contract {subject.backend.contract_version}"
        for name, subject in subjects.items()
    )
    return [f"attnkit conformance: {'; '.join(described)}"]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run each check on each backend that was asked for."""
    if metafunc.definition.get_closest_marker(_MARK) and "backend" in metafunc.fixturenames:
        subjects = metafunc.config.stash[_SUBJECTS]
        metafunc.parametrize("backend", list(subjects) or [""], indirect=True, scope="session")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Refuse to run the suite without a backend: a run that checks nothing must not look like one that passed."""
    checks = {item: None for item in items if item.get_closest_marker(_MARK)}
    if config.stash[_SUBJECTS] or not checks:
        return
    if not hasattr(config, "workerinput"):
        raise _no_backend()
    # A worker of pytest-xdist has no way to raise a usage error: one check stays, and fails with its message.
    first = next(iter(checks))
    items[:] = [item for item in items if item is first or item not in checks]


@pytest.fixture(scope="session")
def backend(request: pytest.FixtureRequest) -> Subject:
    """The backend under test."""
    if not request.param:
        raise _no_backend()
    return request.config.stash[_SUBJECTS][request.param]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
    """Note what came of a check in its report: answered, refused, outside a forced path, or unchecked."""
    if call.when == "call" and item.get_closest_marker(_MARK):
        subject: Subject = item.funcargs["backend"]  # type: ignore[attr-defined]  # a check is a function
        item.user_properties += [(_MARK, (subject.name, outcome)) for outcome in subject.outcomes.elements()]
        subject.outcomes.clear()
    return (yield)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail the run of a backend or path of which nothing was seen, whatever it was asked."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    kinds = {} if reporter is None else _kinds(_outcomes(reporter))
    unseen = [name for name, kind in kinds.items() if set(kind) <= {"outside", "unchecked"}]
    if session.exitstatus == pytest.ExitCode.OK and unseen:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Count what came of the checks: what was not answered does not go unsaid."""
    outcomes = _outcomes(terminalreporter)
    if outcomes:
        terminalreporter.section("attnkit conformance")
    for name, kinds in _kinds(outcomes).items():
        total = ", ".join(f"{kinds[kind]} {kind}" for kind in _KINDS if kinds[kind])
        terminalreporter.line(f"{name}: {'' if kinds['answered'] else 'nothing was answered; '}{total}")
        for outcome, count in outcomes[name].most_common():
            if outcome != "answered":
                terminalreporter.line(f"{count:7} {outcome}")


def _outcomes(terminalreporter: Any) -> dict[str, Counter[str]]:
    """Give how often each outcome came up, for each backend."""
    counts: dict[str, Counter[str]] = {}
    reports = [report for kind in ("passed", "failed") for report in terminalreporter.stats.get(kind, ())]
    for report in reports:
        for mark, found in report.user_properties if report.when == "call" else ():
            if mark == _MARK:
                name, outcome = found
                counts.setdefault(name, Counter())[outcome] += 1
    return counts


def _kinds(outcomes: dict[str, Counter[str]]) -> dict[str, Counter[str]]:
    """Sum outcomes up by their first word."""
    kinds: dict[str, Counter[str]] = {name: Counter() for name in outcomes}
    for name, counts in outcomes.items():
        for outcome, count in counts.items():
            kinds[name][outcome.partition(" ")[0]] += count
    return kinds


def _subject(name: str) -> Subject:
    import attnkit as ak
    from attnkit_conformance.subject import Subject

    plain, _, path = name.partition(":")
    try:
        backend = ak.get_backend(plain)
    except ak.AttnkitError as error:
        raise pytest.UsageError(f"{_OPTION} {name}: {error}; {_available()}") from error
    if path and path not in backend.paths:
        raise pytest.UsageError(f"{_OPTION} {name}: no such path; paths of {plain}: {', '.join(backend.paths)}")
    return Subject(name, backend)


def _no_backend() -> pytest.UsageError:
    return pytest.UsageError(f"the attnkit conformance suite needs {_OPTION} NAME; {_available()}")


def _available() -> str:
    import attnkit as ak

    return f"available: {', '.join(info.name for info in ak.backends() if info.available) or 'none'}"
