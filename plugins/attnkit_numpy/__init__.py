"""The first-party NumPy backend; ``plugin.py`` is what attnkit discovers."""
