"""Export: golden vectors as a package, bit for bit the same wherever and whenever it is made."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

import attnkit as ak
from attnkit.errors import UnsupportedError
from attnkit.numerics import numerics_for
from attnkit.tolerance import Arithmetic
from attnkit_conformance.cases import Case
from attnkit_conformance.custom import CustomNumerics, arithmetic_of, reason_of
from attnkit_conformance.vectors.catalogue import catalogue, filled
from attnkit_conformance.vectors.chain import NAME, chain
from attnkit_conformance.vectors.chain_rule import RULE, STEPS_FILE
from attnkit_conformance.vectors.exactly import ExactTruth
from attnkit_conformance.vectors.formats import FORMATS, VectorWriter
from attnkit_conformance.vectors.probing import attendance, selections
from attnkit_conformance.vectors.texts import LICENSE, README

Array = np.ndarray[Any, Any]
Same = tuple[Case, ...]  # one call in each element type
DTYPES: Final = ("float32", "float16", "bfloat16", "float64")


class Vector(NamedTuple):
    """One golden vector: the call, what it must give, and under ``NAME_tau`` how nearly."""

    case: Case
    truth: Mapping[str, Array]


def export(
    path: Path | str,
    *,
    cases: str = "core",
    dtypes: Sequence[str] = (),
    numerics: str | CustomNumerics = "",
    also: Sequence[str] = (),
    only: Sequence[str] = (),
) -> dict[str, str]:
    """Write golden vectors.

    Parameters
    ----------
    path
        A new or empty folder.
    cases
        ``"core"``, ``"hardware"`` or ``"full"``.
    dtypes
        Element types of query, key, value and output; by default all, or that of ``numerics``.
    numerics
        Profile that the bounds follow, or numerics of one's own; by default the usual profile of each element type.
    also
        ``"hex"``, ``"npz"``, ``"safetensors"``: the same arrays in these formats too.
    only
        Labels of the cases to write, probes and the chain among them; all by default.

    Returns
    -------
    dict
        The cases that numerics of one's own have no bound for that tells anything, and why; they are left out.

    Raises
    ------
    ValueError
        If there is no such list, profile, format or case, or no case is left.
    DTypeError
        If the profile is not for one of the element types.
    PackageError
        If the folder is in use.
    ImportError
        If mpmath is not installed.
    """
    own = numerics.dtype if isinstance(numerics, CustomNumerics) else ""
    profiles = {dtype: _numerics(numerics, dtype) for dtype in dtypes or ((own,) if own else DTYPES)}
    strange = sorted(set(also) - set(FORMATS))
    if strange:
        raise ValueError(f"also must be among {', '.join(FORMATS)}, got {', '.join(strange)}")
    chosen, left_out = _judged(_chosen(cases, tuple(profiles), only), profiles)
    texts = {"README.md": README, "LICENSE": LICENSE}
    if any(same[0].label == NAME for same in chosen):
        texts |= {f"{NAME}-{dtype}/{STEPS_FILE}": chain(dtype).lines() for dtype in profiles}
    names = {dtype: getattr(profile, "text", profile.name) for dtype, profile in profiles.items()}
    about = {"cases": cases, **({"left_out": left_out} if left_out else {})}
    with VectorWriter(Path(path), "vectors", numerics=names, about=about, texts=texts) as writer:
        for vector in _vectors(chosen, profiles):
            name = f"{vector.case.label}-{vector.case.dtype}"
            writer.add(name, vector.case, truth=vector.truth, lse=vector.case.lse)
            writer.add_formats(name, vector.case, vector.truth, tuple(also))
            if vector.case.label == NAME:
                writer.tell(name, RULE)
    return left_out


def _chosen(cases: str, dtypes: Sequence[str], only: Sequence[str]) -> list[Same]:
    """Give the cases of a list, then the probes and the chain, or those of them that are named."""
    found: list[Same] = [tuple(filled(case, dtype) for dtype in dtypes) for case in catalogue(cases)]
    found += zip(*map(_probes, dtypes), strict=True)
    labels = {same[0].label for same in found}
    unknown = sorted(set(only) - labels)
    if unknown:
        raise ValueError(f"only: no case is called {', '.join(unknown)}; there are {', '.join(sorted(labels))}")
    return [same for same in found if not only or same[0].label in only]


def _probes(dtype: str) -> list[Case]:
    return [*attendance(dtype), *selections(dtype), chain(dtype).case]


def _judged(chosen: Sequence[Same], profiles: Mapping[str, Arithmetic]) -> tuple[list[Same], dict[str, str]]:
    """Give the cases that there are bounds for; and of the others, by numerics of one's own, why there are none."""
    left_out = {}
    for same in chosen:
        try:
            for case in same:
                case.tolerance(profiles[case.dtype])
        except UnsupportedError as error:
            left_out[same[0].label] = reason_of(error)
    kept = [same for same in chosen if same[0].label not in left_out]
    if not kept:
        raise ValueError(f"no case can be judged by these numerics: {'; '.join(left_out.values())}")
    return kept, left_out


def _vectors(chosen: Sequence[Same], profiles: Mapping[str, Arithmetic]) -> Iterator[Vector]:
    """Give every case in every element type; the truth is that of the numbers, which are the same in all."""
    for same in chosen:
        truth = ExactTruth(same[0])
        for case in same:
            yield Vector(case, truth.expected(profiles[case.dtype], lse=case.lse))


def _numerics(name: str | CustomNumerics, dtype: str) -> Arithmetic:
    if isinstance(name, CustomNumerics):
        return arithmetic_of(name.text, dtype)
    usual = ak.Capabilities().numerics
    if dtype not in usual:
        raise ValueError(f"dtype must be one of {', '.join(usual)}, got {dtype!r}")
    return numerics_for(name or usual[dtype], dtype)
