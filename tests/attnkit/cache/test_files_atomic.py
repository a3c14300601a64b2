"""A save that fails or is killed leaves the old file or the new one, whole (C11)."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import attnkit as ak
from attnkit.cache import atomic


def filled(number, layers=3):
    """Give a cache whose every token is ``number``."""
    cache = ak.make_cache(ak.KVCacheConfig(num_layers=layers, num_kv_heads=2, head_dim=8), backend="numpy")
    for layer in cache:
        layer.append(*[np.full((1, 2, 16, 8), number, np.float32)] * 2)
    return cache


def number_in(path):
    """Give the number that all tokens of a file are."""
    values = {float(value) for layer in ak.load_cache(path) for array in layer.read() for value in array.ravel()}
    assert len(values) == 1
    return values.pop()


class Failing:
    """The functions of ``os`` that saving uses, the files that it gives too; the n-th call fails."""

    names = ("open", "chmod", "fsync", "replace", "close")

    def __init__(self, monkeypatch, fault) -> None:
        self.left, self.fault = None, fault
        fake = type("os", (), {**vars(os), **{name: staticmethod(self.guarded(name)) for name in self.names}})
        monkeypatch.setattr(atomic, "os", fake)
        monkeypatch.setattr(atomic, "open", self.opened, raising=False)

    def step(self):
        if self.left is not None:
            self.left -= 1
            if self.left == 0:
                self.fault()

    def guarded(self, name):
        def run(*args, **kwargs):
            self.step()
            return getattr(os, name)(*args, **kwargs)

        return run

    def opened(self, *args):
        self.step()
        return Counted(open(*args), self.step)  # whoever asked for it closes it

    def __call__(self, number):
        """Let the call of that number fail."""
        self.left = number


class Counted:
    """A file whose writes count."""

    def __init__(self, file, step) -> None:
        self.file, self.step = file, step

    def __getattr__(self, name):
        if name in ("write", "seek", "flush"):
            self.step()
        return getattr(self.file, name)

    def __enter__(self):
        self.file.__enter__()
        return self

    def __exit__(self, *args):
        return self.file.__exit__(*args)


def full():
    raise OSError(errno.ENOSPC, "No space left on device")


def interrupted():
    raise KeyboardInterrupt


@pytest.mark.parametrize("fault", [full, interrupted])
def test_a_save_that_fails_at_any_point_leaves_the_old_file_or_the_new_one(tmp_path, monkeypatch, fault) -> None:
    path, points = tmp_path / "cache", []
    failing = Failing(monkeypatch, fault)
    for number in range(1, 100):
        failing(None)
        filled(1).save(path)
        failing(number)
        try:
            filled(2).save(path)
        except (OSError, KeyboardInterrupt):
            failing(None)
            points.append(number_in(path))
            assert [file.name for file in tmp_path.iterdir()] == ["cache"]
        else:
            break
    assert number_in(path) == 2
    assert points == sorted(points)
    assert points.count(1) >= 2 + 2 * 3 * 1 + 5  # header, planes, digits, seek, flush, fsync, replace
    assert points.count(2) == 3  # the folder's entry: opened, synced, closed


def test_a_new_file_that_fails_leaves_nothing(tmp_path, monkeypatch) -> None:
    failing = Failing(monkeypatch, full)
    failing(6)
    with pytest.raises(OSError, match="No space left"):
        filled(1).save(tmp_path / "cache")
    assert not list(tmp_path.iterdir())


KILLED = """
import os, random, signal, sys, time
import numpy as np
import attnkit as ak
from attnkit.cache import atomic, files

def filled(number, tokens):
    cache = ak.make_cache(ak.KVCacheConfig(num_layers=3, num_kv_heads=2, head_dim=64), backend="numpy")
    for layer in cache:
        layer.append(*[np.full((1, 2, tokens, 64), number, np.float32)] * 2)
    return cache

def number_in(path):
    values = {float(v) for layer in ak.load_cache(path) for array in layer.read() for v in np.unique(array)}
    assert len(values) == 1, values
    return values.pop()

def in_child(task):
    child = os.fork()
    if not child:
        try:
            task()
        finally:
            os._exit(0)
    return child

path, draw = sys.argv[1], random.Random(5)
small, large = ({number: filled(number, tokens) for number in (1, 2)} for tokens in (10, 600))

def killed_at(point):
    calls = iter(range(1, 1000))
    def traced(frame, event, arg):
        if frame.f_code.co_filename in (atomic.__file__, files.__file__) and event == "line" and next(calls) == point:
            os.kill(os.getpid(), signal.SIGKILL)
        return traced
    sys.settrace(traced)
    small[2].save(path)

seen = []
for point in range(1, 1000):
    small[1].save(path)
    _, status = os.waitpid(in_child(lambda: killed_at(point)), 0)
    if status == 0:
        break
    assert os.WTERMSIG(status) == signal.SIGKILL
    seen.append(number_in(path))
assert number_in(path) == 2
assert seen == sorted(seen) and set(seen) == {1.0, 2.0}, seen
print("lines", len(seen))

def forever():
    while True:
        for cache in large.values():
            cache.save(path)

for _ in range(25):
    child = in_child(forever)
    time.sleep(draw.random() / 20)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    number_in(path)
print("moments 25")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="kills forked processes")
def test_a_save_that_is_killed_at_any_line_or_moment_leaves_the_old_file_or_the_new_one(tmp_path) -> None:
    run = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path / "cache")], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    lines, moments = run.stdout.splitlines()
    assert int(lines.split()[1]) > 40
    assert moments == "moments 25"
    left = [file.name for file in tmp_path.iterdir() if file.name != "cache"]
    assert left
    assert all(name.startswith(".cache.") and name.endswith(".tmp") for name in left)
    ak.load_cache(tmp_path / "cache").save(tmp_path / "cache")  # what is left behind is in nobody's way


# A file like any other


def test_permissions_are_those_of_any_new_file(tmp_path) -> None:
    for mask in (0o022, 0o077, 0o002):
        before = os.umask(mask)
        try:
            filled(1).save(tmp_path / f"cache{mask}")
            (tmp_path / f"plain{mask}").write_bytes(b"")
        finally:
            os.umask(before)
        modes = [stat.S_IMODE((tmp_path / f"{name}{mask}").stat().st_mode) for name in ("cache", "plain")]
        assert modes[0] == modes[1]


def test_permissions_of_an_old_file_stay(tmp_path) -> None:
    path = tmp_path / "cache"
    filled(1).save(path)
    path.chmod(0o640)
    filled(2).save(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_a_symbolic_link_is_followed(tmp_path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "there" / "cache")
    filled(3).save(tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert number_in(tmp_path / "there" / "cache") == 3


def test_paths_of_any_kind(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    for path in ("cache", Path("cache"), str(tmp_path / "a b ä"), "x" * 250, "漢" * 85):
        filled(4).save(path)
        assert number_in(path) == 4


def test_where_no_file_can_be(tmp_path) -> None:
    with pytest.raises(FileNotFoundError):
        filled(1).save(tmp_path / "nowhere" / "cache")
    with pytest.raises(IsADirectoryError, match="is a folder; give the path of a file"):
        filled(1).save(tmp_path)
    assert not list(tmp_path.iterdir())
