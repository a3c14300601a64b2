"""Programs as backends: right ones conform, and whatever a wrong one does is told, and is not the end."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from jsonschema import Draft202012Validator

import attnkit as ak
from attnkit_conformance.command import CommandBackend, CommandFailureError
from attnkit_conformance.command.messages import schema
from attnkit_conformance.conformance import run_conformance
from attnkit_conformance.crosscheck import crosscheck
from attnkit_conformance.crosscheck.requests import requests
from attnkit_conformance.crosscheck.sides import Live
from attnkit_conformance.harness.targets import TargetError, open_target

ROOT = Path(__file__).parents[3]
EXAMPLES = ROOT / "docs" / "examples"
PYTHON = f"cmd:{sys.executable} {EXAMPLES / 'harness-python' / 'harness.py'}"
SCHEMA = ROOT / "conformance" / "attnkit_conformance" / "command" / "protocol.schema.json"

# A program that does one thing wrong, in its second call; arguments: what, and where to note that it did.
WRONG = """
import json, os, sys, time
import numpy as np
what, note = sys.argv[1:]
calls = 0
for line in sys.stdin:
    message = json.loads(line)
    number, command = message["id"], message["command"]
    reply = {"id": number, "status": "ok"}
    if command == "hello":
        reply |= {"protocol": 1, "name": "wrong"}
    elif command == "capabilities":
        reply |= {"capabilities": {"lse": True}}
    elif command == "attend":
        folder = message["folder"]
        call = json.load(open(folder + "/case.json"))
        shape = [call[n] for n in ("batch", "heads", "queries", "value_dim")]
        value = np.fromfile(folder + "/in/value.bin", "f4").reshape(call["arrays"]["value"]["shape"])
        output = np.broadcast_to(value.mean(axis=2, keepdims=True), shape).astype("f4")  # right for keys of zeros
        lse = np.full(shape[:3], np.log(call["keys"]), "f4")
        if not os.path.exists(note) and what != "nothing":
            open(note, "w").close()
            if what == "crash":
                os.abort()
            elif what == "exit":
                print("cannot go on", file=sys.stderr, flush=True)
                sys.exit(3)
            elif what == "hang":
                time.sleep(60)
            elif what == "garbage":
                print("no json at all", flush=True)
                continue
            elif what == "huge":
                sys.stdout.write("x" * (3 << 20)); print(flush=True)
                continue
            elif what == "truncated":
                sys.stdout.write('{"id": 4, "sta'); sys.stdout.flush()
                sys.exit(0)
            elif what == "other id":
                reply["id"] = number + 7
            elif what == "more fields":
                reply["expected"] = 1
            elif what == "closed":
                os.close(1)
                time.sleep(60)
            elif what == "chatter":
                print("hello there", flush=True)
            elif what == "unwritten":
                print(json.dumps(reply), flush=True)
                continue
            elif what == "half":
                with open(folder + "/out/output.bin", "r+b") as file:
                    file.write(output.tobytes()[: output.nbytes // 2])
                lse.tofile(folder + "/out/lse.bin")
                print(json.dumps(reply), flush=True)
                continue
            elif what == "short":
                output = output[..., :-1]
            elif what == "gone":
                os.unlink(folder + "/out/output.bin")
                print(json.dumps(reply), flush=True)
                continue
            elif what == "link":
                os.unlink(folder + "/out/output.bin")
                output.tofile(folder + "/elsewhere")
                os.symlink(folder + "/elsewhere", folder + "/out/output.bin")
                lse.tofile(folder + "/out/lse.bin")
                print(json.dumps(reply), flush=True)
                continue
            elif what == "child":
                if os.fork():
                    sys.exit(1)
                time.sleep(60)
            elif what == "error":
                print(json.dumps({"id": number, "status": "error", "message": "no device"}), flush=True)
                continue
        output.tofile(folder + "/out/output.bin")
        lse.tofile(folder + "/out/lse.bin")
    print(json.dumps(reply), flush=True)
    if command == "stop":
        break
"""
TOLD = {
    "crash": "it ended (signal",
    "exit": "it ended (exit status 3) inside a line: b''; the last that it printed:\ncannot go on",
    "hang": "no answer within 1 s",
    "garbage": "no reply: b'no json at all",
    "huge": "a line of more than 1048576 bytes",
    "truncated": "it ended (exit status 0) inside a line",
    "other id": "a reply to message",
    "more fields": "no reply:",
    "closed": "it ended (signal 9) inside a line",
    "chatter": "no reply: b'hello there",
    "unwritten": "output: 192 of 192 elements were not written, first at [0, 0, 0, 0]",
    "half": "output: 96 of 192 elements were not written, first at [1, 0, 0, 0]",
    "short": "output.bin: must be 768 bytes (float32 [2, 2, 3, 16]), got 720",
    "gone": "output.bin: no such file",
    "link": "output.bin: no such file",
    "child": "no answer within 1 s",
    "error": "the program says: no device",
}


@pytest.fixture
def command(tmp_path):
    (tmp_path / "wrong.py").write_text(WRONG)
    return lambda what: (
        f"{sys.executable} {tmp_path / 'wrong.py'} {what.replace(' ', chr(92) + ' ')} {tmp_path / 'note'}"
    )


def call(backend: CommandBackend) -> ak.AttentionOutput:
    rng = np.random.default_rng(0)
    value = rng.standard_normal((2, 2, 5, 16)).astype(np.float32)
    query = rng.standard_normal((2, 2, 3, 16)).astype(np.float32)
    found = ak.attention_with_lse(query, 0 * value, value, backend=backend)
    mean = np.broadcast_to(value.mean(axis=2, keepdims=True), found.output.shape)
    np.testing.assert_allclose(found.output, mean, rtol=1e-5)
    np.testing.assert_allclose(found.lse, np.log(5), rtol=1e-6)
    return found


@pytest.mark.parametrize("what", TOLD)
def test_what_goes_wrong_is_told_and_the_next_call_is_answered(command, what) -> None:
    backend = CommandBackend(command(what), seconds=1.0 if what in ("hang", "child") else 5.0)
    try:
        with pytest.raises(CommandFailureError) as told:
            call(backend)
        assert TOLD[what] in str(told.value)
        call(backend)
    finally:
        backend.close()


def test_a_right_program_is_asked_again_and_again(command) -> None:
    backend = CommandBackend(command("nothing"))
    for _ in range(5):
        call(backend)
    folder = backend._exchange.folder
    backend.close()
    assert not folder.exists()


def test_a_fault_is_a_finding_of_a_crosscheck(command) -> None:
    side = Live(CommandBackend(command("exit")))
    report = crosscheck(side, "numpy", requests("b2h2t3s5d16", ("float32",), 0), shrink=False)
    assert report.blamed == {"A"}
    assert report.findings[0].complaints["A"].startswith("error: CommandFailureError: it ended (exit status 3)")


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        ('{"id": 1, "status": "ok", "protocol": 2, "name": "x"}', "no reply"),
        ('{"id": 1, "status": "error", "message": "not today"}', "the program says: not today"),
        ("", "no reply"),
    ],
)
def test_who_does_not_introduce_itself_is_no_backend(tmp_path, reply, words) -> None:
    (tmp_path / "p.py").write_text(f"import sys\nfor line in sys.stdin: print({reply!r}, flush=True)")
    with pytest.raises(TargetError, match=words):
        open_target(f"cmd:{sys.executable} {tmp_path / 'p.py'}")


@pytest.mark.parametrize(
    ("capabilities", "words"),
    [
        ('{"speed": 9}', "no field 'speed'"),
        ('{"dtypes": 3}', "capabilities:"),
        ('{"max_key_length": 3}', "must be a power of two"),
    ],
)
def test_capabilities_are_checked(tmp_path, capabilities, words) -> None:
    (tmp_path / "p.py").write_text(
        "import sys, json\nfor line in sys.stdin:\n    m = json.loads(line); r = {'id': m['id'], 'status': 'ok'}\n"
        f"    r |= {{'protocol': 1, 'name': 'p'}} if m['command'] == 'hello' else {{'capabilities': {capabilities}}}\n"
        "    print(json.dumps(r), flush=True)\n"
    )
    with pytest.raises(TargetError, match=words):
        open_target(f"cmd:{sys.executable} {tmp_path / 'p.py'}")


def test_programs_that_are_not_there_are_told() -> None:
    with pytest.raises(TargetError, match=r"no program '\./nowhere'"):
        open_target("cmd:./nowhere --fast")
    with pytest.raises(TargetError, match="must be followed by a program"):
        open_target("cmd:")


def test_refusals_carry_their_code(tmp_path) -> None:
    (tmp_path / "p.py").write_text(
        "import sys, json\nfor line in sys.stdin:\n    m = json.loads(line); r = {'id': m['id'], 'status': 'ok'}\n"
        "    if m['command'] == 'hello': r |= {'protocol': 1, 'name': 'p'}\n"
        "    elif m['command'] == 'capabilities': r |= {'capabilities': {}}\n"
        "    else: r = {'id': m['id'], 'status': 'unsupported', 'code': 'head_dims', 'message': 'only 64'}\n"
        "    print(json.dumps(r), flush=True)\n"
    )
    with Live(CommandBackend(f"{sys.executable} {tmp_path / 'p.py'}")) as side:
        (case,) = requests("b1h1t2s3d8", ("float32",), 0)
        assert side.answer(case).codes == ("head_dims",)


def test_the_python_harness_agrees() -> None:
    with Live(PYTHON) as side:
        report = crosscheck("numpy", side, requests("plain;causal;windows;lengths;grouped", ("float32", "float64"), 0))
    assert report.agree, report.findings
    assert report.compared == 90
    assert side.source == "numpy-harness 1 (Python)"


def test_caches_come_with_it() -> None:
    backend = open_target(PYTHON).backend
    rng = np.random.default_rng(0)
    query, key, value = (rng.standard_normal((1, 2, 6, 8)).astype(np.float32) for _ in range(3))
    cache = ak.make_cache(ak.KVCacheConfig(num_kv_heads=2, head_dim=8, layout="paged", page_size=2), backend=backend)
    whole = ak.attention(query, key, value, mask=ak.Mask.causal(), backend="numpy")
    for t in range(6):
        cache[0].append(key[:, :, t : t + 1], value[:, :, t : t + 1])
        step = cache[0].attend(query[:, :, t : t + 1], mask=ak.Mask.causal())
        np.testing.assert_allclose(step, whole[:, :, t : t + 1], atol=1e-5)


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_the_c_harness_conforms(tmp_path) -> None:
    program = tmp_path / "harness"
    flags = ["-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic", "-O2"]
    subprocess.run(["cc", *flags, "-o", program, EXAMPLES / "harness-c" / "harness.c", "-lm"], check=True)
    report = run_conformance(f"cmd:{program}", level=1, isolated=True)
    assert report.footer is not None
    assert report.footer.verdict.startswith("CONFORMANT attnkit-contract 1.0 / suite"), [
        (result.id, result.message) for result in report.results if result.status != "PASS"
    ][:5]


def test_the_schema_is_that_of_the_messages() -> None:
    assert json.loads(SCHEMA.read_text()) == schema()
    Draft202012Validator.check_schema(schema())


def test_every_message_fits_the_schema(tmp_path) -> None:
    """Both directions of a session with the harness in Python, as they went over the pipes."""
    (tmp_path / "tee.py").write_text(
        "import subprocess, sys\n"
        "inner = subprocess.Popen(sys.argv[2:], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)\n"
        "log = open(sys.argv[1], 'a')\n"
        "for line in sys.stdin:\n"
        "    inner.stdin.write(line); inner.stdin.flush()\n"
        "    reply = inner.stdout.readline()\n"
        "    log.write(line + reply); log.flush(); sys.stdout.write(reply); sys.stdout.flush()\n"
    )
    inner = PYTHON.removeprefix("cmd:")
    with Live(f"cmd:{sys.executable} {tmp_path / 'tee.py'} {tmp_path / 'log'} {inner}") as side:
        crosscheck(side, "numpy", requests("b1h1t2s3d8:causal", ("float32", "float64"), 0))
    lines = (tmp_path / "log").read_text().splitlines()
    assert len(lines) == 8
    validator = Draft202012Validator(schema())
    for line in lines:
        validator.validate(json.loads(line))
    assert not validator.is_valid({"id": 1, "command": "attend"})
    assert not validator.is_valid({"id": 1, "status": "ok", "expected": [1]})
    assert all(word not in line for line in lines for word in ("expected", "tau", "causal"))
