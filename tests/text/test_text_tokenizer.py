import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import decoders, models, normalizers, pre_tokenizers
from transformers import AutoTokenizer

from galley.errors import CheckpointError, ContextExceeded, RequestError, UnsupportedModel
from galley.formats.source import BUNDLED, BUNDLED_SPEECH, resolve_model
from galley.text.tokenizer import Tokenizer
from galley.text.tokenizer_steps import is_simple
from tests.text import trained
from tests.thorough import unless

TEXTS = [
    "",
    " ",
    "Hello",
    " Hello  world ",
    "a\n\n b\t\x00c",
    "naïve café, e\u0301, 你好 😀 👩‍👩‍👧 ☃",
    "<|im_start|>user\n<think> x </think><|im_end|>",
    "<s>[INST] hi [/INST]</s> bye <unk>",
    "\u202eright-to-left\u202c marks",
    "▁ underscores ▁▁ <0x41>",
]


@pytest.fixture(scope="module")
def truth(folder: Path) -> Any:
    return AutoTokenizer.from_pretrained(folder)


@pytest.mark.parametrize("text", TEXTS)
def test_ids_equal_those_of_transformers(tokenizer: Tokenizer, truth: Any, text: str) -> None:
    assert tokenizer.encode(text) == truth(text).input_ids
    bare = truth(text, add_special_tokens=False).input_ids
    assert tokenizer.encode(text, add_special_tokens=False) == bare


@pytest.mark.parametrize("skip", [True, False])
@pytest.mark.parametrize("text", TEXTS)
def test_text_equals_that_of_transformers(
    tokenizer: Tokenizer, truth: Any, text: str, skip: bool
) -> None:
    ids = truth(text).input_ids
    assert tokenizer.decode(ids, skip_special_tokens=skip) == truth.decode(
        ids, skip_special_tokens=skip
    )


def test_named_tokens(byte_level: Tokenizer, sentencepiece: Tokenizer) -> None:
    assert byte_level.special_tokens == {
        "bos_token": "<|begin_of_text|>",
        "eos_token": "<|eot_id|>",
    }
    assert sentencepiece.special_tokens == {
        "bos_token": "<s>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
    }
    assert sentencepiece.special_ids == {0, 1, 2}


def test_every_id_is_below_vocab_size(tokenizer: Tokenizer, truth: Any) -> None:
    assert tokenizer.vocab_size == max(truth.get_vocab().values()) + 1
    assert tokenizer.piece(tokenizer.vocab_size - 1) is not None
    assert tokenizer.piece(tokenizer.vocab_size) is None


def test_special_tokens_map_names_what_the_config_does_not(
    sentencepiece_folder: Path, tmp_path: Path
) -> None:
    shutil.copy(sentencepiece_folder / "tokenizer.json", tmp_path)
    names = {"bos_token": {"content": "<s>"}, "eos_token": "</s>"}
    (tmp_path / "special_tokens_map.json").write_text(json.dumps(names))
    expected = {"bos_token": "<s>", "eos_token": "</s>"}
    assert Tokenizer.load(tmp_path).special_tokens == expected


@pytest.mark.parametrize(
    "flags",
    [
        {"add_bos_token": False},
        {"add_bos_token": True, "add_eos_token": True},
    ],
)
def test_add_flags_do_not_overrule_the_post_processor(
    sentencepiece_folder: Path, tmp_path: Path, flags: dict[str, bool]
) -> None:
    shutil.copytree(sentencepiece_folder, tmp_path, dirs_exist_ok=True)
    trained.update_config(tmp_path, **flags)
    truth = AutoTokenizer.from_pretrained(tmp_path)
    assert Tokenizer.load(tmp_path).encode("Hello") == truth("Hello").input_ids


def test_named_token_that_is_an_ordinary_word_becomes_special(
    sentencepiece_folder: Path, tmp_path: Path
) -> None:
    shutil.copytree(sentencepiece_folder, tmp_path, dirs_exist_ok=True)
    trained.update_config(tmp_path, pad_token="<0x00>")
    truth = AutoTokenizer.from_pretrained(tmp_path)
    tokenizer = Tokenizer.load(tmp_path)
    ids = tokenizer.encode("a<0x00>b")
    assert ids == truth("a<0x00>b").input_ids
    assert tokenizer.decode(ids) == truth.decode(ids, skip_special_tokens=True)
    assert trained.token_id(tokenizer, "<0x00>") in tokenizer.special_ids


def test_truncation_and_padding_of_the_file_are_not_obeyed(
    byte_level_folder: Path, tmp_path: Path
) -> None:
    inner = tokenizers.Tokenizer.from_file(str(byte_level_folder / "tokenizer.json"))
    whole = inner.encode("Hello " * 9).ids
    inner.enable_truncation(4)
    inner.enable_padding(length=100)
    trained.write(tmp_path, inner, {})
    assert Tokenizer.load(tmp_path).encode("Hello " * 9) == whole


# --- text that must not break anything ----------------------------------------------------------


@pytest.mark.parametrize("text", ["\ud800", "a\udfffb", "\udc00\ud800 é", "<s>\ud83d"])
def test_lone_surrogates_are_replaced(tokenizer: Tokenizer, text: str) -> None:
    repaired = "".join("\ufffd" if "\ud800" <= char <= "\udfff" else char for char in text)
    assert tokenizer.encode(text) == tokenizer.encode(repaired)
    assert tokenizer.encode_plain(text) == tokenizer.encode_plain(repaired)
    assert tokenizer.decode(tokenizer.encode(text)).count("\ufffd") >= 1


@pytest.mark.parametrize("char", ["a", " ", *(unless(False, char) for char in "\x00é<")])
def test_a_megabyte_of_one_character(tokenizer: Tokenizer, char: str) -> None:
    text = char * 1_000_000
    assert tokenizer.decode(tokenizer.encode(text)) in (text, text.removeprefix(" "))


# --- plain text ---------------------------------------------------------------------------------


@given(st.text())
def test_plain_ids_are_the_usual_ones_where_no_token_is_named(
    tokenizer: Tokenizer, text: str
) -> None:
    if not any(token.text in text for token in tokenizer.added_tokens):
        assert tokenizer.encode_plain(text) == tokenizer.encode(text, add_special_tokens=False)


def test_plain_text_names_no_token(tokenizer: Tokenizer) -> None:
    added = {token.id for token in tokenizer.added_tokens}
    for token in tokenizer.added_tokens:
        for text in (token.text, f"a{token.text}b", f" {token.text} {token.text}"):
            ids = tokenizer.encode_plain(text)
            assert not added.intersection(ids), (text, ids)
            # Metaspace does not add a second space to a text that starts with one.
            assert tokenizer.decode(ids) in (text, text.removeprefix(" "))


# --- one token ----------------------------------------------------------------------------------


@given(st.text(max_size=40))
def test_token_bytes_add_up_to_the_text(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode_plain(text)
    whole = b"".join(map(tokenizer.token_bytes, ids)).decode()
    # A SentencePiece vocabulary adds a space before the first word.
    assert whole.removeprefix("" if tokenizer.byte_level else " ") == tokenizer.decode(ids)


def test_token_bytes_of_a_part_of_a_character(byte_level: Tokenizer) -> None:
    ids = byte_level.encode_plain("☃")
    assert len(ids) > 1
    assert b"".join(map(byte_level.token_bytes, ids)) == "☃".encode()
    assert "\ufffd" in byte_level.token_text(ids[0])


def test_token_text_of_sentencepiece(sentencepiece: Tokenizer) -> None:
    def text_of(piece: str) -> tuple[str, bytes]:
        token = trained.token_id(sentencepiece, piece)
        return sentencepiece.token_text(token), sentencepiece.token_bytes(token)

    assert text_of("<0xE2>") == ("\ufffd", b"\xe2")
    assert text_of("<0x0A>") == ("\n", b"\n")
    assert text_of("▁") == (" ", b" ")
    assert text_of("</s>") == ("</s>", b"</s>")


def test_an_unknown_id_is_nothing(tokenizer: Tokenizer) -> None:
    assert tokenizer.token_bytes(10**6) == b""
    assert tokenizer.token_text(10**6) == ""
    assert tokenizer.decode([10**6]) == ""


@pytest.mark.parametrize("text", ["z", "the cat ", "é", "<s>", "\ud800", " "])
def test_only_what_is_too_long_is_refused_by_its_beginning(tokenizer: Tokenizer, text: str) -> None:
    for times in (1, 10, 50, 100, 1000, 10_000):
        whole = text * times
        try:
            tokenizer.check_length(whole, 50, param="prompt")
        except ContextExceeded:
            refused = True
        else:
            refused = False
        count = len(tokenizer.encode(whole))
        assert not refused or count > 50
        # Where a token is under eight characters, everything beyond the limit is refused.
        assert refused or len(whole) <= 800 or count < len(whole) / 8


def test_the_error_of_a_long_text(byte_level: Tokenizer) -> None:
    with pytest.raises(ContextExceeded, match="at least 51 tokens; the context is 50") as error:
        byte_level.check_length("the cat " * 1000, 50, param="prompt")
    assert (error.value.param, error.value.code) == ("prompt", "context_length_exceeded")


# --- damaged files ------------------------------------------------------------------------------


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"tokenizer\.json: does not exist"):
        Tokenizer.load(tmp_path)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"\xff",
        b'{"decoder": 3}',
        b'{"decoder": {"type": "ByteLevel"}}',
        b"{}" * 9,
    ],
)
def test_damaged_tokenizer_file_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "tokenizer.json").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"tokenizer\.json: is not a tokenizer"):
        Tokenizer.load(tmp_path)


@pytest.mark.parametrize("content", [b"{", b"[]", b"\xff\xfe"])
@pytest.mark.parametrize("name", ["tokenizer_config.json", "special_tokens_map.json"])
def test_damaged_config_is_named(
    byte_level_folder: Path, tmp_path: Path, name: str, content: bytes
) -> None:
    shutil.copytree(byte_level_folder, tmp_path, dirs_exist_ok=True)
    (tmp_path / name).write_bytes(content)
    with pytest.raises(CheckpointError, match=name):
        Tokenizer.load(tmp_path)


@pytest.mark.parametrize(
    "decoder",
    [
        None,
        decoders.CTC(),
        decoders.BPEDecoder(),
        decoders.Sequence([decoders.Fuse(), decoders.Strip(" ", 0, 1)]),
        decoders.Sequence([decoders.ByteLevel(), decoders.Fuse()]),
    ],
)
def test_a_decoder_that_cannot_be_streamed_is_refused(tmp_path: Path, decoder: Any) -> None:
    inner = tokenizers.Tokenizer(models.BPE({"a": 0}, []))
    if decoder is not None:
        inner.decoder = decoder
    trained.write(tmp_path, inner, {})
    tokenizer = Tokenizer.load(tmp_path)  # a decoder that writes no text needs none
    with pytest.raises(UnsupportedModel, match="decoder"):
        tokenizer.check_streamable(tmp_path)


def replacing(*pairs: tuple[Any, str]) -> Any:
    return decoders.Sequence([decoders.Replace(*pair) for pair in pairs])


@pytest.mark.parametrize(
    ("decoder", "bounded"),
    [
        (replacing(("▁", " ")), True),
        (replacing(("▁▁", ""), ("▁", "    ")), True),
        (replacing(("a", "aaaaa")), False),
        (replacing(("a", "bb"), ("b", "cc"), ("c", "dd")), False),
        (replacing(*[("a", "a" * 10)] * 8), False),
        (replacing(("", " ")), False),
        (replacing((tokenizers.Regex("(a+)+$"), "")), False),
    ],
    ids=str,
)
def test_a_decoder_that_may_make_long_texts_of_short_ones_is_refused(
    tmp_path: Path, decoder: Any, bounded: bool
) -> None:
    inner = tokenizers.Tokenizer(models.BPE({"a": 0}, []))
    inner.decoder = decoder
    trained.write(tmp_path, inner, {})
    tokenizer = Tokenizer.load(tmp_path)
    if bounded:
        tokenizer.check_streamable(tmp_path)
    else:
        with pytest.raises(UnsupportedModel, match=r"decoder can produce more than 4 characters"):
            tokenizer.check_streamable(tmp_path)


@pytest.mark.parametrize("added", [False, True])
@pytest.mark.parametrize(("length", "fine"), [(4096, True), (4097, False), (10**6, False)])
def test_a_token_of_no_sane_length_is_refused(
    tmp_path: Path, length: int, fine: bool, added: bool
) -> None:
    token = "x" * length
    inner = tokenizers.Tokenizer(models.BPE({"a": 0} if added else {"a": 0, token: 1}, []))
    inner.decoder = decoders.ByteLevel()
    if added:
        inner.add_tokens([token])
    trained.write(tmp_path, inner, {})
    tokenizer = Tokenizer.load(tmp_path)
    if fine:
        tokenizer.check_streamable(tmp_path)
    else:
        with pytest.raises(UnsupportedModel, match=f"has {length} characters"):
            tokenizer.check_streamable(tmp_path)


@pytest.mark.parametrize(
    ("part", "step", "plain"),
    [
        ("normalizer", normalizers.NFKC(), True),
        ("normalizer", normalizers.Replace("a", "aa"), False),
        ("normalizer", normalizers.Sequence([normalizers.NFC(), normalizers.Prepend("a")]), False),
        ("pre_tokenizer", pre_tokenizers.ByteLevel(), True),
        ("pre_tokenizer", pre_tokenizers.Split(tokenizers.Regex("(a+)+$"), "isolated"), False),
    ],
    ids=str,
)
def test_steps_that_the_checkpoint_has_programmed_are_known(
    tmp_path: Path, part: str, step: Any, plain: bool
) -> None:
    inner = tokenizers.Tokenizer(models.BPE({"a": 0}, []))
    setattr(inner, part, step)
    trained.write(tmp_path, inner, {})
    tokenizer = Tokenizer.load(tmp_path)
    if plain:
        tokenizer.check_plain(tmp_path)
    else:
        with pytest.raises(UnsupportedModel, match="custom steps"):
            tokenizer.check_plain(tmp_path)


@pytest.mark.parametrize(
    ("expression", "simple"),
    [
        (r"'(?:s|t|re|ve|m|ll|d)\b| ?\p{L}+| ?\p{N}| ?[^\s\p{L}\p{N}]+|\s", True),
        (r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+", True),
        (r"[*+{(]+|\++|\(", True),
        (r"(?:ab)?c+", True),
        (r"(a+)+$", False),
        (r"(?:a|a)*x", False),
        (r"(?:a|a){1,99}x", False),
        (r"a*a*b", False),
        (r"(?:a*|b)a*c", False),
        (r"a{0,999}a{0,999}b", False),
        ("a?" * 30 + "b", False),
        (r"(a)\1", False),
        (r"(?<n>a\g<n>?b)", False),
    ],
)
def test_expressions_that_may_take_long_are_known(expression: str, simple: bool) -> None:
    assert is_simple(expression) == simple


@pytest.mark.parametrize("model", [BUNDLED, BUNDLED_SPEECH])
def test_the_bundled_tokenizers_are_plain(model: str) -> None:
    folder = resolve_model(model)
    tokenizer = Tokenizer.load(folder)
    tokenizer.check_streamable(folder)
    if model == BUNDLED_SPEECH:
        tokenizer.check_plain(folder)


def test_a_step_that_panics_is_the_texts_error(tmp_path: Path) -> None:
    inner = tokenizers.Tokenizer(models.BPE({"a": 0, "b": 1}, []))
    inner.pre_tokenizer = pre_tokenizers.Split(tokenizers.Regex("(a+)+$"), "isolated")
    trained.write(tmp_path, inner, {})
    tokenizer = Tokenizer.load(tmp_path)
    text = "a" * 40 + "b"
    for encode in (
        tokenizer.encode,
        tokenizer.encode_plain,
        lambda t: tokenizer.encode_cut([t], 9),
        lambda t: tokenizer.encode_pairs("a", [t], 9),
    ):
        with pytest.raises(RequestError, match="tokenizer failed on this text: Onig"):
            encode(text)
    assert tokenizer.encode("ab") == [0, 1]
