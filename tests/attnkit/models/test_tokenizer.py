from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnkit.models import ChatML, GGUFFile, ModelError, Tokenizer, gguf_tokenizer, hf_tokenizer

TEXTS = ["hello world", "naïve café, 12345!", "日本語と🙂🙃", "a\n\n b\t", "", " leading", "👩‍👩‍👧 family"]


@pytest.fixture(scope="module")
def tokenizer(lab, tmp_path_factory) -> Tokenizer:
    config = lab.config()
    path = lab.write_gguf(tmp_path_factory.mktemp("model") / "tiny.gguf", config, lab.arrays(config))
    return gguf_tokenizer(GGUFFile(path).metadata)


@pytest.mark.parametrize("text", TEXTS)
def test_text_survives_the_round_trip(tokenizer, text):
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert "".join(tokenizer.stream(ids)) == text


def test_merges_and_digits_are_applied(tokenizer, lab):
    words = lab.vocabulary()
    assert [words[token] for token in tokenizer.encode("hello world 12")] == ["hello", "Ġwor", "ld", "Ġ", "1", "2"]
    assert tokenizer.vocab_size == len(words)


def test_special_tokens_are_found_in_text_and_left_out_of_it(tokenizer):
    ids = tokenizer.encode("<|im_start|>hello<|im_end|>")
    assert (ids[0], ids[-1]) == (1, 2)
    assert tokenizer.decode(ids) == "hello"


@pytest.mark.parametrize("text", ["é", "日本", "🙂x", "x🙂"])
def test_no_piece_is_half_a_character(tokenizer, text):
    pieces = list(tokenizer.stream(tokenizer.encode(text)))
    assert "".join(pieces) == text
    assert all("\ufffd" not in piece for piece in pieces)
    assert len(pieces) == len(text)


@given(data=st.data())
def test_streamed_pieces_join_to_the_whole_for_any_tokens(tokenizer, data):
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size - 1), max_size=40))
    assert "".join(tokenizer.stream(ids)) == tokenizer.decode(ids)


@given(text=st.text())
def test_any_text_survives_the_round_trip(tokenizer, text):
    ids = tokenizer.chat(text)
    assert f"user\n{text}\nassistant\n" in tokenizer.decode(ids)
    assert ids.count(1) == 3
    assert ids.count(2) == 2


def test_chat_is_the_template_written_out(tokenizer):
    written = "<|im_start|>system\nBe brief<|im_end|>\n<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"
    assert tokenizer.chat("hello") == tokenizer.encode(written)
    assert tokenizer.chat("hello", system="Rhyme") == tokenizer.encode(written.replace("Be brief", "Rhyme"))


def test_chat_templates_that_are_chatml_are_told_from_others(lab):
    assert ChatML.from_template(lab.chatml) == ChatML("Be brief")
    spaced = lab.chatml.replace("{%", "{%- ").replace("}}", " -}}").replace("\n", r"\n")
    assert ChatML.from_template(spaced) == ChatML("Be brief")
    start, end = lab.chatml.index("{% if loop.first"), lab.chatml.index("{% endif %}") + len("{% endif %}")
    assert ChatML.from_template(lab.chatml[:start] + lab.chatml[end:]) == ChatML(None)
    for template in ("[INST] {{ messages[0]['content'] }} [/INST]", lab.chatml + "{{ tools }}"):
        with pytest.raises(ModelError, match="not plain ChatML"):
            ChatML.from_template(template)
    for template in (None, ""):
        with pytest.raises(ModelError, match="no chat template"):
            ChatML.from_template(template)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"tokenizer.ggml.model": "llama"}, "tokenizer.ggml.model is 'llama'"),
        ({"tokenizer.ggml.pre": "llama-bpe"}, "tokenizer.ggml.pre is 'llama-bpe'"),
        ({"tokenizer.ggml.tokens": ["a", "a"]}, "distinct"),
        ({"tokenizer.ggml.tokens": None}, "tokenizer.ggml.tokens"),
        ({"tokenizer.ggml.merges": ["a b c"]}, "merges"),
        ({"tokenizer.ggml.merges": ["nobody knows"]}, "broken"),
        ({"tokenizer.ggml.token_type": [1, 1]}, "broken"),
    ],
)
def test_other_tokenizers_are_refused(gguf_path, change, words):
    with pytest.raises(ModelError, match=rf"here: .*{words}"):
        gguf_tokenizer(GGUFFile(gguf_path(**change)).metadata, origin="here")


def test_a_beginning_token_is_added_where_the_model_wants_one(gguf_path):
    metadata = GGUFFile(gguf_path(**{"tokenizer.ggml.add_bos_token": True})).metadata
    assert gguf_tokenizer(metadata).encode("hello")[0] == 1


def test_a_directory_gives_the_same_tokenizer(tokenizer, tmp_path, lab):
    tokenizer._engine.save(str(tmp_path / "tokenizer.json"))
    found = hf_tokenizer(tmp_path)
    for text in TEXTS:
        assert found.encode(text) == tokenizer.encode(text)
    with pytest.raises(ModelError, match="no chat template"):
        found.chat("hello")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": lab.chatml}))
    assert hf_tokenizer(tmp_path).chat("hello") == tokenizer.chat("hello")
    (tmp_path / "chat_template.jinja").write_text("other")
    with pytest.raises(ModelError, match="not plain ChatML"):
        hf_tokenizer(tmp_path).chat("hello")


def test_a_directory_without_a_tokenizer_is_refused(tmp_path):
    with pytest.raises(ModelError, match=r"tokenizer\.json: no such file"):
        hf_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ModelError, match=r"tokenizer\.json: not a tokenizer"):
        hf_tokenizer(tmp_path)
