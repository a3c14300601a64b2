"""Calls are recorded as attention saw them, replay elsewhere, and are held to the oracle there.

Axes: ``B`` batch, ``H`` query heads, ``K`` key/value heads, ``T`` query length, ``S`` key length, ``D`` head size.
"""

from __future__ import annotations

import shutil

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import attnkit as ak
from attnkit.tracing import observing
from attnkit_conformance.crosscheck import crosscheck
from attnkit_conformance.crosscheck.cli import app as crosschecking
from attnkit_conformance.crosscheck.sides import Recorded
from attnkit_conformance.packages import Package, PackageError, problems
from attnkit_conformance.recording import record
from attnkit_conformance.recording.cli import app

CAUSAL = ak.Mask.causal()


def numbers(seed: int, *shape: int, dtype=np.float32):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def call(seed: int = 0, **options):
    return numbers(seed, 2, 4, 5, 8), numbers(seed + 1, 2, 2, 7, 8), numbers(seed + 2, 2, 2, 7, 8), options


def agree(path) -> bool:
    side = Recorded(path)
    return crosscheck("numpy", side, side.requests(), shrink=False).agree


def test_every_kind_of_call_is_recorded_and_replays(tmp_path) -> None:
    path = tmp_path / "tape"
    with record(path) as tape:
        *arrays, _ = call()
        ak.attention(*arrays, mask=CAUSAL & ak.Mask.window(3))
        ak.attention_with_lse(*arrays, softcap=2.0, sinks=np.ones(4, np.float32), kv_lengths=[3, 7])
        ak.attention(*arrays, bias=numbers(5, 4, 5, 7), mask=ak.Mask.dense(numbers(6, 5, 7) > 0), scale=0.0)
        ak.attention(arrays[0][0], arrays[1][0], arrays[2][0], query_offset=-1, mask=CAUSAL)
        packed = [numbers(seed, 9, heads, 8) for seed, heads in ((1, 4), (2, 2), (3, 2))]
        ak.attention_packed(*packed, np.array([0, 4, 9]), np.array([0, 4, 9]), mask=CAUSAL)
    assert (tape.calls, tape.left_out) == (6, {})
    assert problems(path) == []
    package = Package.open(path)
    assert package.kind == "recording"
    assert package.manifest.about == {"left_out": {}, "ended": "well"}
    assert package.manifest.numerics == {"float32": "strict-fp32"}
    assert [package.read(name).told.lse for name in package.names] == [False, True, False, False, False, False]
    assert agree(path)


@pytest.mark.parametrize(
    "layout",
    [
        {},
        {"layout": "ring", "window": 4},
        {"layout": "ring", "window": 4, "pinned": 1},
        {"layout": "paged", "page_size": 2},
    ],
)
@pytest.mark.parametrize("codec", ["native", "int8"])
def test_caches_are_recorded_as_attention_saw_them(tmp_path, layout, codec) -> None:
    config = ak.KVCacheConfig(num_kv_heads=2, head_dim=8, batch_size=2, codec=codec, **layout)
    cache = ak.make_cache(config, backend="numpy")
    mask = ak.Mask.window(4) if "window" in layout else CAUSAL
    with record(tmp_path / "tape") as tape:
        for step in range(9):
            cache[0].append(numbers(step, 2, 2, 1, 8), numbers(step + 50, 2, 2, 1, 8))
            cache[0].attend(numbers(step + 90, 2, 4, 1, 8), mask=mask)
        inside = cache.begin_step()
        inside[0].append(numbers(3, 2, 2, 1, 8), numbers(4, 2, 2, 1, 8))
        inside[0].attend(numbers(5, 2, 4, 1, 8), mask=mask)
    assert tape.calls == (10 if "pinned" not in layout else tape.calls) >= 10
    assert agree(tmp_path / "tape")
    last = Package.open(tmp_path / "tape").read(f"call-{tape.calls - 1:05d}")
    if "window" not in layout:
        assert np.array_equal(last.case.arrays[1], cache[0].read()[0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_what_torch_computed_is_checked_on_numpy(tmp_path, dtype) -> None:
    with record(tmp_path / "tape") as tape:
        query, key, value = (torch.from_numpy(array).to(dtype).requires_grad_() for array in call()[:3])
        ak.attention(query, key, value, mask=CAUSAL)
        ak.attention(query.detach(), key.detach(), value.detach(), backend="numpy")
    assert sorted(name.partition(":")[0] for name in tape.backends) == ["numpy", "torch"]
    copy = tmp_path / "another machine"
    shutil.copytree(tmp_path / "tape", copy)
    assert agree(copy)


def test_steps_of_mirrored_caches_are_recorded(tmp_path) -> None:
    cache = ak.make_cache(ak.KVCacheConfig(num_kv_heads=2, head_dim=8, max_length=20), backend="cuda-emulated")
    with record(tmp_path / "tape") as tape:
        for step in range(3):
            inside = cache.begin_step()
            inside[0].append(numbers(step, 1, 2, 1, 8), numbers(step + 50, 1, 2, 1, 8))
            inside[0].attend(numbers(step + 90, 1, 4, 1, 8), mask=CAUSAL)
    assert tape.calls == 3
    package = Package.open(tmp_path / "tape")
    assert [package.read(name).told.keys for name in package.names] == [1, 2, 3]
    assert agree(tmp_path / "tape")


def test_a_wrong_number_is_found_where_it_is(tmp_path) -> None:
    class Wrong(type(ak.get_backend("numpy"))):
        name = "wrong"

        def plan(self, request, path):
            plan = super().plan(request, path)

            def run(*args):
                found = plan.run(*args)
                found.output[1, 2, 3] += 0.01
                return found

            return ak.Plan(plan.path, run)

    with record(tmp_path / "tape"):
        ak.attention(*call()[:3], backend=Wrong())
    side = Recorded(tmp_path / "tape")
    report = crosscheck("numpy", side, side.requests(), shrink=False)
    assert report.blamed == {"B"}
    assert "all 8 wrong elements are in sequence 1, head 2, row 3" in report.findings[0].explanation


def test_a_run_that_fails_is_recorded_until_then(tmp_path) -> None:
    def fail() -> None:
        with record(tmp_path / "tape"):
            ak.attention(*call()[:3])
            raise KeyError("stop")

    with pytest.raises(KeyError):
        fail()
    assert problems(tmp_path / "tape") == []
    assert Package.open(tmp_path / "tape").manifest.about["ended"] == "KeyError"
    assert agree(tmp_path / "tape")


def test_limits_are_kept_and_told(tmp_path) -> None:
    with record(tmp_path / "tape", most_calls=2) as tape:
        for seed in range(5):
            ak.attention(*call(seed)[:3])
    assert (tape.calls, dict(tape.left_out)) == (2, {"more than 2 calls": 3})
    with record(tmp_path / "bytes", most_bytes=1) as tape:
        for seed in range(3):
            ak.attention(*call(seed)[:3])
    assert (tape.calls, dict(tape.left_out)) == (1, {"more than 1 bytes": 2})


def test_a_used_folder_is_refused(tmp_path) -> None:
    (tmp_path / "x").write_text("mine")
    with pytest.raises(PackageError, match="must be a new or an empty folder"), record(tmp_path):
        raise AssertionError("never")
    assert (tmp_path / "x").read_text() == "mine"


def test_observers_see_this_thread_alone_and_end() -> None:
    seen = []
    with observing(seen.append):
        ak.attention(*call()[:3])
        with observing(lambda _: None):
            ak.attention(*call()[:3])
    ak.attention(*call()[:3])
    assert len(seen) == 1
    assert seen[0].backend.name == "numpy"
    assert seen[0].result.output.shape == (2, 4, 5, 8)


def test_the_command_line_records_and_replays(tmp_path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import sys\nimport numpy as np\nimport attnkit as ak\n"
        "x = np.ones((1, 1, 3, 4), np.float32)\nfor _ in range(int(sys.argv[1])):\n    ak.attention(x, x, x)\n"
    )
    folder = tmp_path / "tape"
    done = CliRunner().invoke(app, [str(folder), "--", str(program), "3"])
    assert done.exit_code == 0, done.output
    assert "3 calls" in done.output
    again = CliRunner().invoke(app, [str(folder), str(program), "3"])
    assert again.exit_code == 2
    listed = CliRunner().invoke(app, [str(tmp_path / "other"), "--", "backends"])
    assert listed.exit_code == 0, listed.output
    assert "none was made" in listed.output
    for arguments in (
        ["torch", str(folder)],
        [str(folder), "numpy:dense"],
        ["numpy", "torch", "--recorded", str(folder)],
    ):
        replayed = CliRunner().invoke(crosschecking, arguments)
        assert replayed.exit_code == 0, replayed.output
        assert "3 of 3 requests compared" in replayed.output
    place = folder / "call-00001" / "out" / "output.bin"
    content = place.read_bytes()
    place.write_bytes(bytes([content[0] ^ 1]) + content[1:])
    broken = CliRunner().invoke(crosschecking, ["numpy", str(folder)])
    assert broken.exit_code == 2
    assert "call-00001/out/output.bin: is not what was written" in broken.output
