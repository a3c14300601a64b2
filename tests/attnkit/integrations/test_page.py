"""The page about transformers is true: its example runs."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="pip install 'attnkit[torch]'")
pytest.importorskip("transformers", reason="pip install 'attnkit[transformers]'")

PAGE = (Path(__file__).parents[3] / "docs" / "transformers.md").read_text("utf-8")
(EXAMPLE,) = re.findall(r"^```python\n(.*?)^```$", PAGE, re.M | re.S)


def test_importing_registers_nothing_and_the_example_runs(tmp_path) -> None:
    before = (
        "import attnkit, attnkit.integrations, sys\n"
        "assert not {'torch', 'transformers'} & set(sys.modules)\n"
        "import attnkit.integrations.transformers, transformers\n"
        "assert 'attnkit' not in transformers.AttentionInterface()\n"
    )
    done = subprocess.run([sys.executable, "-c", before + EXAMPLE], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "['model.layers.0.self_attn', 'model.layers.1.self_attn']" in done.stdout
    assert "torch:" in done.stdout


def test_public_names_are_sorted() -> None:
    adapter = import_module("attnkit.integrations.transformers")
    assert adapter.__all__ == sorted(adapter.__all__)
    assert all(hasattr(adapter, name) for name in adapter.__all__)
