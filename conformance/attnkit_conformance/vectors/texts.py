"""What a package of golden vectors says about itself."""

from __future__ import annotations

from typing import Final

README: Final = """\
# Golden vectors of attention

`index.tsv` lists every array: case, role, element type, count, shape, file. Arrays are raw, little-endian, row-major;
bfloat16 is the upper half of a float32, a boolean one byte. `CASE/case.json` (and `case.tsv`, the same as lines) says
what a call is. An answer `y` in `OUT/CASE/out/output.bin`, in the element type of the case, is right where
`|y - expected| <= tau` holds for every element, with `CASE/truth/output.bin` and `output_tau.bin` in float64. NaN
is never right. `lse.bin` likewise, where there is an expected one.

`chain-DTYPE`, where it is among them, is a thousand steps of decoding with a cache: `chain.tsv` has the steps, and the
`semantics` of its `case.json` the rule by which an output selects the query of the next step.

`sha256sum -c SHA256SUMS` tells whether every byte is as it was written. `docs/vectors.md` of attnkit explains it all.
"""

LICENSE: Final = """\
The data in this folder (every file but programs) are dedicated to the public domain under CC0 1.0 Universal:
https://creativecommons.org/publicdomain/zero/1.0/

The checker tools/attnkit_check.c, where it comes with them, is part of attnkit and licensed under the Apache License,
Version 2.0: https://www.apache.org/licenses/LICENSE-2.0

SPDX-License-Identifier: CC0-1.0 AND Apache-2.0
"""
