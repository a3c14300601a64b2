"""Commands of other packages: listed without being imported, loaded when named, and never in each other's way."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import EntryPoint, EntryPoints
from types import ModuleType

import pytest
import typer

import attnkit.cli.commands as commands

THEIRS = """
import typer


def greet():
    '''Say hello to someone.

    More that no listing needs.
    '''
    app = typer.Typer(add_completion=False)

    @app.command()
    def hello(name: str, loud: bool = False, fault: bool = False):
        typer.echo(f"hello {name}{'!' if loud else ''}")
        raise typer.Exit(1 if fault else 0)

    @app.command()
    def other():
        pass

    return app


def poor():
    '''Need what is not there.'''
    raise ImportError("paper is not installed; pip install 'theirs[paper]'")


def backends():
    '''Take the place of another.'''
"""


@pytest.fixture
def theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several packages with commands, some of them broken."""
    module = ModuleType("theirs")
    exec(THEIRS, module.__dict__)
    monkeypatch.setitem(sys.modules, "theirs", module)
    values = {"greet": "theirs:greet", "poor": "theirs:poor", "lost": "nowhere:app", "backends": "theirs:backends"}
    points = [EntryPoint(name, value, commands.GROUP) for name, value in values.items()]
    points += [EntryPoint("twice", f"theirs:{name}", commands.GROUP) for name in ("greet", "poor")]
    monkeypatch.setattr(commands, "entry_points", lambda group: EntryPoints(points).select(group=group))


def test_they_are_listed_after_our_own(attnkit, theirs) -> None:
    output = " ".join(attnkit("--help").output.replace("│", " ").split())
    assert output.index("cache") < output.index("greet Say hello to someone.") < output.index("poor Need")
    assert "More that" not in output
    assert "lost nowhere:app cannot be loaded: ModuleNotFoundError" in output
    assert "Take the place" not in output


def test_arguments_go_through(attnkit, theirs) -> None:
    result = attnkit("greet", "hello", "--loud", "you")
    assert (result.exit_code, result.output) == (0, "hello you!\n")
    assert attnkit("greet", "hello", "you", "--fault").exit_code == 1


def test_help_is_their_own(attnkit, theirs) -> None:
    output = attnkit("greet", "hello", "--help").output
    assert "attnkit greet hello" in output
    assert "--loud" in output


def test_wrong_use_of_theirs_is_wrong_use(attnkit, theirs) -> None:
    assert attnkit("greet", "hello", "--quiet", "you").exit_code == 2
    assert attnkit("greet", "goodbye").exit_code == 2


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("poor", ["theirs:poor cannot be loaded", "pip install 'theirs[paper]'"]),
        ("lost", ["nowhere:app cannot be loaded", "No module named 'nowhere'"]),
        ("twice", ["two packages", "theirs:greet, theirs:poor"]),
    ],
)
def test_a_broken_one_is_one_message(attnkit, theirs, name, words) -> None:
    result = attnkit(name, "anything", "--at-all")
    assert result.exit_code == 2
    assert "Traceback" not in result.stderr
    assert all(word in result.stderr for word in words)


def test_our_own_cannot_be_replaced(attnkit, theirs) -> None:
    assert any(line["name"] == "numpy" for line in json.loads(attnkit("backends", "--json").output))


def test_an_app_is_made_only_when_it_is_named(attnkit, theirs, monkeypatch) -> None:
    def make() -> typer.Typer:
        """Never."""
        raise AssertionError("made")

    monkeypatch.setattr(sys.modules["theirs"], "greet", make)
    assert "Never." in attnkit("--help").output
    assert attnkit("cache", "--help").exit_code == 0


def test_the_suite_is_listed_and_not_imported() -> None:
    program = (
        "import contextlib, sys; from attnkit.cli import main; sys.argv[1:] = ['--help']\n"
        "with contextlib.suppress(SystemExit): main()\n"
        "print(sorted(name for name in sys.modules if name.startswith('attnkit_conformance')))"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, check=True)
    listing, loaded = done.stdout.rstrip().rsplit("\n", 1)
    assert "conform     Hold a backend to the contract" in listing
    assert "crosscheck  Put the same requests to two implementations" in listing
    assert loaded == "['attnkit_conformance', 'attnkit_conformance.cli', 'attnkit_conformance.cli.entry']"
