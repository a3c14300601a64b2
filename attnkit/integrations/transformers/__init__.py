"""Hugging Face transformers on attnkit (extra ``transformers``): ``attn_implementation="attnkit"``.

``register()`` makes the name known, ``AttnkitCache`` keeps keys and values in the pages of a backend, and ``counted``
notices models that never ask.
"""

from attnkit.integrations.transformers import _extra as _extra  # first: it says what is not installed
from attnkit.integrations.transformers.cache import AttnkitCache, AttnkitLayer
from attnkit.integrations.transformers.counting import counted
from attnkit.integrations.transformers.errors import BypassedError, MissingExtraError
from attnkit.integrations.transformers.registration import register

__all__ = [
    "AttnkitCache",
    "AttnkitLayer",
    "BypassedError",
    "MissingExtraError",
    "counted",
    "register",
]
