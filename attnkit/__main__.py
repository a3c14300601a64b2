"""``python -m attnkit`` is ``attnkit``."""

from attnkit.cli import main

main()
