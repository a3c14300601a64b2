"""The chain as a stranger takes it: from the folder of the case alone, with nothing of attnkit."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import ml_dtypes  # noqa: F401  # makes numpy.dtype("bfloat16") known
import numpy as np
import pytest

DTYPES = ("float32", "bfloat16")


@pytest.fixture(scope="module")
def vectors(export_fast: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export_fast(tmp_path_factory.mktemp("vectors") / "chain", dtypes=DTYPES, only=("chain",))


class Stranger:
    """A cache of lists, and the rule with the numbers of ``case.json``, some of them changed."""

    def __init__(self, folder: Path, **changed: int) -> None:
        self.folder, self.told = folder, json.loads((folder / "case.json").read_text())
        lines = [line.removeprefix("chain.") for line in self.told["semantics"] if line.startswith("chain.")]
        self.names = dict(line.split(" = ") for line in lines)
        self.numbers = {name: int(text) for name, text in self.names.items() if text.isdigit()} | changed
        steps = (folder / self.names["steps_file"]).read_text().splitlines()[1:]
        self.steps = [(operation, int(tokens)) for _, operation, tokens in (line.split("\t") for line in steps)]
        self.query, self.key, self.value = (self.array(role) for role in ("query", "key", "value"))

    def array(self, role: str) -> np.ndarray:
        told = self.told["arrays"][role]
        elements = np.frombuffer((self.folder / self.names[f"{role}_file"]).read_bytes(), np.dtype(told["dtype"]))
        return elements.reshape(told["shape"])

    def output(self, *, closed: bool) -> np.ndarray:
        """Take all steps, ``[B, H, T, E]``."""
        batch, heads, steps = (self.told[name] for name in ("batch", "heads", "queries"))
        assert steps == len(self.steps)
        output = np.zeros((batch, heads, steps, self.told["value_dim"]), np.dtype(self.told["dtype"]))
        register = dict.fromkeys(np.ndindex(batch, heads), self.numbers["start"])
        rows: list[list[tuple[np.ndarray, np.ndarray]]] = [[] for _ in range(batch)]
        holds = list(range(batch))
        for t, (operation, tokens) in enumerate(self.steps):
            word, *arguments = operation.split()
            if word == "truncate":
                rows = [row[: int(arguments[0])] for row in rows]
            elif word == "reorder":
                rows, holds = rows[::-1], holds[::-1]
            for row, b in zip(rows, holds, strict=True):
                row.append((self.key[b, 0, t], self.value[b, 0, t]))
                assert len(row) == tokens
                for h in range(heads):
                    asked = self.asked(register[b, h], tokens) if closed and t else self.query[b, h, t]
                    output[b, h, t] = self.attended(asked, row)
                    register[b, h] = self.following(register[b, h], output[b, h, t])
        return output

    def asked(self, register: int, tokens: int) -> np.ndarray:
        window = self.numbers["window"]
        back = (register >> self.numbers["shift"]) % min(window, tokens)
        query = np.zeros(self.told["head_dim"])
        query[(tokens - 1 - back) % window] = self.numbers["amplitude"]
        return query

    def attended(self, query: np.ndarray, row: list[tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
        keys, values = (np.array(part, np.float64) for part in zip(*row[-self.numbers["window"] :], strict=True))
        scores = self.told["scale"] * (keys @ query.astype(np.float64))
        weights = np.exp(scores - scores.max())
        return weights @ values / weights.sum()

    def following(self, register: int, output: np.ndarray) -> int:
        numbers = self.numbers
        total = numbers["multiplier"] * register + numbers["increment"]
        for e, y in enumerate(output):
            total += (e + 1) * (round(numbers["factor"] * float(y)) + numbers["offset"])
        return total % 2 ** numbers["bits"]

    def right(self, output: np.ndarray) -> np.ndarray:
        """Tell which steps are right, ``[T]``."""
        expected, tau = (
            np.frombuffer((self.folder / self.names[f"{name}_file"]).read_bytes()).reshape(output.shape)
            for name in ("expected", "tau")
        )
        return (np.abs(output.astype(np.float64) - expected) <= tau).all(axis=(0, 1, 3))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("closed", [False, True], ids=["open", "closed"])
def test_the_folder_is_enough_for_either_loop(vectors: Path, dtype: str, closed: bool) -> None:
    stranger = Stranger(vectors / f"chain-{dtype}")
    assert stranger.right(stranger.output(closed=closed)).all()


CHANGED = {
    "window": 15,
    "amplitude": 1,
    "start": 1,
    "bits": 17,
    "multiplier": 1664524,
    "increment": 1013904222,
    "factor": 4,
    "offset": 63,
    "shift": 15,
}


@pytest.mark.parametrize("name", CHANGED)
def test_no_number_of_the_rule_is_idle(vectors: Path, name: str) -> None:
    stranger = Stranger(vectors / "chain-float32", **{name: CHANGED[name]})
    assert stranger.right(stranger.output(closed=True)).mean() < 0.1


def test_the_numbers_of_the_rule_are_these(vectors: Path) -> None:
    assert Stranger(vectors / "chain-float32").numbers.keys() == CHANGED.keys()


def test_every_file_that_is_named_is_there(vectors: Path) -> None:
    stranger = Stranger(vectors / "chain-float32")
    files = {text for name, text in stranger.names.items() if name.endswith("_file")}
    assert {file for file in files if not (stranger.folder / file).is_file()} == {"out/output.bin", "out/refused.txt"}
