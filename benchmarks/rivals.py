"""``python -m benchmarks.rivals NAME``: one library against torch's fused attention, as a line of JSON.

Axes: ``B`` batch, ``H`` heads, ``T`` length, ``D`` head size.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from benchmarks.timing import compare

Array = np.ndarray[Any, Any]
Work = Callable[[], Any]
THREADS = 2
SHAPE = 1, 8, 1024, 64


def attnkit_torch(query: Array, key: Array, value: Array) -> Work:
    """Give attnkit's automatic choice on tensors."""
    import torch

    import attnkit as ak

    tensors = [torch.from_numpy(array) for array in (query, key, value)]
    return lambda: ak.attention(*tensors, mask=ak.Mask.causal()).numpy()


def attnkit_numpy(query: Array, key: Array, value: Array) -> Work:
    """Give attnkit's automatic choice on NumPy arrays."""
    import attnkit as ak

    return lambda: ak.attention(query, key, value, mask=ak.Mask.causal())


def flex_attention(query: Array, key: Array, value: Array) -> Work:
    """Give FlexAttention, compiled, with a causal block mask."""
    import torch
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    tensors = [torch.from_numpy(array) for array in (query, key, value)]
    length = query.shape[2]
    mask = create_block_mask(lambda _b, _h, i, j: i >= j, None, None, length, length, device="cpu")
    compiled = torch.compile(flex_attention)
    return lambda: compiled(*tensors, block_mask=mask).numpy()


def jax(query: Array, key: Array, value: Array) -> Work:
    """Give ``jax.nn.dot_product_attention``, compiled; its axes are ``[B, T, H, D]``."""
    import jax

    arrays = [jax.numpy.asarray(array.swapaxes(1, 2)) for array in (query, key, value)]
    compiled = jax.jit(lambda q, k, v: jax.nn.dot_product_attention(q, k, v, is_causal=True))
    return lambda: np.asarray(compiled(*arrays)).swapaxes(1, 2)


def onnxruntime(query: Array, key: Array, value: Array) -> Work:
    """Give the ``Attention`` operator of opset 23 in ONNX Runtime."""
    import onnxruntime
    from onnx import TensorProto, helper

    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, list(query.shape)) for name in "qkv"]
    output = helper.make_tensor_value_info("o", TensorProto.FLOAT, list(query.shape))
    node = helper.make_node("Attention", ["q", "k", "v"], ["o"], is_causal=1)
    graph = helper.make_graph([node], "attention", inputs, [output])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=10)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = THREADS
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return lambda: session.run(None, {"q": query, "k": key, "v": value})[0]


def openvino(query: Array, key: Array, value: Array) -> Work:
    """Give OpenVINO's ``scaled_dot_product_attention``."""
    import openvino
    from openvino import opset13

    parameters = [opset13.parameter(list(query.shape), openvino.Type.f32) for _ in range(3)]
    output = opset13.scaled_dot_product_attention(*parameters, causal=True)
    settings = {"INFERENCE_NUM_THREADS": THREADS, "INFERENCE_PRECISION_HINT": "f32"}
    model = openvino.Core().compile_model(openvino.Model([output], parameters), "CPU", settings)
    request = model.create_infer_request()
    return lambda: request.infer([query, key, value])[0]


RIVALS: dict[str, Callable[[Array, Array, Array], Work]] = {
    "attnkit on torch": attnkit_torch,
    "attnkit on numpy": attnkit_numpy,
    "FlexAttention": flex_attention,
    "jax": jax,
    "onnxruntime": onnxruntime,
    "openvino": openvino,
}


def main(rival: str) -> None:
    """Measure one library and print ratio, spread of the baseline, and largest error against float64."""
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    import torch

    from attnkit import Mask, reference

    torch.set_num_threads(THREADS)
    torch.set_grad_enabled(False)
    rng = np.random.default_rng(0)
    query, key, value = rng.standard_normal((3, *SHAPE), dtype=np.float32)
    work = RIVALS[rival](query, key, value)
    tensors = [torch.from_numpy(array) for array in (query, key, value)]
    baseline = partial(torch.nn.functional.scaled_dot_product_attention, *tensors, is_causal=True)
    truth = reference.attention(query, key, value, mask=Mask.causal()).output
    found = compare(work, baseline, turns=21)
    error = float(np.abs(np.asarray(work()) - truth).max())
    print(json.dumps({"ratio": found.ratio, "spread": found.spread, "error": error}))


if __name__ == "__main__":
    main(sys.argv[1])
