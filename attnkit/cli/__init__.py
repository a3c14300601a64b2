"""The command line, ``attnkit ...``: one file per command, put together in ``app``."""

from attnkit.cli.app import main

__all__ = ["main"]
