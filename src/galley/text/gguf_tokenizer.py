"""The tokenizer in a GGUF file's metadata, converted to a tokenizer of Hugging Face's ``tokenizers``."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors

from galley.errors import CheckpointError, UnsupportedModel, shown
from galley.formats.gguf_file import read_gguf, split_files
from galley.formats.gguf_metadata import Metadata

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
"""Values of ``tokenizer.ggml.token_type``."""

HUGGINGFACE_KEY: Final = "tokenizer.huggingface.json"
"""Key of a complete ``tokenizer.json``; if present, the tokenizer is read from it."""

SPACE: Final = "\u2581"
_LETTERS_OF_LLAMA: Final = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_LETTERS_OF_QWEN: Final = _LETTERS_OF_LLAMA.replace(r"\p{N}{1,3}", r"\p{N}")
_LETTERS_OF_TEKKEN: Final = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_ENDINGS: Final = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
_LETTERS_OF_GPT4O: Final = (
    rf"[^\r\n\p{{L}}\p{{N}}]?[\p{{Lu}}\p{{Lt}}\p{{Lm}}\p{{Lo}}\p{{M}}]*[\p{{Ll}}\p{{Lm}}\p{{Lo}}\p{{M}}]+{_ENDINGS}"
    rf"|[^\r\n\p{{L}}\p{{N}}]?[\p{{Lu}}\p{{Lt}}\p{{Lm}}\p{{Lo}}\p{{M}}]+[\p{{Ll}}\p{{Lm}}\p{{Lo}}\p{{M}}]*{_ENDINGS}"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

_DEFAULT: Final = (
    r"[\p{P}\$\+<=>\^~\|]+",
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)",
    r"\p{N}+",
    r"[0-9][0-9][0-9]",
)


class Splitting(NamedTuple):
    """How texts are split before pairs are merged.

    Attributes:
        patterns: regular expressions of words, each applied to the pieces that the previous one
            left; empty: GPT-2's pattern.
        digits: whether digits are split off one by one, before the patterns are applied.
        nfc: whether texts are normalized to NFC first.
        whole_words: whether a word that is in the vocabulary becomes one token without merging.
        begins: whether a text begins with BOS, if the file does not specify it.
    """

    patterns: tuple[str, ...] = ()
    digits: bool = False
    nfc: bool = False
    whole_words: bool = False
    begins: bool = False

    def pre_tokenizer(self, *, prefix: bool = False) -> pre_tokenizers.PreTokenizer:
        """Build the pre-tokenizer; with ``prefix`` it first puts a space before the text."""
        steps: list[pre_tokenizers.PreTokenizer] = []
        if self.digits:
            steps.append(pre_tokenizers.Digits(individual_digits=True))
        steps += [pre_tokenizers.Split(Regex(p), behavior="isolated") for p in self.patterns]
        steps.append(pre_tokenizers.ByteLevel(add_prefix_space=prefix, use_regex=not self.patterns))
        return pre_tokenizers.Sequence(steps)


_LLAMA: Final = Splitting((_LETTERS_OF_LLAMA,), whole_words=True, begins=True)
_QWEN: Final = Splitting((_LETTERS_OF_QWEN,), nfc=True)

SPLITTINGS: Final[Mapping[str, Splitting]] = {
    "default": Splitting(_DEFAULT),
    "gpt-2": Splitting(),
    "qwen2": _QWEN,
    "deepseek-r1-qwen": _QWEN,
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "falcon3", "pixtral"), _LLAMA),
    "smaug-bpe": Splitting((_LETTERS_OF_LLAMA,)),
    "tekken": Splitting((_LETTERS_OF_TEKKEN,), whole_words=True, begins=True),
    "smollm": Splitting(digits=True),
    "starcoder": Splitting(digits=True),
    "refact": Splitting(digits=True),
    "dbrx": Splitting((_LETTERS_OF_LLAMA,)),
    "chatglm-bpe": Splitting((_LETTERS_OF_LLAMA,)),
    "glm4": Splitting((_LETTERS_OF_LLAMA,), whole_words=True),
    "gpt-4o": Splitting((_LETTERS_OF_GPT4O,)),
    "command-r": Splitting(digits=True, nfc=True),
    "olmo": Splitting(nfc=True),
}
"""``tokenizer.ggml.pre`` -> how texts are split; older files lack the key, which means "default"."""


_LEAVES_SPACES: Final = frozenset({"<unk>", "<s>", "<|endoftext|>"})
"""Special tokens of Phi-3 with SentencePiece that keep the white space after them; others remove it."""


class GGUFText(NamedTuple):
    """The tokenizer settings of a GGUF file.

    Attributes:
        inner: the tokenizer.
        decoder_steps: names of its decoder's steps.
        special_tokens: role -> text.
        file: the file that was read.
    """

    inner: tokenizers.Tokenizer
    decoder_steps: tuple[str, ...]
    special_tokens: Mapping[str, str]
    file: str


def read_metadata(path: Path) -> Metadata:
    """Read the metadata of the checkpoint; for a split one, the metadata of its first file."""
    first = split_files(path)[0]
    return Metadata(read_gguf(first).metadata, str(first))


def read_text(path: Path) -> GGUFText:
    """Read the tokenizer of a GGUF file.

    Raises:
        CheckpointError: the metadata are inconsistent; the error names the key.
        UnsupportedModel: the tokenizer is of an unsupported type.
    """
    metadata = read_metadata(path)
    # As in llama.cpp: tokens without text never result from a text, and there can be several.
    listed = metadata.strings("tokenizer.ggml.tokens")
    tokens = [text or f"[EMPTY_{token}]" for token, text in enumerate(listed)]
    kind = metadata.raw.get("tokenizer.ggml.model")
    if not tokens:
        raise CheckpointError("is missing", file=metadata.file, field="tokenizer.ggml.tokens")
    types = _numbers(metadata, "token_type", len(tokens))
    if kind == "gpt2":
        inner, steps, begins = _byte_pairs(metadata, tokens)
    elif kind == "llama":
        inner, steps, begins = _sentence_pieces(metadata, tokens, types)
    else:
        raise UnsupportedModel(
            f"{metadata.file}: tokenizer.ggml.model {shown(kind)} is not supported; known: gpt2, llama"
        )
    # No key specifies it; like llama.cpp, decide by the model's name.
    strips = kind == "llama" and metadata.raw.get("general.architecture") == "phi3"
    inner.add_tokens(
        [
            AddedToken(
                text,
                normalized=False,
                special=role == CONTROL,
                rstrip=strips and text not in _LEAVES_SPACES,
            )
            for text, role in zip(listed, types, strict=True)
            if role in (CONTROL, USER_DEFINED) and text
        ]
    )
    named = named_tokens(metadata)
    _add_ends(inner, metadata, tokens, begins)
    return GGUFText(inner, steps, named, metadata.file)


def _byte_pairs(
    metadata: Metadata, tokens: Sequence[str]
) -> tuple[tokenizers.Tokenizer, tuple[str, ...], bool]:
    """Build GPT-2's tokenizer: words of bytes, in which pairs are merged in the order of the file."""
    pre = metadata.raw.get("tokenizer.ggml.pre", "default")
    if not isinstance(pre, str) or pre not in SPLITTINGS:
        raise UnsupportedModel(
            f"{metadata.file}: tokenizer.ggml.pre {shown(pre)} is not supported; known: "
            f"{', '.join(sorted(SPLITTINGS))}"
        )
    splitting = SPLITTINGS[pre]
    vocabulary = _vocabulary(metadata, tokens)
    merges = []
    for index, merge in enumerate(metadata.strings("tokenizer.ggml.merges")):
        # No part begins with a space in any known file; a space separates the two parts.
        left, _, right = merge.partition(" ")
        if left not in vocabulary or right not in vocabulary or left + right not in vocabulary:
            raise CheckpointError(
                f"merge {index}, {shown(merge)}, refers to unknown tokens",
                file=metadata.file,
                field="tokenizer.ggml.merges",
            )
        merges.append((left, right))
    inner = tokenizers.Tokenizer(
        models.BPE(vocabulary, merges, ignore_merges=splitting.whole_words, fuse_unk=False)
    )
    if splitting.nfc:
        inner.normalizer = normalizers.NFC()
    prefix = metadata.raw.get("tokenizer.ggml.add_space_prefix", False) is True
    inner.pre_tokenizer = splitting.pre_tokenizer(prefix=prefix)
    inner.decoder = decoders.ByteLevel()
    return inner, ("ByteLevel",), splitting.begins


def _sentence_pieces(
    metadata: Metadata, tokens: Sequence[str], types: Sequence[float]
) -> tuple[tokenizers.Tokenizer, tuple[str, ...], bool]:
    """Build SentencePiece's BPE: the pair whose piece has the highest score is merged first."""
    vocabulary = _vocabulary(metadata, tokens)
    scores = _numbers(metadata, "scores", len(tokens))
    merges = merges_of_scores(tokens, types, scores)
    unknown = metadata.token("unknown_token_id")
    unknown_text = tokens[unknown] if unknown is not None and unknown < len(tokens) else None
    inner = tokenizers.Tokenizer(
        models.BPE(vocabulary, merges, unk_token=unknown_text, fuse_unk=True, byte_fallback=True)
    )
    prefix = metadata.raw.get("tokenizer.ggml.add_space_prefix", True) is not False
    before: list[normalizers.Normalizer] = [normalizers.Prepend(SPACE)] if prefix else []
    inner.normalizer = normalizers.Sequence([*before, normalizers.Replace(" ", SPACE)])
    steps: list[decoders.Decoder] = [
        decoders.Replace(SPACE, " "),
        decoders.ByteFallback(),
        decoders.Fuse(),
    ]
    if prefix:
        steps.append(decoders.Strip(content=" ", left=1))
    inner.decoder = decoders.Sequence(steps)
    names = ("Replace", "ByteFallback", "Fuse", *(("Strip",) if prefix else ()))
    return inner, names, True


def merges_of_scores(
    tokens: Sequence[str], types: Sequence[float], scores: Sequence[float]
) -> list[tuple[str, str]]:
    """Return all pairs of pieces that make a piece, those of the highest score first."""
    vocabulary = {text: token for token, text in enumerate(tokens)}
    never = {t for t, role in enumerate(types) if role in (UNKNOWN, CONTROL, UNUSED, BYTE)}
    ordered = sorted((-scores[token], token) for token in range(len(tokens)) if token not in never)
    return [pair for _, token in ordered for pair in _pairs(tokens[token], vocabulary)]


def _pairs(piece: str, vocabulary: Mapping[str, int]) -> Iterator[tuple[str, str]]:
    """Yield all pairs of pieces that make the piece, in the order of their ids."""
    made = [
        (piece[:at], piece[at:])
        for at in range(1, len(piece))
        if piece[:at] in vocabulary and piece[at:] in vocabulary
    ]
    yield from sorted(made, key=lambda pair: (vocabulary[pair[0]], vocabulary[pair[1]]))


def _vocabulary(metadata: Metadata, tokens: Sequence[str]) -> dict[str, int]:
    vocabulary = {text: token for token, text in enumerate(tokens)}
    if len(vocabulary) < len(tokens):
        twice = next(t for i, t in enumerate(tokens) if vocabulary[t] != i)
        raise CheckpointError(
            f"token {shown(twice)} occurs twice",
            file=metadata.file,
            field="tokenizer.ggml.tokens",
        )
    return vocabulary


def _numbers(metadata: Metadata, name: str, count: int) -> list[float]:
    key = f"tokenizer.ggml.{name}"
    values = metadata.raw.get(key, [0] * count)
    if (
        not isinstance(values, list)
        or len(values) != count
        or not all(isinstance(value, int | float) and value == value for value in values)
    ):
        raise CheckpointError(
            f"is not one number for each of the {count} tokens", file=metadata.file, field=key
        )
    return values


def named_tokens(metadata: Metadata) -> dict[str, str]:
    """Return role -> text of the token that has it, such as ``{"bos_token": "<s>"}``.

    Raises:
        CheckpointError: there is no such token; the error names the key.
    """
    tokens = metadata.strings("tokenizer.ggml.tokens")
    named = {}
    for role, name in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding")):
        token = metadata.token(f"{name}_token_id")
        if token is None:
            continue
        if token >= len(tokens):
            raise CheckpointError(
                f"is {token}, but there are {len(tokens)} tokens",
                file=metadata.file,
                field=f"tokenizer.ggml.{name}_token_id",
            )
        named[f"{role}_token"] = tokens[token]
    return named


def _add_ends(
    inner: tokenizers.Tokenizer, metadata: Metadata, tokens: Sequence[str], begins: bool
) -> None:
    """Make texts begin with BOS and end with EOS, where the file requests it."""
    wanted = {}
    for role, default in (("bos", begins), ("eos", False)):
        given: Any = metadata.raw.get(f"tokenizer.ggml.add_{role}_token", default)
        token = metadata.token(f"{role}_token_id")
        if given and token is not None:
            wanted[role] = (tokens[token], token)
    if wanted:
        single = [f"{wanted['bos'][0]}:0"] if "bos" in wanted else []
        template = [*single, "$A:0", *([f"{wanted['eos'][0]}:0"] if "eos" in wanted else [])]
        inner.post_processor = processors.TemplateProcessing(
            single=template, special_tokens=list(wanted.values())
        )
