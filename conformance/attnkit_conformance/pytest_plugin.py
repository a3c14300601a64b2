"""The pytest plug-in: ``--attnkit-backend NAME`` runs the suite on a backend, or on one path of it.

It imports nothing of attnkit, and changes nothing, until the option is given or a test of the suite is collected.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from attnkit_conformance.items import Item
    from attnkit_conformance.subject import Subject

_OPTION = "--attnkit-backend"
_LEVEL = "--attnkit-level"
_SEED = "--attnkit-seed"
_MARK = "attnkit"
_KINDS = ("answered", "refused", "outside", "unchecked")
_SUBJECTS = pytest.StashKey[dict[str, "Subject"]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options."""
    group = parser.getgroup("attnkit", "attnkit conformance")
    group.addoption(
        _OPTION,
        action="append",
        default=[],
        metavar="TARGET",
        help="backend to run the conformance suite on: NAME, NAME:PATH or module:factory; may be given several times",
    )
    group.addoption(_LEVEL, type=int, choices=range(4), default=2, help="0 harness, 1 core, 2 declared, 3 quality")
    group.addoption(_SEED, type=int, default=0, help="seed of the random numbers")


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
    described = (
        f"{name} of {subject.description.source}, contract {subject.description.contract_version}"
        for name, subject in subjects.items()
    )
    return [f"attnkit conformance: {'; '.join(described)}"]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run each check on each backend that was asked for."""
    if not getattr(metafunc.cls, "is_attnkit_check", False):
        return
    from attnkit_conformance.items import items

    test = f"{metafunc.cls.__name__}::{metafunc.function.__name__}"
    found = [item for item in items(seed=metafunc.config.option.attnkit_seed) if item.test == test]
    params = [pytest.param(item.case, id=str(item.case), marks=_mark(item)) for item in found]
    metafunc.parametrize("backend", list(metafunc.config.stash[_SUBJECTS]) or [""], indirect=True, scope="session")
    metafunc.parametrize("case", params)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is above the level; refuse to run the suite without a backend.

    A run that checks nothing must not look like one that passed.
    """
    above = {item: None for item in items if _level_of(item) > config.option.attnkit_level}
    if above:
        config.hook.pytest_deselected(items=list(above))
        items[:] = [item for item in items if item not in above]
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


def _mark(item: Item) -> pytest.MarkDecorator:
    """Give the mark of an item; ``-m attnkit`` finds it, and its arguments say what it is about."""
    decorator: pytest.MarkDecorator = getattr(pytest.mark, _MARK)(item.requirement.id, level=item.requirement.level)
    return decorator


def _level_of(item: pytest.Item) -> int:
    mark = item.get_closest_marker(_MARK)
    return 0 if mark is None else int(mark.kwargs["level"])


def _subject(target: str) -> Subject:
    from attnkit_conformance.harness.targets import TargetError, open_target
    from attnkit_conformance.subject import Subject

    try:
        return Subject(open_target(target))
    except TargetError as error:
        raise pytest.UsageError(f"{_OPTION} {error}") from error


def _no_backend() -> pytest.UsageError:
    from attnkit_conformance.harness.targets import available

    return pytest.UsageError(f"the attnkit conformance suite needs {_OPTION} NAME; {available()}")
