"""Process: a program that is asked over a pair of pipes, never waited for without a limit, and gone when told so."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from queue import SimpleQueue
from threading import Thread
from typing import Any, BinaryIO, cast

from attnkit_conformance.harness import wire

_HIDDEN = ("ATTNKIT_", "PYTEST_")
_LINES = 20
_LONGEST = 1000
_GRACE = 5.0


class Process:
    """A program that answers messages, see ``wire``.

    Parameters
    ----------
    command
        The program and its arguments.
    refer
        Makes what stands for the number of a thing in its answers.
    """

    def __init__(self, command: Sequence[str], refer: wire.Refer) -> None:
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=_environment(),
            start_new_session=True,  # Ctrl-C is for the suite, which ends it then
        )
        self._refer = refer
        self._frames: SimpleQueue[wire.Frame | None] = SimpleQueue()
        self._answers: SimpleQueue[Any] = SimpleQueue()
        self._lines: deque[str] = deque(maxlen=_LINES)
        self._threads = [Thread(target=target, daemon=True) for target in (self._talk, self._listen)]
        for thread in self._threads:
            thread.start()

    def ask(self, frame: wire.Frame, seconds: float) -> Any:
        """Send a message and give the answer.

        Raises
        ------
        queue.Empty
            If it does not come in time.
        OSError, EOFError, WireError
            If there is no one to answer, or if what comes is no answer.
        """
        self._frames.put(frame)
        answer = self._answers.get(timeout=max(seconds, 0))
        if isinstance(answer, Exception):
            raise answer
        return answer

    def end(self, grace: float = _GRACE) -> str:
        """Let the program end, by force where it has not after so many seconds; give what it ended with, in words."""
        self._frames.put(None)
        try:
            self._process.wait(grace)
        except subprocess.TimeoutExpired:
            self._kill()
        for thread in self._threads:
            thread.join(1)  # a child of the program may hold its pipes for longer
        return _fate(self._process.wait())

    def printed(self) -> str:
        """Give the last lines that it printed."""
        return "\n".join(self._lines)

    def _kill(self) -> None:
        if hasattr(os, "killpg"):
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)  # with its children: it leads a session of its own
        else:
            self._process.kill()

    def _talk(self) -> None:
        """Send and receive, in a thread of its own: so whoever asks can wait with a limit on every system."""
        sink, source = cast(BinaryIO, self._process.stdin), cast(BinaryIO, self._process.stdout)
        for frame in iter(self._frames.get, None):
            try:
                wire.write(sink, frame)
                answer = wire.read(source, self._refer)
            except Exception as error:  # for the thread that waits
                answer = error
            self._answers.put(answer)
        for stream in (sink, source):
            with suppress(OSError):
                stream.close()

    def _listen(self) -> None:
        """Keep the last lines of standard error, and never let the pipe run full."""
        with cast(BinaryIO, self._process.stderr) as stream:
            for line in iter(lambda: stream.readline(_LONGEST), b""):
                self._lines.append(line.decode("utf-8", "replace").rstrip())


def python(module: str, *arguments: str) -> list[str]:
    """Give the command that runs a module in a Python like this one; it prints at once, and says where it crashes."""
    return [sys.executable, "-u", "-X", "faulthandler", "-m", module, *arguments]


def _environment() -> dict[str, str]:
    """Give the environment of users: nothing in it tells that a test is running, or sets attnkit in another way."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_HIDDEN)}
    return {**kept, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}


def _fate(status: int) -> str:
    if status >= 0:
        return f"exit status {status}"
    try:
        return f"signal {signal.Signals(-status).name}"
    except ValueError:  # a real-time signal has no name
        return f"signal {-status}"
