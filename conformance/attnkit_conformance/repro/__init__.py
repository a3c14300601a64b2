"""Reproducers: a folder for each failure, with a short program that shows it and needs nothing of the suite."""

from attnkit_conformance.repro.reproducing import reproduce

__all__ = ["reproduce"]
