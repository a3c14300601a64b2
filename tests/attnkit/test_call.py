"""What does not fit is refused before anything runs, and the message names it (E, A5, A9, A11)."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest

import attnkit as ak

Q, K, V = (np.ones(shape, np.float32) for shape in [(2, 4, 3, 8), (2, 2, 5, 8), (2, 2, 5, 6)])


def floats(*shape):
    return np.zeros(shape, np.float32)


def refused(plain, arrays, options, error, words):
    with ak.trace() as calls, pytest.raises(error, match=words):
        ak.attention(*arrays, **options)
    assert calls == []
    with pytest.raises(error, match=words):
        ak.explain(*arrays, **options)


@pytest.mark.parametrize(
    ("arrays", "error", "words"),
    [
        ((Q, K[:1], V[:1]), ak.ShapeError, r"common B, K, S and D, got \[2, 4, 3, 8\], \[1, 2, 5, 8\], \[1, 2, 5, 6\]"),
        ((Q, K, V[:1]), ak.ShapeError, "common B"),
        ((Q, K, V[:, :1]), ak.ShapeError, "common B, K"),
        ((Q, K, V[:, :, :4]), ak.ShapeError, "common B, K, S"),
        ((Q[..., :7], K, V), ak.ShapeError, "common B, K, S and D"),
        ((Q[:, :3], K, V), ak.ShapeError, "H must be a multiple of key/value heads K .*got H = 3, K = 2"),
        ((Q[:, :1], K, V), ak.ShapeError, "got H = 1, K = 2"),
        ((Q, K[:, :0], V[:, :0]), ak.ShapeError, "got H = 4, K = 0"),
        ((Q[..., :0], K[..., :0], V), ak.ShapeError, "head size D >= 1, got D = 0"),
        ((Q, K.astype(np.float64), V), ak.DTypeError, "must share one of .*got float32, float64, float32"),
        ((Q, K, V.astype(np.float16)), ak.DTypeError, "got float32, float32, float16"),
        ((Q.astype(ml_dtypes.bfloat16), K, V), ak.DTypeError, "got bfloat16, float32, float32"),
        ((Q.astype(np.int64),) * 3, ak.DTypeError, "must share one of float16, bfloat16, float32, float64, got int64"),
        ((Q.astype(np.complex64),) * 3, ak.DTypeError, "got complex64"),
        ((Q.astype(np.longdouble),) * 3, ak.DTypeError, "must share one of"),
        ((Q.tolist(), K, V), ak.DTypeError, r"query must be an array, got list; convert it"),
        ((Q, None, V), ak.DTypeError, "key must be an array, got NoneType"),
        ((Q, K, np.ma.array(V)), ak.DTypeError, r"value must be a plain array, got a masked array; .*Mask\.dense"),
    ],
)
def test_query_key_value(plain, arrays, error, words) -> None:
    refused(plain, arrays, {}, error, words)


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"scale": np.inf}, ak.ShapeError, "scale must be finite, got inf"),
        ({"scale": float("nan")}, ak.ShapeError, "scale must be finite"),
        ({"scale": "big"}, ak.DTypeError, "scale must be a real number or None, got str"),
        ({"scale": True}, ak.DTypeError, "scale must be a real number or None, got bool"),
        ({"scale": 1j}, ak.DTypeError, "got complex"),
        ({"softcap": 0.0}, ak.ShapeError, "softcap must be > 0, or None for no cap, got 0.0"),
        ({"softcap": -3}, ak.ShapeError, "softcap must be > 0"),
        ({"softcap": np.inf}, ak.ShapeError, "softcap must be finite"),
        ({"softcap": [1.0]}, ak.DTypeError, "softcap must be a real number"),
        ({"mask": np.ones((3, 5), bool)}, ak.DTypeError, r"mask must be a Mask or None, got ndarray; .*Mask\.dense"),
        ({"mask": ak.Mask.dense(np.ones((3, 4), bool))}, ak.ShapeError, r"mask.dense must broadcast to \[B, H, T, S\]"),
        ({"mask": ak.Mask.dense(np.ones((3, 1, 3, 5), bool))}, ak.ShapeError, r"= \[2, 4, 3, 5\], got \[3, 1, 3, 5\]"),
        ({"mask": ak.Mask.documents([0] * 4, [0] * 5)}, ak.ShapeError, r"ids_q must be \[T\] = \[3\] or \[B, T\]"),
        ({"mask": ak.Mask.documents([0] * 3, [[0] * 5])}, ak.ShapeError, r"ids_k must be .*\[2, 5\], got \[1, 5\]"),
        (
            {"bias": floats(3, 4)},
            ak.ShapeError,
            r"bias must broadcast to .* = \[2, 4, 3, 5\], got \[3, 4\]",
        ),
        ({"bias": floats(1, 2, 4, 3, 5)}, ak.ShapeError, "bias must broadcast"),
        ({"bias": floats(2, 2, 3, 5)}, ak.ShapeError, "bias must broadcast"),
        ({"bias": np.ones((3, 5), bool)}, ak.DTypeError, r"bias must hold floats.*, got bool; .*Mask\.dense"),
        ({"bias": np.ones((3, 5), int)}, ak.DTypeError, "bias must hold floats.*, got int64"),
        ({"bias": [[0.0] * 5] * 3}, ak.DTypeError, "bias must be an array, got list"),
        ({"bias": np.ma.zeros((3, 5))}, ak.DTypeError, "masked array"),
        ({"alibi": floats(3)}, ak.ShapeError, r"alibi must be \[H\] or \[B, H\] with H = 4, got shape \[3\]"),
        ({"alibi": floats(1, 4)}, ak.ShapeError, "alibi must be"),
        ({"alibi": 0.5}, ak.DTypeError, "alibi must be an array, got float"),
        ({"alibi": np.arange(4)}, ak.DTypeError, "alibi must hold floats"),
        ({"sinks": floats(2)}, ak.ShapeError, r"sinks must be \[H\] with H = 4, got shape \[2\]"),
        ({"sinks": floats(2, 4)}, ak.ShapeError, "sinks must be"),
        ({"query_lengths": 4}, ak.ShapeError, r"query_lengths must lie in 0\.\.T = 0\.\.3, got \[4, 4\]"),
        ({"query_lengths": [3, -1]}, ak.ShapeError, "query_lengths must lie in"),
        ({"kv_lengths": [6, 1]}, ak.ShapeError, r"kv_lengths must lie in 0\.\.S = 0\.\.5, got \[6, 1\]"),
        ({"kv_lengths": [5]}, ak.ShapeError, r"kv_lengths must be an integer or \[B\] = \[2\], got shape \[1\]"),
        ({"kv_lengths": 2.0}, ak.DTypeError, r"kv_lengths must be an integer or integers \[B\], got float"),
        ({"kv_lengths": [2.0, 2.0]}, ak.DTypeError, "kv_lengths must be .*got float64"),
        ({"kv_lengths": True}, ak.DTypeError, "kv_lengths must be .*got bool"),
        ({"kv_lengths": [True, False]}, ak.DTypeError, "kv_lengths must be .*got bool"),
        ({"query_offset": [[1, 2]]}, ak.ShapeError, "query_offset must be"),
        ({"key_offset": "3"}, ak.DTypeError, "key_offset must be .*got str"),
    ],
)
def test_options(plain, options, error, words) -> None:
    refused(plain, (Q, K, V), options, error, words)


@pytest.mark.parametrize(
    "options",
    [
        {"scale": 0},
        {"scale": -1.5},
        {"scale": np.float32(2)},
        {"softcap": 1},
        {"bias": floats(5)},
        {"bias": floats(2, 1, 1, 1)},
        {"bias": np.zeros((3, 5), ml_dtypes.bfloat16)},
        {"alibi": floats(2, 4)},
        {"sinks": np.zeros(4, np.float16)},
        {"query_lengths": 0, "kv_lengths": [0, 5]},
        {"query_offset": -100, "key_offset": [10**12, -5]},
        {"mask": ak.Mask.documents([[0] * 3] * 2, [0] * 5)},
        {"mask": ak.Mask.dense(np.ones((4, 1, 5), bool))},
    ],
    ids=str,
)
def test_what_is_legal_runs(plain, options) -> None:
    assert ak.attention(Q, K, V, **options).shape == (2, 4, 3, 6)


def test_errors_are_of_the_kind_that_a_caller_would_catch(plain) -> None:
    with pytest.raises(ValueError, match="common B"):
        ak.attention(Q, K, V[:1])
    with pytest.raises(TypeError, match="must share one of"):
        ak.attention(Q, K, V.astype(np.float16))
    for error, builtin in [
        (ak.BackendNotFoundError, LookupError),
        (ak.BackendUnavailableError, ImportError),
        (ak.UnsupportedError, NotImplementedError),
        (ak.ShapeError, ValueError),
        (ak.DTypeError, TypeError),
        (ak.CacheCapacityError, ValueError),
        (ak.DeviceError, RuntimeError),
        (ak.PluginError, RuntimeError),
    ]:
        assert issubclass(error, (ak.AttnkitError, builtin))
        assert issubclass(error, builtin)


def test_a_request_is_hashable_and_knows_nothing_of_the_data(plain, draw) -> None:
    def request(shift, **options):
        arrays = [draw(1, 1, 4, 8) for _ in range(3)]
        return ak.explain(*arrays, kv_lengths=[shift], bias=draw(4, 4), query_offset=shift, **options).request

    assert request(1) == request(2)
    assert hash(request(1)) == hash(request(2))
    assert request(1) != request(1, mask=ak.Mask.causal())
    assert request(1) != request(1, lse=True)


def test_the_request_says_what_was_asked(plain) -> None:
    request = ak.explain(Q, K, V, mask=ak.Mask.window(2), sinks=floats(4), key_offset=3, lse=True).request
    assert request == ak.AttentionRequest(
        array_type=("numpy.ndarray",),
        device="cpu",
        dtype="float32",
        kv_dtype="float32",
        batch=2,
        num_heads=4,
        num_kv_heads=2,
        query_length=3,
        key_length=8,  # 5 rounded up
        head_dim=8,
        value_dim=6,
        mask=ak.MaskStructure(left=2, right=0),
        scale=1 / math.sqrt(8),
        sinks=True,
        key_offset=True,
        lse=True,
    )
    assert (request.group, request.accumulate) == (2, "float32")


class Tensor:
    """What another library's array looks like from here."""

    dtype = "other.float32"

    def __init__(self, shape, device=(1, 0), requires_grad=False):
        self.shape, self.device, self.requires_grad = shape, device, requires_grad

    def __getitem__(self, index):
        raise AssertionError("touched")

    def __dlpack_device__(self):
        return self.device


def test_arrays_of_two_libraries_are_refused(plain) -> None:
    with pytest.raises(ak.DTypeError, match=r"must come from one array library, got numpy, .*convert them first"):
        ak.attention(Q, K, Tensor(V.shape))
    with pytest.raises(ak.DTypeError, match="bias must come from the query's array library"):
        ak.attention(Q, K, V, bias=Tensor((3, 5)))


def test_arrays_on_two_devices_are_refused(plain) -> None:
    with pytest.raises(ak.DeviceError, match="must lie on one device, got cuda:0, cuda:1, cuda:0; move them first"):
        ak.attention(*(Tensor((1, 1, 2, 4), (2, index)) for index in (0, 1, 0)))
    with pytest.raises(ak.DeviceError, match=r"bias must lie on the query's device,? cpu, got cuda:3"):
        ak.attention(*[Tensor((1, 1, 2, 4))] * 3, bias=Tensor((2, 2), (2, 3)))


def test_an_array_that_nobody_owns(plain) -> None:
    with pytest.raises(ak.UnsupportedError) as caught:
        ak.attention(*[Tensor((1, 1, 2, 4), (2, 0))] * 3)
    assert [reason.code for reason in caught.value.reasons["plain"]] == ["not_owner"]
    with pytest.raises(ak.UnsupportedError) as caught:
        ak.attention(*[Tensor((1, 1, 2, 4), (2, 0))] * 3, backend="plain")
    assert [reason.code for reason in caught.value.reasons["plain"]] == ["libraries", "devices"]


def test_inputs_that_require_gradients_are_not_silently_detached(plain) -> None:
    x = [Tensor((1, 1, 2, 4), requires_grad=index == 2) for index in range(3)]
    with pytest.raises(ak.UnsupportedError) as caught:
        ak.attention(*x, backend="plain")
    assert [reason.code for reason in caught.value.reasons["plain"]] == ["libraries", "grad"]
