"""Two peers as backends, to be crossed with: ``attnkit crosscheck numpy attnkit_peers:jax --cases causal``.

Each adapter passes a call on as it is; what the peer defines in another way shows as a convention.
"""

from functools import lru_cache

import numpy as np

import attnkit as ak

_CORE = {"dtypes": frozenset({"float32"}), "gqa": True, "dense": True, "bias": True}


class Peer(ak.Backend):
    """A backend over NumPy arrays."""

    automatic = False
    declared = ak.Capabilities(**_CORE)

    def capabilities(self):
        return self.declared

    def from_numpy(self, array):
        return np.array(array)

    def to_numpy(self, array):
        return np.array(array)

    def unsupported(self, request, path=None):
        """Refuse masks that the peer has no argument for, alone or together."""
        reasons, mask = super().unsupported(request, path), request.mask
        if mask.dense > 1:
            reasons.append(ak.Reason("dense", "mask", "one dense mask", f"{mask.dense}"))
        return reasons


class Jax(Peer):
    """``jax.nn.dot_product_attention``."""

    name = "jax"

    def attention(self, query, key, value, operands, request):
        from jax import numpy as jnp
        from jax.nn import dot_product_attention

        def turned(array):  # [B, H, T, D] -> [B, T, H, D]
            return jnp.asarray(array.swapaxes(1, 2))

        shape = (request.batch, request.num_heads, request.query_length, operands.key_length)
        if 0 in shape or 0 in key.shape:
            return ak.AttentionOutput(np.zeros((*shape[:3], request.value_dim), query.dtype))
        output = dot_product_attention(
            *map(turned, (query, key, value)),
            bias=None if operands.bias is None else jnp.broadcast_to(operands.bias, shape),
            mask=jnp.broadcast_to(operands.dense[0], shape) if operands.dense else None,
            scale=request.scale,
            is_causal=request.mask.causal,
        )
        return ak.AttentionOutput(np.array(output).swapaxes(1, 2))


class OnnxRuntime(Peer):
    """The operator ``Attention`` of ONNX, opset 23, run by ONNX Runtime."""

    name = "onnxruntime"
    declared = ak.Capabilities(**_CORE, value_dim=True, softcap=True)

    def attention(self, query, key, value, operands, request):
        shape = (request.batch, request.num_heads, request.query_length, operands.key_length)
        if 0 in shape or 0 in key.shape:
            return ak.AttentionOutput(np.zeros((*shape[:3], request.value_dim), query.dtype))
        mask = operands.dense[0] if operands.dense else operands.bias
        if operands.dense and operands.bias is not None:
            mask = np.where(operands.dense[0], operands.bias, -np.inf)
        given = {"query": query, "key": key, "value": value}
        if mask is not None:
            mask = mask if mask.dtype == bool else mask.astype(np.float32)
            given["mask"] = np.ascontiguousarray(np.broadcast_to(mask, shape))
        session = _session(
            request.scale, request.softcap or 0.0, request.mask.causal, None if mask is None else str(mask.dtype)
        )
        return ak.AttentionOutput(session.run(None, {name: np.ascontiguousarray(a) for name, a in given.items()})[0])


@lru_cache(maxsize=64)
def _session(scale, softcap, causal, mask):
    """Make a model of one operator."""
    import onnx
    import onnxruntime
    from onnx import TensorProto, helper

    names = ["query", "key", "value"] + (["mask"] if mask else [])
    kinds = {"mask": TensorProto.BOOL if mask == "bool" else TensorProto.FLOAT}
    inputs = [
        helper.make_tensor_value_info(name, kinds.get(name, TensorProto.FLOAT), [f"{name}{n}" for n in range(4)])
        for name in names
    ]
    output = helper.make_tensor_value_info("output", TensorProto.FLOAT, [f"output{n}" for n in range(4)])
    node = helper.make_node(
        "Attention", names, ["output"], scale=float(scale), softcap=float(softcap), is_causal=int(causal)
    )
    graph = helper.make_graph([node], "attention", inputs, [output])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=10)
    onnx.checker.check_model(model)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


jax, onnxruntime = Jax, OnnxRuntime
