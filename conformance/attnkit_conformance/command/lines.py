"""Lines: a program that is asked a line and gives a line: never waited for without a limit, and never believed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from threading import Thread
from typing import BinaryIO, Final, cast

from attnkit_conformance.command.messages import LONGEST

_PRINTED: Final = 20
_GRACE: Final = 2.0


class CommandFailureError(RuntimeError):
    """A program ended, hung, or sent what is no answer; it is started anew for the next call."""


class Lines:
    """A program, asked over its standard input and output.

    Parameters
    ----------
    command
        The program and its arguments; no shell sees them.

    Raises
    ------
    CommandFailureError
        If it cannot be started.
    """

    def __init__(self, command: Sequence[str]) -> None:
        if shutil.which(command[0]) is None:
            raise CommandFailureError(f"no program {command[0]!r}; build it, or give its path")
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,  # it is ended with its children
            )
        except OSError as error:
            raise CommandFailureError(f"{command[0]} cannot be started: {error}") from error
        self._answers: SimpleQueue[bytes] = SimpleQueue()
        self._printed: deque[str] = deque(maxlen=_PRINTED)
        for target in (self._listen, self._drain):
            Thread(target=target, daemon=True).start()

    def ask(self, line: str, seconds: float) -> bytes:
        """Send a line and give the one that comes back.

        Raises
        ------
        CommandFailureError
            If none comes in time, or what comes is not one line of a sensible length.
        """
        if not self._answers.empty():
            raise CommandFailureError(f"it spoke before it was asked: {self._answers.get()[:80]!r}")
        sink = cast(BinaryIO, self._process.stdin)
        try:
            sink.write(line.encode() + b"\n")
            sink.flush()
        except OSError:
            raise CommandFailureError(f"it ended ({self.end()}){self._last_words()}") from None
        try:
            answer = self._answers.get(timeout=seconds)
        except Empty:
            raise CommandFailureError(f"no answer within {seconds:g} s{self._last_words()}") from None
        if len(answer) > LONGEST:
            raise CommandFailureError(f"a line of more than {LONGEST} bytes")
        if not answer.endswith(b"\n"):
            raise CommandFailureError(f"it ended ({self.end()}) inside a line: {answer[:80]!r}{self._last_words()}")
        return answer

    def end(self) -> str:
        """End the program, by force where it does not by itself; give what it ended with, in words."""
        with suppress(OSError):
            cast(BinaryIO, self._process.stdin).close()
        try:
            status = self._process.wait(_GRACE)
        except subprocess.TimeoutExpired:
            status = None
        self._kill()  # children too, which may live on
        status = self._process.wait() if status is None else status
        return f"exit status {status}" if status >= 0 else f"signal {-status}"

    def _kill(self) -> None:
        with suppress(ProcessLookupError, PermissionError):
            if hasattr(os, "killpg"):
                os.killpg(self._process.pid, signal.SIGKILL)
            else:
                self._process.kill()

    def _listen(self) -> None:
        with cast(BinaryIO, self._process.stdout) as stream:
            while line := stream.readline(LONGEST + 1):
                self._answers.put(line)
                if len(line) > LONGEST:
                    return
        self._answers.put(b"")

    def _drain(self) -> None:
        with cast(BinaryIO, self._process.stderr) as stream:
            while line := stream.readline(1000):
                self._printed.append(line.decode("utf-8", "replace").rstrip())

    def _last_words(self) -> str:
        return "; the last that it printed:\n" + "\n".join(self._printed) if self._printed else ""
