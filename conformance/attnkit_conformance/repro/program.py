"""Program: a tape and a claim as a few lines of Python that need NumPy, attnkit and the backend alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from attnkit_conformance.harness.failures import BackendGone
from attnkit_conformance.repro.claims import Agrees, Claim, Raises, Refuses, Returns
from attnkit_conformance.repro.ending import ending, favourites
from attnkit_conformance.repro.names import Names
from attnkit_conformance.repro.referee import Expectations
from attnkit_conformance.repro.statements import Statements
from attnkit_conformance.repro.tape import Calls, Run

_GUARD: Final = [
    'if "inside" not in sys.argv:  # the process of the backend ends, or hangs, and another one must look on',
    '    ended = subprocess.run([sys.executable, __file__, "inside"], timeout=120).returncode',
    '    sys.exit(f"FAULT: the process of the backend ended with status {ended}" if ended else 0)',
]


@dataclass(frozen=True, slots=True)
class Target:
    """How a program gets at the backend.

    Attributes
    ----------
    name
        ``NAME``, ``NAME:PATH`` or ``module:factory``.
    registered
        It is one of the first two.
    device
        Where its arrays are to lie; by default where its ``from_numpy`` puts them.
    """

    name: str
    registered: bool
    device: str = ""

    def imports(self) -> list[str]:
        """Give the line that imports it."""
        module, _, factory = self.name.partition(":")
        return [f"from {module} import {factory.partition('.')[0]}"] if self._is_made else []

    @property
    def _is_made(self) -> bool:
        """Tell whether it is made by something that can be imported."""
        return not self.registered and "<locals>" not in self.name and not self.name.startswith("__main__")

    def lines(self) -> Iterator[str]:
        """Give the lines that make ``BACKEND``, which calls get, ``backend``, the object, and ``array``."""
        first, _, rest = self.name.partition(":")
        if self.registered:
            yield f'BACKEND = "{self.name}"'
            yield f'backend = ak.get_backend("{first}")'
        elif self._is_made:
            yield f"BACKEND = backend = {rest}()"
        else:
            yield f"BACKEND = backend = None  # put it here: nothing can be imported that makes {rest}"
        if self.device:
            yield ""
            yield "def array(numbers):"
            yield f'    return array_api_compat.to_device(backend.from_numpy(numbers), "{self.device}")'
            yield ""
        else:
            yield "array = backend.from_numpy"


def program(
    title: str, target: Target, calls: Calls, claim: Claim, run: Run, expectations: Expectations
) -> tuple[str, dict[str, np.ndarray[Any, Any]]]:
    """Write a program, and give the arrays that it is about."""
    names = Names(calls, favourites(claim))
    statements = Statements(calls, claim, run, names)
    body = list(statements.lines())
    end = ending(claim, calls, run, expectations, names, statements.data)
    made = list(target.lines())
    if statements.data.used:
        made.append('data = np.load(Path(__file__).with_name("arrays.npz"))')
    helpers = list(statements.helpers())
    guard = _GUARD if isinstance(claim, Returns) and issubclass(claim.error, BackendGone) else []
    imports = _imports("\n".join([*guard, *helpers, *made, *body, *end]), target)
    tried = isinstance(claim, Raises | Refuses | Agrees)  # whose end is of one statement with what stands before it
    parts = [[f'"""{title}"""'], imports, *filter(None, [guard]), *([text] for text in helpers), made]
    parts += [[*body, *end]] if tried else [body, end]
    return "\n\n".join("\n".join(part) for part in parts) + "\n", dict(statements.data.arrays)


def _imports(text: str, target: Target) -> list[str]:
    """Give the imports that a program needs."""
    standard = [
        *_if(text, "subprocess.", "import subprocess"),
        "import sys",
        *_if(text, "suppress(", "from contextlib import suppress"),
    ]
    standard += _if(text, "Path(", "from pathlib import Path") + _if(text, "mkdtemp(", "from tempfile import mkdtemp")
    others = _if(text, "array_api_compat.", "import array_api_compat") + _if(text, "ml_dtypes.", "import ml_dtypes")
    others += _if(text, "np.", "import numpy as np")
    inner = _if(text, "describe_call(", "from attnkit.call import describe_call, gather_options")
    return [*standard, "", *others, "", "import attnkit as ak", *inner, *target.imports()]


def _if(text: str, word: str, line: str) -> list[str]:
    return [line] if word in text else []
