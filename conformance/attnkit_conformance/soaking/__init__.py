"""Soaking: random use of caches, every operation, layout, codec and backend, against plain lists, as fast as can be."""

from attnkit_conformance.soaking.machine import OPERATIONS, Step
from attnkit_conformance.soaking.running import replay, soak
from attnkit_conformance.soaking.setting import Setting, settings

__all__ = ["OPERATIONS", "Setting", "Step", "replay", "settings", "soak"]
