"""Chat templates: ChatML, the only one that is understood, told from its Jinja text.

A template is compared as a whole and never run, so that a model with another one is refused and not fed a guess.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from attnkit.models.errors import ModelError

BEGIN, END = "<|im_start|>", "<|im_end|>"
_SYSTEM = (
    r"{%if loop.first and messages[0]['role'] != 'system'%}"
    r"{{'<|im_start|>system\nSYSTEM<|im_end|>\n'}}{%endif%}"
)
_MESSAGES = (
    r"{%for message in messages%}SYSTEM_PART"
    r"{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{%endfor%}"
    r"{%if add_generation_prompt%}{{'<|im_start|>assistant\n'}}{%endif%}"
)


@dataclass(frozen=True, slots=True)
class ChatML:
    r"""The form ``<|im_start|>role\ncontent<|im_end|>\n`` for every message.

    Parameters
    ----------
    system
        System message where the caller gives none; ``None`` for no such message.
    """

    system: str | None = None

    @classmethod
    def from_template(cls, template: str | None) -> ChatML:
        """Read a Jinja chat template, or raise ``ModelError`` if it is not plain ChatML."""
        if not template:
            raise ModelError("the model has no chat template: give the whole prompt without --chat")
        found = _pattern().fullmatch(_plain(template))
        if found is None:
            raise ModelError("the model's chat template is not plain ChatML: give the whole prompt without --chat")
        return cls(found["system"])

    def messages(self, user: str, system: str | None = None) -> list[tuple[str, str]]:
        """Give ``(role, content)`` of the conversation that opens with ``user``."""
        first = self.system if system is None else system
        return [("user", user)] if first is None else [("system", first), ("user", user)]


def _plain(template: str) -> str:
    r"""Write newlines as ``\n`` and drop the blanks and dashes of Jinja's delimiters, which templates differ in."""
    text = template.strip().replace("\n", r"\n")
    text = re.sub(r"(\{[{%])-?\s*", r"\1", text)
    return re.sub(r"\s*-?([%}]\})", r"\1", text)


def _pattern() -> re.Pattern[str]:
    system = re.escape(_SYSTEM).replace("SYSTEM", r"(?P<system>[^']*?)", 1)
    return re.compile(re.escape(_MESSAGES).replace(re.escape("SYSTEM_PART"), f"(?:{system})?"))
