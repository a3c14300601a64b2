"""The threads of the backend at the edges of a process: forks, and the end of the interpreter."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

LATE = """
import threading, time
import numpy as np
import attnkit as ak

x = np.ones((1, 8, 600, 64), np.float32)
expected = ak.attention(x, x, x, backend="numpy:tiled")

def work():
    threading.main_thread().join()
    time.sleep(0.2)
    print(np.array_equal(ak.attention(x, x, x, backend="numpy:tiled"), expected))

threading.Thread(target=work).start()
"""

FORK = """
import os, threading, time
import numpy as np
import threadpoolctl
import attnkit as ak

def threads():
    return [library["num_threads"] for library in threadpoolctl.threadpool_info() if library["user_api"] == "blas"]

x = np.ones((1, 8, 1500, 64), np.float32)
ak.attention(x, x, x, backend="numpy:tiled")
before, stop = threads(), threading.Event()

def loop():
    while not stop.is_set():
        ak.attention(x, x, x, backend="numpy:tiled")

worker = threading.Thread(target=loop)
worker.start()
time.sleep(0.1)
child = os.fork()
if not child:
    ak.attention(x, x, x, backend="numpy:tiled")
    os._exit(threads() != before)
stop.set()
worker.join()
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0 and threads() == before)
"""


@pytest.mark.parametrize(
    "script",
    [
        pytest.param(LATE, id="while the interpreter shuts down"),
        pytest.param(
            FORK, id="forked amid a call", marks=pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
        ),
    ],
)
def test_a_call_is_right_and_leaves_blas_as_it_was(script: str) -> None:
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)
    assert result.stdout.strip() == "True", result.stderr
