"""The rule of the decode chain: how an output selects the next query, as code and as words of ``case.json``.

Axes: ``E`` value head size.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

Array = np.ndarray[Any, Any]
WINDOW: Final = 16
AMPLITUDE: Final = 1024
START: Final = 0
STEPS_FILE: Final = "chain.tsv"
_MULTIPLIER, _INCREMENT, _BITS = 1664525, 1013904223, 32  # of Numerical Recipes; the upper half is the random one
_SHIFT: Final = 16
_FACTOR, _OFFSET = 8, 64

_PARAMETERS: Final[dict[str, int | str]] = {
    "steps_file": STEPS_FILE,
    "query_file": "in/query.bin",
    "key_file": "in/key.bin",
    "value_file": "in/value.bin",
    "expected_file": "truth/output.bin",
    "tau_file": "truth/output_tau.bin",
    "answer_file": "out/output.bin",
    "refusal_file": "out/refused.txt",
    "window": WINDOW,
    "amplitude": AMPLITUDE,
    "start": START,
    "bits": _BITS,
    "multiplier": _MULTIPLIER,
    "increment": _INCREMENT,
    "factor": _FACTOR,
    "offset": _OFFSET,
    "shift": _SHIFT,
}
_SENTENCES: Final = """\
files lie in this folder; answer_file and refusal_file in one of the same name among your outputs
arrays are raw, little-endian, row-major, of the shapes under `arrays`; bfloat16 is the upper half of a float32
output, expected and tau are [B, H, T, E] = [batch, heads, queries, value_dim]; output in dtype, the others in float64
b is a sequence, not a row of the cache; step t is place t of the third axis of query, key, value and output
steps_file has a line of names, then a line a step: t, operation and tokens[t], with tabs between
tokens[t] is how many tokens each row of the cache holds after the append of step t
the cache has two rows and starts empty, with sequence b in row b; tokens of a row stand at positions 0, 1, ...
a step begins with its operation: `append` is none; `truncate N` keeps the first N tokens of each row
the third one, `reorder 1 0`, lets the two rows change places, with their tokens and their sequences
then the row that holds sequence b takes key[b, 0, t] and value[b, 0, t], at position tokens[t] - 1
then each query head h of b attends to the last min(window, tokens[t]) tokens of that row and to nothing else
output[b, h, t] is what it gives, rounded to dtype
open loop: the query of each step is query[b, h, t]
closed loop: the query of step 0 is query[b, h, 0]; that of a later step t has amplitude at one place and 0 elsewhere
that place is (tokens[t] - 1 - back) mod window, where back = (r[b, h, t] >> shift) mod min(window, tokens[t])
r[b, h, 0] = start; r[b, h, t + 1] = (multiplier * r[b, h, t] + increment + digits) mod 2^bits
digits = sum over e = 0 ... E - 1 of (e + 1) * (round(factor * output[b, h, t, e]) + offset)
output in this rule is your own; round gives the nearest integer, of halves the even one; nothing right is near a half
r is an unsigned integer of `bits` bits, and >> brings in zeros
what stands before `mod 2^bits` fits signed 64 bits, unless an output is wrong by far
where it is negative, mod still gives 0 or more, as unsigned integers that wrap do
stop after the last line of steps_file, or at an output that is not finite, which is wrong
who cannot do an operation of the chain writes a refusal_file that says why, and no answer_file
answer_file is the output of either loop, which is the same; it is right where |output - expected| <= tau everywhere
in one call and without a cache, the chain is the mask above: 1 at [t, s] where step t sees the token of step s
"""
RULE: Final = (
    *(f"chain.{name} = {value}" for name, value in _PARAMETERS.items()),
    *(f"chain: {sentence}" for sentence in _SENTENCES.splitlines()),
)
"""What the ``case.json`` of a chain says of it: ``chain.NAME = VALUE``, then sentences that go by these names."""


def address(register: int, tokens: int) -> int:
    """Give the place of the query that a register selects, when so many tokens are there."""
    back = (register >> _SHIFT) % min(WINDOW, tokens)
    return (tokens - 1 - back) % WINDOW


def following(register: int, output: Array) -> int:
    """Give the register after an output ``[E]``."""
    digits = np.rint(_FACTOR * np.asarray(output, np.float64)).astype(np.int64) + _OFFSET
    total = int(digits @ np.arange(1, digits.size + 1))
    return (_MULTIPLIER * register + _INCREMENT + total) % (1 << _BITS)
