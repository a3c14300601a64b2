"""Backends that misbehave, in a module that their processes can import."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from attnkit_conformance.harness.remote import RemoteHarness

ODD = '''
import ctypes, os, sys, threading, time
import numpy as np
import attnkit as ak
from attnkit_conformance.selftest.plain import Plain


class Odd(Plain):
    """Does what the scale says."""

    def attention(self, query, key, value, operands, request):
        getattr(self, {1: "printing", 2: "leaving", 3: "falling", 4: "hanging", 5: "writing", 6: "raising",
                       7: "exiting", 8: "silent", 9: "looping"}.get(int(request.scale), "silent"))()
        return super().attention(query, key, value, operands, request)

    def silent(self):
        pass

    def printing(self):
        print("printed", "by print")
        os.system("echo printed by a child")
        os.write(1, b"printed to the descriptor\\n")

    def leaving(self):
        print("about to leave")
        os._exit(3)

    def falling(self):
        ctypes.string_at(0)

    def hanging(self):
        time.sleep(600)

    def looping(self):
        os.system("sleep 600")

    def writing(self):
        for descriptor in range(3, 20):
            try:
                os.write(descriptor, b"{'result': 'all is well'}")
            except OSError:
                pass

    def raising(self):
        class OwnError(Exception):
            pass
        raise OwnError("as odd as can be")

    def exiting(self):
        sys.exit("enough")


def absent():
    raise ak.BackendUnavailableError("no such chip here; buy one")


def broken():
    raise RuntimeError("no driver")


def leaving():
    os._exit(5)


def environment():
    class Telling(Plain):
        contract_version = "1.0"
        name = " ".join(sorted(os.environ))
    return Telling()


class Mumbling(Plain):
    def capabilities(self):
        raise RuntimeError("what can I do?")


class Undecided(Plain):
    def capabilities(self):
        return ak.Capabilities(poison="perhaps")
'''
Open = Callable[..., RemoteHarness]


@pytest.fixture
def odd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a module of backends that misbehave."""
    (tmp_path / "odd_backends.py").write_text(ODD)
    monkeypatch.syspath_prepend(tmp_path)
    return "odd_backends"


@pytest.fixture
def remote() -> Iterator[Open]:
    """Open backends in processes of their own, which end with the test."""
    opened: list[RemoteHarness] = []

    def remote(*arguments: Any, **options: Any) -> RemoteHarness:
        opened.append(RemoteHarness(*arguments, **options))
        return opened[-1]

    yield remote
    for harness in opened:
        harness.close()
