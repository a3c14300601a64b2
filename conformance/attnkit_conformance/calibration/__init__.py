"""Calibration: the error budget against correct algorithms, and against every first-party backend.

Constants are never fitted to what is measured here: a correct algorithm that does not keep within its bounds means that
the model lacks a term, and a backend that does not has a fault, or declares the wrong numerics.
"""

from attnkit_conformance.calibration.results import Results, Row, committed
from attnkit_conformance.calibration.run import calibrate

__all__ = ["Results", "Row", "calibrate", "committed"]
