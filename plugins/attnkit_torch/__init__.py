"""The first-party torch backend; ``plugin.py`` is what attnkit discovers."""
