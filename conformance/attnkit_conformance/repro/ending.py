"""Ending: how a program checks its claim, and what it says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from attnkit_conformance.repro.claims import (
    Agrees,
    Array,
    Changed,
    Claim,
    Held,
    Observed,
    Raises,
    Refuses,
    Returns,
    Right,
    Same,
    unlike,
)
from attnkit_conformance.repro.literals import Data, index, literal
from attnkit_conformance.repro.names import Names
from attnkit_conformance.repro.referee import Expectations, Expected
from attnkit_conformance.repro.tape import Call, Calls, Run

_CODES = "{reason.code for reasons in error.reasons.values() for reason in reasons}"


def ending(claim: Claim, calls: Calls, run: Run, expectations: Expectations, names: Names, data: Data) -> list[str]:
    """Give the last lines of a program; it exits with 1 where the claim does not hold."""
    made = {call.number: call for call in calls}
    match claim:
        case Right(observed):
            expected, actual = expectations[observed.call], observed.of(run)
            if actual is not None and unlike(actual, expected):
                return _alike(expected)
            return _compared(observed, expected, names.seen(made[observed.call]), data)
        case Held(observed, expected):
            return _compared(observed, expected, names.seen(made[observed.call]), data)
        case Same(observed, other, tau):
            return _equal(observed, other, tau, names.seen(made[observed.call]), data)
        case Raises(_, error, word):
            return _raises(error, word)
        case Returns(call):
            return _returns(made[call], names)
        case Refuses(codes):
            return _refuses(sorted(codes), calls)
        case Agrees(reasons, call):
            return _agrees(names.of_call(reasons))
        case Changed(seen):
            return _changed(seen, names, data)


def favourites(claim: Claim) -> dict[int, str]:
    """Give what the results that a claim looks at are to be called."""
    match claim:
        case Same(observed, other):
            return {other.call: "expected", observed.call: "actual"}
        case Right(observed) | Held(observed):
            return {observed.call: "actual"}
        case Agrees(reasons):
            return {reasons: "said"}
    return {}


def _compared(observed: Observed, expected: Expected, what: str, data: Data) -> list[str]:
    values, lines = expected.values, _cut("actual", observed)
    lines.append(f"expected = {data.expression('expected', values)}")
    if expected.tau is not None:
        lines.append(f"tau = {data.expression('tau', np.broadcast_to(expected.tau, values.shape))}")
    finite = values.dtype.kind in "biu" or bool(np.isfinite(np.asarray(values, np.float64)).all())
    return [*lines, *_verdict(what, bound=expected.tau is not None, finite=finite)]


def _equal(observed: Observed, other: Observed, tau: Array | None, what: str, data: Data) -> list[str]:
    lines = [*_cut("expected", other), *_cut("actual", observed)]
    if tau is not None:
        lines.append(f"tau = {data.expression('tau', tau)}")
    return [*lines, *_verdict(what, bound=tau is not None, finite=False)]


def _cut(name: str, observed: Observed) -> list[str]:
    """Give the line that cuts what was looked at out of what it is a part of."""
    shaped = "" if observed.shape is None else f".reshape{literal(observed.shape)}"
    cut = index(observed.index) + shaped
    return [f"{name} = {name}{cut}"] if cut else []


def _verdict(what: str, *, bound: bool, finite: bool) -> list[str]:
    """Compare ``actual`` with ``expected``, within ``tau`` or bit for bit."""
    same = "actual == expected"
    if bound:
        same = "(actual == expected) | (abs(actual.astype(np.float64) - expected) <= tau)"
    elif not finite:
        same = "(actual == expected) | ((actual != actual) & (expected != expected))"
    quiet = ['np.seterr(invalid="ignore")  # inf - inf'] if bound and not finite else []
    within = ", tau {tau[at]:.3g}" if bound else ""
    return [
        "if actual.shape != expected.shape:",
        f'    sys.exit(f"FAULT: {what} must have the shape {{expected.shape}}, it has {{actual.shape}}")',
        *quiet,
        f"wrong = ~({same})",
        "if wrong.any():",
        "    at = tuple(map(int, np.argwhere(wrong)[0]))",
        "    sys.exit(",
        f'        f"FAULT: {{wrong.sum()}} of {{wrong.size}} numbers of {what} are wrong; first at {{at}}: "',
        f'        f"expected {{expected[at]}}, got {{actual[at]}}{within}"',
        "    )",
        'print("fine: the fault is gone")',
    ]


def _alike(expected: Expected) -> list[str]:
    shape = literal(expected.values.shape)
    return [
        f'if (actual.shape, actual.dtype.name) != ({shape}, "{expected.dtype}"):',
        f'    sys.exit(f"FAULT: expected {expected.dtype} {shape}, got {{actual.dtype.name}} {{actual.shape}}")',
        'print("fine: the fault is gone")',
    ]


def _raises(error: str, word: str) -> list[str]:
    named = [
        f'    if "{word}" not in str(error):',
        f'        sys.exit(f"FAULT: the message must name {word}: {{error}}")',
    ]
    return [
        f"except {error}{' as error' if word else ''}:",
        *(named if word else []),
        f'    print("fine: it raises {error}")',
        "else:",
        f'    sys.exit("FAULT: the call must raise {error}, it gave a result")',
    ]


def _returns(call: Call, names: Names) -> list[str]:
    if call.method != "numpy":
        return ['print("fine: it does not fail")']
    return [
        f"if not isinstance({names.of_call(call.number)}, np.ndarray):",
        '    sys.exit("FAULT: to_numpy must give a NumPy array")',
        'print("fine: the fault is gone")',
    ]


def _refuses(codes: list[str], calls: Sequence[Call]) -> list[str]:
    wanted, tests = ", ".join(codes), [_declared(code, calls) for code in codes]
    fault = f'sys.exit("FAULT: {wanted}: not declared, yet the call gave a result; declare it, or refuse the call")'
    joined = " and ".join(tests)
    otherwise = [
        f"    if not {tests[0] if len(tests) == 1 else f'({joined})'}:",
        f"        {fault}",
        '    print("fine: it is declared now")',
    ]
    return [
        "except ak.UnsupportedError as error:",
        f"    codes = {_CODES}",
        f"    if not {literal(set(codes))} <= codes:",
        f'        sys.exit(f"FAULT: the refusal must carry the codes {wanted}, it carries {{codes}}")',
        '    print("fine: it is refused")',
        "else:",
        *(otherwise if all(tests) else [f"    {fault}"]),
    ]


def _declared(code: str, calls: Sequence[Call]) -> str:
    """Give the expression that tells whether a backend declares what the calls need; empty where none ever does."""
    four = [array for call in calls for array in call.arrays if array.ndim == 4]
    match code:
        case "dtypes":
            return f"({literal({array.dtype.name for array in four})} <= backend.capabilities().dtypes)"
        case "head_dims":
            sizes = sorted({array.shape[3] for array in four})
            return f"all(size in backend.capabilities().head_dims for size in {literal(tuple(sizes))})"
        case "max_key_length":
            longest = max(array.shape[2] for array in four)
            return f"((backend.capabilities().max_key_length or {longest}) >= {longest})"
        case "libraries":
            return ""
        case "layouts" | "codecs":
            return f"({literal(_of_caches(code, calls))} <= backend.capabilities().{code})"
    return f"backend.capabilities().{code}"


def _of_caches(code: str, calls: Sequence[Call]) -> set[str]:
    """Give the layouts, or the kinds of codecs, that the configurations in calls name."""
    configs = [call.given["config"] or {} for call in calls if "config" in call.given]
    if code == "layouts":
        return {config.get("layout", "contiguous") for config in configs}
    names = (config.get(name, "native") for config in configs for name in ("key_codec", "value_codec"))
    return {name.partition("/")[0] for name in names}


def _agrees(said: str) -> list[str]:
    """Compare what ``unsupported`` says with what the call in ``try`` does."""
    return [
        "    found = set()",
        "except ak.UnsupportedError as error:",
        f"    found = {_CODES}",
        f"if {said} != found:",
        f"    sys.exit(f\"FAULT: unsupported gives the codes {{{said} or 'none'}}, the call {{found or 'none'}}\")",
        'print("fine: they agree")',
    ]


def _changed(seen: Mapping[int, Array], names: Names, data: Data) -> list[str]:
    """Compare with what was seen when the check failed."""
    lines = [
        "# No call is wrong by itself: the check works something out from these results, and that is wrong.",
        "same = []",
    ]
    for number, array in seen.items():
        name = names.of_call(number)
        lines += [f"print({name})", f"same.append(np.array_equal({name}, {data.expression(f'{name}_then', array)}))"]
    return [
        *lines,
        "if all(same):",
        '    sys.exit("FAULT: these are the results that the check failed on, bit for bit")',
        'print("the results have changed: run the check again")',
    ]
