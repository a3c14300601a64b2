"""What is asked of a ``ContinuousBatch``, and what it tells.

Axes: ``T`` tokens, ``V`` vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from attnkit.models.generation import Chooser


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """A text that is asked for; what ``ContinuousBatch.submit`` gives, and equal to itself alone.

    Attributes
    ----------
    prompt
        ``[T]`` token ids.
    max_tokens
        Most new tokens.
    stop_ids
        Tokens that end the text, and are not given.
    choose
        Takes the next token from logits ``[1, V]``.
    """

    prompt: tuple[int, ...]
    max_tokens: int
    stop_ids: frozenset[int]
    choose: Chooser


class Event(NamedTuple):
    """What a step did for one request.

    Attributes
    ----------
    request
        Whose it is.
    token
        The new token; ``None`` where a stop token came, which is not given.
    ended
        Why the text is finished: ``"length"``, ``"stop"``, or ``None`` as long as it goes on.
    """

    request: Request
    token: int | None
    ended: Literal["length", "stop"] | None
