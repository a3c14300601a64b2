"""The first-party CuPy backend; ``plugin.py`` is what attnkit discovers."""
