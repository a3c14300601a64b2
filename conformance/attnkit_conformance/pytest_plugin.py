"""The pytest plug-in: ``--attnkit-backend NAME`` runs the suite on a backend, or on one path of it.

It imports nothing of attnkit, and changes nothing, until the option is given or a test of the suite is collected.
Checks run in the process of pytest, which is good for debugging and is never a verdict.
"""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard, cast

import pytest

if TYPE_CHECKING:
    from attnkit_conformance.cases import Case
    from attnkit_conformance.items import Item
    from attnkit_conformance.measuring import Comparison
    from attnkit_conformance.results import Result
    from attnkit_conformance.subject import Subject
    from attnkit_conformance.tally import Tally

_OPTION = "--attnkit-backend"
_MARK = "attnkit"
_SUBJECTS = pytest.StashKey[dict[str, "Subject"]]()
_TALLIES = pytest.StashKey[dict[str, "Tally"]]()
_NOTES = pytest.StashKey[list["Comparison"]]()


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
    group.addoption(
        "--attnkit-level", type=int, choices=range(4), default=2, help="0 harness, 1 core, 2 declared, 3 quality"
    )
    group.addoption("--attnkit-seed", type=int, default=0, metavar="N", help="seed of the random numbers")
    group.addoption(
        "--attnkit-report", type=Path, metavar="DIR", help="write a report here, in a folder each for several backends"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Add the mark of the suite's classes."""
    config.addinivalue_line("markers", f"{_MARK}(requirement, level): a check of attnkit's conformance suite")


def pytest_sessionstart(session: pytest.Session) -> None:
    """Find the backends that were asked for; one that is unknown or cannot run here is an error, never a skip."""
    config = session.config
    subjects = {name: _subject(name) for name in dict.fromkeys(config.getoption(_OPTION))}
    config.stash[_SUBJECTS] = subjects
    config.stash[_TALLIES] = tallies = {name: _tally(config, subject) for name, subject in subjects.items()}
    if tallies and not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Watcher(config, tallies))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run each check on each backend that was asked for."""
    if not getattr(metafunc.cls, "is_attnkit_check", False):
        return
    from attnkit_conformance import suite
    from attnkit_conformance.items import items

    if metafunc.cls.__name__ not in suite.__all__:
        pytest.fail(f"{metafunc.cls.__name__}: the suite's classes run as they are, not as subclasses", pytrace=False)

    test = _check(metafunc.cls, metafunc.function.__name__)
    found = [item for item in items(seed=metafunc.config.option.attnkit_seed) if item.test == test]
    params = [pytest.param(item.case, id=str(item.case), marks=_mark(item)) for item in found]
    subjects = metafunc.config.stash[_SUBJECTS]
    metafunc.parametrize("backend", list(subjects) or [""], indirect=True, scope="session")
    metafunc.parametrize("case", params)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is above the level; refuse to run the suite without a backend.

    A run that checks nothing must not look like one that passed.
    """
    above = {item: None for item in items if _level_of(item) > config.option.attnkit_level}
    if above:
        config.hook.pytest_deselected(items=list(above))
        items[:] = [item for item in items if item not in above]
    checks = {item: None for item in items if _is_check(item)}
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
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Gather what a check compares; one that compares nothing has shown nothing, and fails."""
    __tracebackhide__ = True
    if not _is_check(item):
        return (yield)
    from attnkit_conformance.measuring import measuring
    from attnkit_conformance.tally import reject_emptiness

    with measuring() as notes:
        item.stash[_NOTES] = notes
        _backend_of(item).outcomes.clear()
        result = yield
    reject_emptiness(_backend_of(item), notes)
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
    """Put the result of a check into pytest's report of it, which travels from worker to controller."""
    if call.when == "call" and _is_check(item):
        result = _result(item, call)
        item.user_properties.append((_MARK, f"{_backend_of(item).name} {result.model_dump_json()}"))
    return (yield)


class _Watcher:
    """Gathers the results of a session, of all its workers, and says what came of it."""

    def __init__(self, config: pytest.Config, tallies: dict[str, Tally]) -> None:
        self._config, self._tallies = config, tallies
        self._folders: dict[str, Path] = {}

    def pytest_report_header(self) -> list[str]:
        """Say what is under test, of which version, written for which contract, and what this run is worth."""
        return [line for tally in self._tallies.values() for line in tally.title()]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take the result of a check."""
        from attnkit_conformance.results import Result

        for mark, found in report.user_properties if report.when == "call" else ():
            if mark == _MARK:
                name, result = str(found).split(" ", 1)
                self._tallies[name].add(Result.model_validate_json(result))

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Write reports; fail the run of a backend or path of which nothing was seen, whatever it was asked."""
        self._write_reports()
        unseen = [tally for tally in self._tallies.values() if tally.unseen]
        if session.exitstatus == pytest.ExitCode.OK and unseen:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Count what came of the checks."""
        seen = self._seen()
        if seen:
            terminalreporter.section("attnkit conformance")
        for name, tally in seen.items():
            for line in tally.lines():
                terminalreporter.line(line)
            if name in self._folders:
                terminalreporter.line(f"report: {self._folders[name]}")

    def _seen(self) -> dict[str, Tally]:
        return {name: tally for name, tally in self._tallies.items() if tally.results}

    def _write_reports(self) -> None:
        folder = self._config.option.attnkit_report
        if folder is None:
            return
        from attnkit_conformance.reports.files import write_report

        for name, tally in self._seen().items():
            self._folders[name] = folder / name.replace(":", "-") if len(self._tallies) > 1 else folder
            write_report(tally.report(), self._folders[name])


def _is_check(item: pytest.Item) -> TypeGuard[pytest.Function]:
    return isinstance(item, pytest.Function) and item.get_closest_marker(_MARK) is not None


def _backend_of(item: pytest.Function) -> Subject:
    return cast("Subject", item.funcargs["backend"])


def _result(item: pytest.Function, call: pytest.CallInfo[None]) -> Result:
    """Give what came of a check, as the runner of the command line gives it."""
    from attnkit_conformance.items import Item
    from attnkit_conformance.requirements import find
    from attnkit_conformance.tally import result_of

    error = None if call.excinfo is None else call.excinfo.value
    check, case = _check(item.cls, item.originalname), cast("Case", item.callspec.params["case"])
    of = Item(find(check, str(case)), check, case)
    notes = item.stash[_NOTES]
    return result_of(of, _backend_of(item), notes, error=error, seconds=call.duration)


def _check(kind: type, name: str) -> str:
    """Give the name of a check as requirements spell it."""
    return f"{kind.__name__}::{name}"


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


def _tally(config: pytest.Config, subject: Subject) -> Tally:
    from attnkit_conformance.tally import Tally

    return Tally(subject, config.option.attnkit_level, config.option.attnkit_seed)


def _no_backend() -> pytest.UsageError:
    from attnkit_conformance.harness.targets import available

    return pytest.UsageError(f"the attnkit conformance suite needs {_OPTION} NAME; {available()}")
