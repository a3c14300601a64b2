"""Under importlib mode tests cannot import the files beside them, unless their folder is on the path."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
