"""The pytest plug-in: ``--attnkit-backend NAME`` runs the suite on a backend, or on one path of it.

It does nothing, and imports nothing of attnkit, until the option is given or a test of the suite is collected.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from attnkit_conformance.subject import Subject

_MODULES = (
    "cache_equivalence",
    "cache_model",
    "cache_safety",
    "causality",
    "checking",
    "compare",
    "edges",
    "merging",
    "numerics_checks",
    "probes",
    "refusals",
    "subject",
)
_OPTION = "--attnkit-backend"
_SUBJECTS = pytest.StashKey[dict[str, "Subject"]]()
_PROPERTY = "attnkit"

pytest.register_assert_rewrite(*(f"attnkit_conformance.{name}" for name in _MODULES))


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
    """Find the backends that were asked for; one that is unknown or cannot run here is an error, never a skip."""
    config.addinivalue_line("markers", "attnkit: a check of attnkit's conformance suite")
    names = list(dict.fromkeys(config.getoption(_OPTION)))
    config.stash[_SUBJECTS] = {name: _subject(name) for name in names}


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Say what is under test, of which version, written for which contract."""
    subjects = config.stash[_SUBJECTS]
    if not subjects:
        return []
    import attnkit as ak

    sources = {info.name: info.source for info in ak.backends()}
    described = (
        f"{name} of {sources[name.partition(':')[0]]}, contract {subject.backend.contract_version}"
        for name, subject in subjects.items()
    )
    return [f"attnkit conformance: {'; '.join(described)}"]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run each check on each backend."""
    if metafunc.definition.get_closest_marker("attnkit") and "backend" in metafunc.fixturenames:
        names = list(metafunc.config.stash[_SUBJECTS])
        metafunc.parametrize("backend", names or [_OPTION], indirect=True, scope="session")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Refuse to collect the suite without a backend: a run that checks nothing must not look like one that passed."""
    if not config.stash[_SUBJECTS] and any(item.get_closest_marker("attnkit") for item in items):
        raise pytest.UsageError(f"the attnkit conformance suite needs {_OPTION} NAME; {_available()}")


@pytest.fixture(scope="session")
def backend(request: pytest.FixtureRequest) -> Subject:
    """The backend under test."""
    return request.config.stash[_SUBJECTS][request.param]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Note what came of a check in its report: answered, refused, or outside a forced path."""
    subject = getattr(item, "funcargs", {}).get("backend")
    if call.when == "call" and item.get_closest_marker("attnkit") and subject is not None:
        item.user_properties += [(_PROPERTY, (subject.name, outcome)) for outcome in subject.outcomes.elements()]
        subject.outcomes.clear()
    return (yield)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Count what came of the checks: nothing that was not answered goes unsaid."""
    counts = _counts(terminalreporter)
    if counts:
        terminalreporter.section("attnkit conformance")
    for name, outcomes in sorted(counts.items()):
        kinds = Counter[str]()
        for outcome, count in outcomes.items():
            kinds[outcome.partition(" ")[0]] += count
        total = ", ".join(f"{kinds[kind]} {kind}" for kind in ("answered", "refused", "outside") if kinds[kind])
        terminalreporter.line(f"{name}: {total}")
        for outcome, count in outcomes.most_common():
            if outcome != "answered":
                terminalreporter.line(f"  {count:5} {outcome}")


def _counts(terminalreporter: Any) -> dict[str, Counter[str]]:
    counts: dict[str, Counter[str]] = {}
    for reports in terminalreporter.stats.values():
        for report in reports:
            for key, found in getattr(report, "user_properties", ()):
                if key == _PROPERTY and report.when == "call":
                    name, outcome = found
                    counts.setdefault(name, Counter())[outcome] += 1
    return counts


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


def _available() -> str:
    import attnkit as ak

    return f"available: {', '.join(info.name for info in ak.backends() if info.available) or 'none'}"
