"""The faults that must have a test here, one of each kind, and a path that no test takes is none that is tested."""

from __future__ import annotations

import re
from pathlib import Path

CORE = {
    "Dao-AILab/flash-attention#282": "causal-alignment",
    "pytorch/pytorch#103749": "fully-masked-row",
    "pytorch/pytorch#41508": "fully-masked-grad",
    "pytorch/pytorch#101967": "poison-in-dead-slots",
    "ggml-org/llama.cpp#6438": "neg-inf-arithmetic",
    "keras-team/keras#23038": "mask-dropped",
    "pytorch/pytorch#170400": "mask-polarity-dtype",
    "pytorch/pytorch#184180": "mask-broadcast",
    "pytorch/pytorch#187801": "mask-combination",
    "onnx/onnx#7274": "gqa-mapping",
    "pytorch/pytorch#112577": "strides",
    "pytorch/pytorch#169222": "tile-tail",
    "flashinfer-ai/flashinfer#4299": "head-dim",
    "pytorch/pytorch#141218": "empty",
    "huggingface/transformers#39408": "window",
    "onnx/onnx#7865": "softcap",
    "pytorch/pytorch#105202": "scale",
    "pytorch/pytorch#60939": "low-precision-overflow",
    "pytorch/pytorch#181645": "lse",
    "Dao-AILab/flash-attention#2752": "sinks",
    "ml-explore/mlx#343": "alibi",
    "rajveer43/VeloxQuant-MLX#389": "positions",
    "ml-explore/mlx-lm#1100": "aliasing",
    "google-deepmind/gemma#765": "cache-lengths",
    "Dao-AILab/flash-attention#638": "cache-capacity",
    "huggingface/transformers#30312": "cache-rollback",
    "huggingface/transformers#46612": "cache-reorder",
    "numpy/numpy#10899": "dtype",
    "pytorch/pytorch#124464": "dropout",
    "jax-ml/jax#30593": "bias-grad",
    "Dao-AILab/flash-attention#414": "determinism",
    "huggingface/transformers#46960": "silent-slow",
    "cupy/cupy#6574": "thread-stream",
    "pytorch/pytorch#117354": "errors",
}


LAYOUTS = {  # every fault of rings, pages, going back, capacity, codecs, positions and aliasing
    "huggingface/transformers#37574",
    "huggingface/transformers#47708",
    "huggingface/transformers#38156",
    "rajveer43/VeloxQuant-MLX#274",
    "huggingface/transformers#30312",
    "ml-explore/mlx-lm#1109",
    "lablup/mlxcel#994",
    "waybarrios/vllm-mlx#385",
    "vllm-project/vllm#7018",
    "vllm-project/vllm#49449",
    "Avarok-Cybersecurity/atlas#1193",
    "vllm-project/vllm#43810",
    "Dao-AILab/flash-attention#1795",
    "google-deepmind/gemma#765",
    "jax-ml/jax#23349",
    "unslothai/unsloth#3699",
    "rajveer43/VeloxQuant-MLX#389",
    "ggml-org/llama.cpp#3825",
    "huggingface/transformers#43082",
    "oarriaga/paz#415",
    "discuss.huggingface.co#143839",
    "ml-explore/mlx-lm#1100",
    "cupy/cupy#6214",
    "microsoft/onnxruntime#23315",
    "Dao-AILab/flash-attention#638",
    "microsoft/onnxruntime#28031",
    "huggingface/transformers#46612",
    "vllm-project/vllm#41343",
    "vllm-project/vllm#25800",
    "ggml-org/llama.cpp#5652",
}


def marked() -> set[str]:
    """Give the ids of the faults that have a test."""
    texts = [file.read_text("utf-8") for file in sorted(Path(__file__).parent.glob("test_*.py"))]
    return {found for text in texts for found in re.findall(r'@pytest\.mark\.fault\("([^"]+)"\)', text)}


def test_every_core_case_is_here() -> None:
    assert sorted(set(CORE) - marked()) == []
    assert len(CORE) == 34


def test_every_path_takes_the_smallest_calls(attend, lab) -> None:
    """Tests pass over a path that is made for other shapes; this one says that none is passed over by them all."""
    lab.close(attend.weights(1, 2), [[1 / 2, 1 / 2]])


def test_every_case_of_a_cache_is_here() -> None:
    assert sorted(LAYOUTS - marked()) == []
