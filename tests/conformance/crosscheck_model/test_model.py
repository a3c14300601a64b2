"""Two backends in one model: a fault is found in its layer, head and token, and nothing else is.

Axes: ``H`` query heads, ``T`` tokens.
"""

from __future__ import annotations

import json

import numpy as np
import pytest
from typer.testing import CliRunner

import attnkit as ak
from attnkit.models import Llama, LlamaConfig, load_model
from attnkit.models.weights import Weights, expected_shapes
from attnkit_conformance.crosscheck.cli import app
from attnkit_conformance.crosscheck.model import compare
from attnkit_conformance.crosscheck.model.page import page

CONFIG = LlamaConfig(
    vocab_size=60,
    hidden_size=32,
    intermediate_size=48,
    num_layers=4,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    max_positions=64,
    rms_norm_eps=1e-5,
    rope_theta=1e4,
    tie_embeddings=True,
)
IDS = np.random.default_rng(1).integers(0, 60, 14).tolist()


class Faulty(type(ak.get_backend("numpy"))):
    """NumPy's backend, but for one head of one layer, in which one token is a little off."""

    name = "faulty"

    def __init__(self, layers: int, layer: int, head: int, token: int, size: float = 1e-3) -> None:
        super().__init__()
        self.layers, self.place, self.size, self.calls = layers, (layer, head, token), size, 0

    def plan(self, request, path):
        plan = super().plan(request, path)

        def run(*arguments):
            found = plan.run(*arguments)
            layer, head, token = self.place
            if self.calls % self.layers == layer:
                found.output[0, head, token] += self.size
            self.calls += 1
            return found

        return ak.Plan(plan.path, run)


def tiny(backend) -> Llama:
    rng = np.random.default_rng(0)
    arrays = {
        name: (1 + 0.1 * rng.standard_normal(shape) if "norm" in name else 0.3 * rng.standard_normal(shape)).astype(
            "f4"
        )
        for name, shape in expected_shapes(CONFIG).items()
    }
    return Llama(CONFIG, Weights.from_arrays(arrays), backend=backend)


@pytest.mark.parametrize("other", ["numpy:dense", "torch", "cuda-emulated"])
def test_correct_backends_agree_in_every_layer(other) -> None:
    report = compare(tiny("numpy"), tiny(other), IDS, model="tiny")
    assert report.agree
    assert [line.layer for line in report.layers] == [0, 1, 2, 3]
    assert all(line.apart <= 1 and max(line.error.values()) <= 1 for line in report.layers)
    assert report.layers[0].drift < 1e-5
    assert report.effect.flips == 0
    assert report.effect.nll["A"] == pytest.approx(report.effect.nll["B"], abs=1e-5)
    assert report.effect.divergence < 1e-8


@pytest.mark.parametrize("side", ["A", "B"])
@pytest.mark.parametrize(("layer", "head", "token"), [(0, 0, 0), (1, 3, 13), (2, 1, 7), (3, 2, 4)])
def test_a_planted_fault_is_located_exactly(layer, head, token, side) -> None:
    models = {"A": tiny("numpy"), "B": tiny("numpy")} | {side: tiny(Faulty(4, layer, head, token))}
    report = compare(models["A"], models["B"], IDS)
    assert not report.agree
    assert set(report.first) == {side}
    found = report.first[side]
    assert (found.layer, found.head, found.token) == (layer, head, token)
    assert [line.layer for line in report.layers if line.error[side] > 1] == [layer]
    assert report.parted is not None
    assert (report.parted.layer, report.parted.token) == (layer, token)
    drifts = [line.drift for line in report.layers]
    assert max(drifts[:layer], default=0) == 0 < min(drifts[layer:])


def test_the_effect_on_the_answer_is_told() -> None:
    small, large = (compare(tiny("numpy"), tiny(Faulty(4, 1, 0, 6, size)), IDS).effect for size in (1e-4, 3.0))
    assert 0 < small.largest < large.largest
    assert 0 < small.divergence < large.divergence
    assert small.flips <= large.flips > 0
    assert large.nll["A"] != large.nll["B"]


def test_a_backend_that_raises_in_a_layer_is_told() -> None:
    class Raising(Faulty):
        def plan(self, request, path):
            plan = super().plan(request, path)

            def run(*arguments):
                if self.calls == 6:  # the second layer, asked on the inputs of the other side
                    self.calls += 1
                    raise RuntimeError("no")
                return plan.run(*arguments)

            return ak.Plan(plan.path, run)

    report = compare(tiny("numpy"), tiny(Raising(4, 9, 0, 0)), IDS)
    assert report.first["B"].layer == 2
    assert report.layers[2].error["B"] == float("inf")
    assert type(report).model_validate_json(report.model_dump_json()) == report


def test_the_page_shows_every_layer() -> None:
    report = compare(tiny("numpy"), tiny(Faulty(4, 2, 1, 7)), IDS, model="<tiny>")
    text = page(report)
    assert "first in layer 2, head 1, token 7" in text
    assert "<tiny>" not in text
    assert text.count("<svg") == 1
    assert text.count('class="over"') == 2  # how far apart, and the error of B, in one layer


@pytest.mark.model
def test_a_fault_in_the_real_model_is_located_exactly() -> None:
    model, tokenizer = load_model(backend="numpy")
    wrong, _ = load_model(backend=Faulty(30, 17, 5, 3))
    report = compare(model, wrong, tokenizer.encode("The capital of France is Paris."), model="smollm2")
    found = report.first["B"]
    assert (found.layer, found.head, found.token) == (17, 5, 3)
    assert set(report.first) == {"B"}


@pytest.mark.model
def test_the_command_line_compares_the_real_model(tmp_path) -> None:
    (tmp_path / "text").write_text("The capital of France is Paris.")
    arguments = ["numpy", "numpy:dense", "--model", "smollm2", "--text", str(tmp_path / "text"), "--tokens", "6"]
    done = CliRunner().invoke(app, [*arguments, "--report", str(tmp_path / "out.json")])
    assert done.exit_code == 0, done.output
    assert done.output.startswith("AGREE: A = numpy, B = numpy:dense, smollm2, 6 tokens")
    assert len(json.loads((tmp_path / "out.json").read_text())["layers"]) == 30
    for wrong, words in (
        (["numpy", "nowhere", "--model", "smollm2"], "no backend named"),
        (["numpy", "torch", "--model", str(tmp_path / "nothing")], "--model"),
    ):
        refused = CliRunner().invoke(app, wrong)
        assert refused.exit_code == 2
        assert words in refused.output
