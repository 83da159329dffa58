"""Tokenizers of GGUF files against SentencePiece itself and transformers' reading of the same file."""

import io
import json
import random
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import gguf
import pytest
import sentencepiece
from llguidance import LLMatcher
from tokenizers import Regex, decoders, models, pre_tokenizers, trainers
from tokenizers import Tokenizer as Library

from galley.errors import CheckpointError
from galley.grammar.vocabulary import load_vocabulary
from galley.text.gguf_tokenizer import SPLITTINGS
from galley.text.tokenizer import Tokenizer

TEXT: Final = [
    "the cat sat on the mat and then the dog sat too, while the cats and the dogs slept",
    "Ein kleiner Hund läuft über die Straße und bellt laut in der Nacht, während es regnet",
    "def main(args):\n    return [arg.strip() for arg in args if arg]\n",
]
SCRIPTS: Final = (
    "ÄßéłждЖ中文日本語한국어\u0627\u0644\u0639\u0631\u05d0\u0915\u094d\u0937\U0001f989\u200d"
)
ALPHABET: Final = [*"abcdeht sn\n\t.,'0123456789ABC", *SCRIPTS, "  ", "'ll", "\r\n", "e\u0301"]


def strings(count: int) -> list[str]:
    """Return words of the texts mixed with characters of many scripts."""
    source = random.Random(7)
    words = [*ALPHABET, *(word for text in TEXT for word in text.split(" "))]
    return ["".join(source.choices(words, k=source.randrange(1, 12))) for _ in range(count)]


def written(
    path: Path, model: str, tokens: list[str], architecture: str = "llama", **more: Any
) -> Path:
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_tokenizer_model(model)
    writer.add_token_list(tokens)
    for name, value in more.items():
        getattr(writer, f"add_{name}")(value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


def check_grammars(path: Path, tokenizer: Tokenizer) -> None:
    """Check that a grammar of one text takes that text's tokens, and refuses special ones but the end."""
    vocabulary = load_vocabulary(path)
    special = sorted(tokenizer.special_ids - {vocabulary.eos_token})
    for text in strings(60):
        tokens = tokenizer.encode_plain(text)
        whole = b"".join(map(tokenizer.token_bytes, tokens)).decode()
        grammar = LLMatcher.grammar_from_lark(f"start: {json.dumps(whole, ensure_ascii=False)}")
        matcher = LLMatcher(vocabulary, grammar, log_level=0)
        for token in tokens:
            assert not any(matcher.validate_tokens([other]) for other in special)
            assert matcher.consume_token(token), (text, token, matcher.get_error())
        assert matcher.is_accepting(), text


def sentence_pieces(texts: Sequence[str], **options: Any) -> Any:
    """Train a SentencePiece BPE model that does not normalize texts."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([*texts] * 4),
        model_writer=model,
        model_type="bpe",
        vocab_size=420,
        byte_fallback=True,
        remove_extra_whitespaces=False,
        normalization_rule_name="identity",
        minloglevel=2,
        **options,
    )
    return sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())


@pytest.mark.parametrize("prefix", [True, False])
def test_sentencepiece(prefix: bool, tmp_path: Path) -> None:
    truth = sentence_pieces(TEXT, add_dummy_prefix=prefix)
    ids = range(truth.vocab_size())
    types = [
        2 if truth.is_unknown(i) else 3 if truth.is_control(i) else 6 if truth.is_byte(i) else 1
        for i in ids
    ]
    path = written(
        tmp_path / "model.gguf",
        "llama",
        [truth.id_to_piece(i) for i in ids],
        token_scores=[truth.get_score(i) for i in ids],
        token_types=types,
        bos_token_id=1,
        eos_token_id=2,
        unk_token_id=0,
        add_space_prefix=prefix,
    )
    tokenizer = Tokenizer.load(path)
    assert tokenizer.byte_fallback
    assert tokenizer.special_tokens == {
        "bos_token": "<s>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
    }
    for text in [*strings(2000), " a", "a  b ", "ab\x00"]:
        assert tokenizer.encode(text) == [1, *truth.encode(text)], text
        assert tokenizer.decode(truth.encode(text)) == text
    assert tokenizer.encode("<s>a") == [1, 1, *truth.encode("a")]
    assert tokenizer.encode_plain("<s>a") == truth.encode("<s>a")
    check_grammars(path, tokenizer)


def test_sentencepieces_own_symbols(tmp_path: Path) -> None:
    """As in Gemma: runs of spaces and line ends are tokens, whatever could be merged instead."""
    symbols = ["\n", "\n\n", "\u2581\u2581", "\u2581\u2581\u2581\u2581", "<b>"]
    texts = [text.replace("\n", " ") for text in TEXT]
    truth = sentence_pieces(texts, add_dummy_prefix=False, user_defined_symbols=symbols)
    pieces = [truth.id_to_piece(i) for i in range(truth.vocab_size())]
    kinds = {"<unk>": 2, "<s>": 3, "</s>": 3, **dict.fromkeys(symbols, 4)}
    path = written(
        tmp_path / "model.gguf",
        "llama",
        # llama.cpp's converter writes such tokens in their plain form.
        [p.replace("\u2581", " ") if p in symbols else p for p in pieces],
        token_scores=[
            -1000.0 if p in symbols else truth.get_score(i) for i, p in enumerate(pieces)
        ],
        token_types=[
            6 if truth.is_byte(i) else kinds.get(piece, 1) for i, piece in enumerate(pieces)
        ],
        bos_token_id=1,
        eos_token_id=2,
        unk_token_id=0,
        add_space_prefix=False,
    )
    tokenizer = Tokenizer.load(path)
    source = random.Random(3)
    parts = ["\n", "\n\n", "  ", " ", "    ", "<b>", *TEXT[0].split(" "), "\t", "Straße"]
    for _ in range(2000):
        text = "".join(source.choices(parts, k=source.randrange(1, 12)))
        assert tokenizer.encode(text) == [1, *truth.encode(text)], text
        assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.parametrize("architecture", ["phi3", "llama"])
def test_phi_3s_tokens_absorb_the_white_space_after_them(architecture: str, tmp_path: Path) -> None:
    """As ``rstrip`` in its tokenizer.json: for all tokens except the end of a text."""
    special = ["<|endoftext|>", "<|user|>", "<|end|>"]
    pieces = ["<unk>", "<s>", "</s>", "<0x0A>", "\u2581", "a", "\u2581a", *special]
    path = written(
        tmp_path / "model.gguf",
        "llama",
        pieces,
        architecture,
        token_scores=[0.0] * len(pieces),
        token_types=[2, 3, 3, 6, 1, 1, 1, 3, 3, 3],
        bos_token_id=1,
        add_bos_token=False,
    )
    tokenizer = Tokenizer.load(path)
    end, user, done = (pieces.index(text) for text in special)
    a, space, line = (pieces.index(text) for text in ("\u2581a", "\u2581", "<0x0A>"))
    taken = tokenizer.encode("<|user|> \n a<|end|>\n")
    assert (taken == [user, a, done]) is (architecture == "phi3")
    assert tokenizer.encode("<|endoftext|>\na") == [end, space, line, pieces.index("a")]
    assert tokenizer.decode(taken).strip() == "a"


_LLAMA: Final = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_GPT2: Final = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
PATTERNS: Final[dict[str, tuple[str, ...]]] = {
    **dict.fromkeys(("llama-bpe", "dbrx", "glm4", "chatglm-bpe"), (_LLAMA,)),
    "qwen2": (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
        r"|\s*[\r\n]+|\s+(?!\S)|\s+",
    ),
    **dict.fromkeys(("gpt-2", "olmo"), (_GPT2,)),
    "command-r": (r"\p{N}", _GPT2),
    **dict.fromkeys(
        ("default", ""),
        (
            r"[\p{P}\$\+<=>\^~\|]+",
            r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)",
            r"\p{N}+",
            r"[0-9][0-9][0-9]",
        ),
    ),
    "gpt-4o": (
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
        r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
        r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    ),
}
"""Patterns with which llama.cpp's ``llama-vocab.cpp`` splits texts in turn; "" is a file without a name."""
NFC: Final = ("qwen2", "command-r", "olmo")
"""Pre-tokenizers whose Hugging Face tokenizers normalize texts first."""


@pytest.mark.parametrize("pre", PATTERNS)
def test_byte_pairs(pre: str, tmp_path: Path) -> None:
    truth = Library(models.BPE())
    truth.pre_tokenizer = pre_tokenizers.Sequence(
        [
            *(pre_tokenizers.Split(Regex(p), behavior="isolated") for p in PATTERNS[pre]),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    truth.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False)
    truth.train_from_iterator(TEXT * 4, trainer)
    state = json.loads(truth.to_str())["model"]
    tokens = [*sorted(state["vocab"], key=state["vocab"].__getitem__), "<|end|>", "<tool>"]
    path = written(
        tmp_path / "model.gguf",
        "gpt2",
        tokens,
        **({"tokenizer_pre": pre} if pre else {}),
        token_merges=[" ".join(merge) for merge in state["merges"]],
        token_types=[1] * (len(tokens) - 2) + [3, 4],
        eos_token_id=len(tokens) - 2,
        bos_token_id=len(tokens) - 2,
    )
    tokenizer = Tokenizer.load(path)
    begin = [len(tokens) - 2] if pre == "llama-bpe" else []
    for text in strings(2000):
        if pre in NFC:
            text = unicodedata.normalize("NFC", text)
        assert tokenizer.encode(text) == begin + truth.encode(text).ids, text
        assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.encode("<tool>") == [*begin, len(tokens) - 1]
    assert tokenizer.special_ids == {len(tokens) - 2}
    check_grammars(path, tokenizer)


def test_the_default_splits_as_llama_cpp_does() -> None:
    """The expected pieces follow its rules: punctuation first, then words, then digits by threes."""
    split = SPLITTINGS["default"].pre_tokenizer().pre_tokenize_str
    words = {
        "a == b+12345": ["a", "\u0120", "==", "\u0120b", "+", "123", "45"],
        "Hello, world!": ["Hello", ",", "\u0120world", "!"],
        "it's  2024-05": ["it", "'", "s", "\u0120", "\u0120", "202", "4", "-", "05"],
        "\n\tx": ["\u010a", "\u0109", "x"],
    }
    for text, expected in words.items():
        assert [word for word, _ in split(text)] == expected, text


def test_tokens_without_a_text(tmp_path: Path) -> None:
    tokens = ["", "a", "b", "", "ab", "", "c"]
    path = written(
        tmp_path / "model.gguf",
        "gpt2",
        tokens,
        token_types=[3, 1, 1, 1, 1, 4, 1],
        token_merges=["a b"],
    )
    tokenizer = Tokenizer.load(path)
    assert tokenizer.encode("abca") == [4, 6, 1]
    assert tokenizer.decode([4, 6, 1]) == "abca"
    assert tokenizer.last_token == ("c", 6)


def test_names_of_one_splitting() -> None:
    """As llama.cpp identifies them: DeepSeek's Qwen, Falcon 3, Pixtral and early Llama 3."""
    assert SPLITTINGS["deepseek-r1-qwen"] == SPLITTINGS["qwen2"]
    for name in ("llama3", "llama-v3", "falcon3", "pixtral"):
        assert SPLITTINGS[name] == SPLITTINGS["llama-bpe"]


def test_what_contradicts_itself_is_named(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    cases: list[tuple[str, list[str], dict[str, Any]]] = [
        ("tokens: token 'a' occurs twice", ["a", "b", "a"], {}),
        ("merges: merge 0, 'a c'", ["a", "b", "ab"], {"token_merges": ["a c"]}),
        ("merges: merge 1, 'b a'", ["a", "b", "ab"], {"token_merges": ["a b", "b a"]}),
        ("bos_token_id: is 9, but there are 3", ["a", "b", "ab"], {"bos_token_id": 9}),
        ("token_type: is not one number", ["a", "b"], {"token_types": [1]}),
    ]
    for said, tokens, more in cases:
        path.unlink(missing_ok=True)
        written(path, "gpt2", tokens, **more)
        with pytest.raises(CheckpointError, match=f"tokenizer.ggml.{said}"):
            Tokenizer.load(path)
