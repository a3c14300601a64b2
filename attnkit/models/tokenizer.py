"""Text to token ids and back: from the metadata of a GGUF file, or from a Hugging Face ``tokenizer.json``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Engine

from attnkit.models.chat import BEGIN, END, ChatML
from attnkit.models.errors import ModelError
from attnkit.models.weights_hf import read_json

_CONTROL, _USER_DEFINED = 3, 4  # tokenizer.ggml.token_type
_HALF = "\ufffd"  # what a decoder writes for the bytes of a character that is not complete yet


class Tokenizer:
    """A tokenizer of the ``tokenizers`` package, with what generation and chat need.

    Parameters
    ----------
    engine
        The tokenizer proper.
    stop_ids
        Tokens that end a text.
    template
        Jinja chat template, if the model has one.
    bos_id
        Token that is put before every text; ``None`` where the engine does so itself or where there is none.
    """

    def __init__(
        self, engine: Engine, *, stop_ids: Iterable[int] = (), template: str | None = None, bos_id: int | None = None
    ) -> None:
        self.stop_ids = tuple(stop_ids)
        self._engine = engine
        self._template = template
        self._prefix = [] if bos_id is None else [bos_id]

    @property
    def vocab_size(self) -> int:
        """Number of tokens, special ones included."""
        return int(self._engine.get_vocab_size())

    def encode(self, text: str) -> list[int]:
        """Give the token ids of a text; names of special tokens in it, such as ``<|im_end|>``, become those tokens."""
        return [*self._prefix, *self._engine.encode(text).ids]

    def decode(self, ids: Iterable[int]) -> str:
        """Give the text of token ids, without special tokens."""
        return str(self._engine.decode(list(ids), skip_special_tokens=True))

    def stream(self, ids: Iterable[int]) -> Iterator[str]:
        """Give the text of token ids as they come, never half a character; joined, the pieces are ``decode(ids)``."""
        before: list[int] = []
        pending: list[int] = []
        for token in ids:
            pending.append(token)
            piece = self._after(before, pending)
            if piece and not piece.endswith(_HALF):
                yield piece
                # One decoded piece is kept as context, because some decoders join words across tokens.
                before, pending = pending, []
        if rest := self._after(before, pending):
            yield rest

    def chat(self, user: str, *, system: str | None = None) -> list[int]:
        """Give the token ids of a conversation that opens with ``user`` and leaves the model to answer.

        Messages are text: names of special tokens inside them stay letters, so a message cannot end its own turn.

        Raises
        ------
        ModelError
            If the model has no chat template, or another one than ChatML.
        """
        template = ChatML.from_template(self._template)
        begin, end = self._special(BEGIN), self._special(END)
        newline = self._text("\n")
        ids = list(self._prefix)
        for role, content in template.messages(user, system):
            ids += [begin, *self._text(f"{role}\n{content}"), end, *newline]
        return [*ids, begin, *self._text("assistant\n")]

    def _after(self, before: list[int], pending: list[int]) -> str:
        return self.decode([*before, *pending])[len(self.decode(before)) :]

    def _special(self, name: str) -> int:
        token = self._engine.token_to_id(name)
        if token is None:
            raise ModelError(f"the chat template uses {name}, which is not in the vocabulary")
        return int(token)

    def _text(self, text: str) -> list[int]:
        self._engine.encode_special_tokens = True
        try:
            return list(self._engine.encode(text, add_special_tokens=False).ids)
        finally:
            self._engine.encode_special_tokens = False


def gguf_tokenizer(metadata: Mapping[str, Any], *, origin: str = "GGUF") -> Tokenizer:
    """Build the byte-level BPE tokenizer that the metadata of a GGUF file describes.

    Raises
    ------
    ModelError
        If the metadata describes another kind of tokenizer, or contradicts itself.
    """
    try:
        words, merges = _words(metadata), _merges(metadata)
        kinds = [int(kind) for kind in metadata.get("tokenizer.ggml.token_type", [1] * len(words))]
        engine = Engine(models.BPE({word: index for index, word in enumerate(words)}, merges))
        engine.pre_tokenizer = _splitter(metadata)
        engine.decoder = decoders.ByteLevel()
        pairs = list(zip(words, kinds, strict=True))
        engine.add_special_tokens([AddedToken(word, special=True) for word, kind in pairs if kind == _CONTROL])
        engine.add_tokens([AddedToken(word, normalized=False) for word, kind in pairs if kind == _USER_DEFINED])
    except ModelError as error:
        raise ModelError(f"{origin}: {error}") from None
    except Exception as error:  # the engine raises bare Exception
        raise ModelError(f"{origin}: the tokenizer is broken: {error}") from None
    bos = metadata.get("tokenizer.ggml.bos_token_id") if metadata.get("tokenizer.ggml.add_bos_token") else None
    eos = metadata.get("tokenizer.ggml.eos_token_id")
    template = metadata.get("tokenizer.chat_template")
    return Tokenizer(engine, stop_ids=() if eos is None else (eos,), template=template, bos_id=bos)


def hf_tokenizer(folder: Path, *, stop_ids: Iterable[int] = ()) -> Tokenizer:
    """Read ``tokenizer.json`` and the chat template of a Hugging Face directory.

    Raises
    ------
    ModelError
        If there is no ``tokenizer.json`` or it cannot be read.
    """
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise ModelError(f"{path}: no such file; the directory needs config.json, model.safetensors and tokenizer.json")
    try:
        engine = Engine.from_file(str(path))
    except Exception as error:  # the engine raises bare Exception
        raise ModelError(f"{path}: not a tokenizer: {error}") from None
    return Tokenizer(engine, stop_ids=stop_ids, template=_hf_template(folder))


def _words(metadata: Mapping[str, Any]) -> list[str]:
    kind = metadata.get("tokenizer.ggml.model")
    if kind != "gpt2":
        raise ModelError(f"tokenizer.ggml.model is {kind!r}, only 'gpt2' (byte-level BPE) is understood")
    words = metadata.get("tokenizer.ggml.tokens")
    if not isinstance(words, list) or len(set(words)) != len(words):
        raise ModelError("tokenizer.ggml.tokens must be an array of distinct strings")
    return words


def _merges(metadata: Mapping[str, Any]) -> list[tuple[str, str]]:
    pairs = [tuple(line.split(" ")) for line in metadata.get("tokenizer.ggml.merges", [])]
    if any(len(pair) != 2 for pair in pairs):
        raise ModelError("tokenizer.ggml.merges must be an array of pairs with one space between")
    return [(left, right) for left, right in pairs]


def _splitter(metadata: Mapping[str, Any]) -> Any:
    """Give the pre-tokenizer: the GPT-2 pattern, and for SmolLM each digit by itself."""
    words = pre_tokenizers.ByteLevel(add_prefix_space=False)
    name = metadata.get("tokenizer.ggml.pre", "gpt-2")
    if name == "gpt-2":
        return words
    if name == "smollm":
        return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), words])
    raise ModelError(f"tokenizer.ggml.pre is {name!r}; 'gpt-2' and 'smollm' are understood, others through a directory")


def _hf_template(folder: Path) -> str | None:
    """Look for the chat template where newer writers put it, then where older ones do."""
    alone, settings = folder / "chat_template.jinja", folder / "tokenizer_config.json"
    if alone.is_file():
        return alone.read_text(encoding="utf-8")
    template = read_json(settings).get("chat_template") if settings.is_file() else None
    return template if isinstance(template, str) else None
