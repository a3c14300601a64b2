"""Export: golden vectors as a package, bit for bit the same wherever and whenever it is made."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

import attnkit as ak
from attnkit.numerics import Numerics, numerics_for
from attnkit_conformance.cases import Case
from attnkit_conformance.vectors.catalogue import catalogue, filled
from attnkit_conformance.vectors.chain import NAME, chain
from attnkit_conformance.vectors.exactly import ExactTruth
from attnkit_conformance.vectors.formats import FORMATS, VectorWriter
from attnkit_conformance.vectors.probing import attendance, selections
from attnkit_conformance.vectors.texts import LICENSE, README

Array = np.ndarray[Any, Any]
DTYPES: Final = ("float32", "float16", "bfloat16", "float64")


class Vector(NamedTuple):
    """One golden vector: the call, what it must give, and under ``NAME_tau`` how nearly."""

    case: Case
    truth: Mapping[str, Array]


def export(
    path: Path | str,
    *,
    cases: str = "core",
    dtypes: Sequence[str] = DTYPES,
    numerics: str = "",
    also: Sequence[str] = (),
    only: Sequence[str] = (),
) -> None:
    """Write golden vectors.

    Parameters
    ----------
    path
        A new or empty folder.
    cases
        ``"core"``, ``"hardware"`` or ``"full"``.
    dtypes
        Element types of query, key, value and output.
    numerics
        Profile that the bounds follow; by default the usual one of each element type.
    also
        ``"hex"``, ``"npz"``, ``"safetensors"``: the same arrays in these formats too.
    only
        Labels of the cases to write; all by default.

    Raises
    ------
    ValueError
        If there is no such list, profile, format or case.
    DTypeError
        If the profile is not for one of the element types.
    PackageError
        If the folder is in use.
    ImportError
        If mpmath is not installed.
    """
    profiles = {dtype: _numerics(numerics, dtype) for dtype in dtypes}
    strange = sorted(set(also) - set(FORMATS))
    if strange:
        raise ValueError(f"also must be among {', '.join(FORMATS)}, got {', '.join(strange)}")
    chosen = _chosen(catalogue(cases), only)
    texts = {"README.md": README, "LICENSE": LICENSE}
    if not only:
        texts |= {f"{NAME}-{dtype}/chain.tsv": chain(dtype).lines() for dtype in dtypes}
    names = {dtype: profile.name for dtype, profile in profiles.items()}
    with VectorWriter(Path(path), "vectors", numerics=names, about={"cases": cases}, texts=texts) as writer:
        for vector in _vectors(chosen, profiles, probes=not only):
            name = f"{vector.case.label}-{vector.case.dtype}"
            writer.add(name, vector.case, truth=vector.truth, lse=vector.case.lse)
            writer.add_formats(name, vector.case, vector.truth, tuple(also))


def _vectors(cases: Sequence[Case], profiles: Mapping[str, Numerics], *, probes: bool) -> Iterator[Vector]:
    """Give every case in every element type; the truth is that of the numbers, which are the same in all."""
    for case in cases:
        yield from _each([filled(case, dtype) for dtype in profiles], profiles)
    if probes:
        for same in zip(*(_probes(dtype) for dtype in profiles), strict=True):
            yield from _each(same, profiles)


def _probes(dtype: str) -> list[Case]:
    return [*attendance(dtype), *selections(dtype), chain(dtype).case]


def _each(same: Sequence[Case], profiles: Mapping[str, Numerics]) -> Iterator[Vector]:
    truth = ExactTruth(same[0])
    for case in same:
        yield Vector(case, truth.expected(profiles[case.dtype], lse=case.lse))


def _numerics(name: str, dtype: str) -> Numerics:
    usual = ak.Capabilities().numerics
    if dtype not in usual:
        raise ValueError(f"dtype must be one of {', '.join(usual)}, got {dtype!r}")
    return numerics_for(name or usual[dtype], dtype)


def _chosen(cases: Sequence[Case], only: Sequence[str]) -> list[Case]:
    labels = {case.label for case in cases}
    unknown = sorted(set(only) - labels)
    if unknown:
        raise ValueError(f"only: no case is called {', '.join(unknown)}; there are {', '.join(sorted(labels))}")
    return [case for case in cases if not only or case.label in only]
