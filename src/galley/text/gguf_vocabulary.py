"""Conversion of a Hugging Face tokenizer to the metadata of a GGUF file.

This is the inverse of :mod:`galley.text.gguf_tokenizer`.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

import tokenizers

from galley.errors import UnsupportedModel
from galley.text.gguf_tokenizer import (
    BYTE,
    CONTROL,
    HUGGINGFACE_KEY,
    NORMAL,
    SPACE,
    SPLITTINGS,
    UNKNOWN,
    UNUSED,
    USER_DEFINED,
    Splitting,
    merges_of_scores,
)
from galley.text.tokenizer import Tokenizer
from galley.text.tokenizer_files import TOKENIZER_FILE

Metadata: TypeAlias = dict[str, Any]

_ROLES: Final = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}
_WORDS: Final = "Hello  you're 12345 naïve ΩΜΈΓΑ 你好世界!? snake_case\n\n\tx = {'a': 1.5e3}  "
"""Sample text for comparing splittings."""


class Vocabulary(NamedTuple):
    """A tokenizer as GGUF metadata.

    Attributes:
        metadata: the keys.
        differs: how the tokenizer differs from those that llama.cpp knows, one clause for each
            difference; empty if it does not.
    """

    metadata: Metadata
    differs: tuple[str, ...]


def vocabulary_of(folder: Path, rows: int) -> Vocabulary:
    """Convert the tokenizer of a checkpoint.

    Where llama.cpp knows no equal tokenizer, the keys describe the nearest that it knows, and also
    contain the tokenizer itself (``tokenizer.huggingface.json``) for programs that read it, as
    Galley does.

    Args:
        folder: the checkpoint, in Hugging Face's layout.
        rows: rows of the embedding; tokens that the tokenizer lacks are filled with made-up ones.

    Raises:
        CheckpointError: there is no tokenizer, or it is damaged.
        UnsupportedModel: it is neither a BPE of bytes nor of SentencePiece's pieces.
    """
    tokenizer = Tokenizer.load(folder)
    tokenizer.check_vocabulary(rows, folder)
    text = tokenizer.as_json()
    content, inner = json.loads(text), tokenizers.Tokenizer.from_str(text)
    model = content.get("model", {})
    if model.get("type", "BPE") != "BPE" or not (tokenizer.byte_level or tokenizer.byte_fallback):
        raise UnsupportedModel(
            f"{folder / TOKENIZER_FILE}: GGUF supports byte-level BPE and SentencePiece's BPE with "
            f"byte fallback; this tokenizer is {model.get('type')}"
        )
    metadata, differs = _tokens(tokenizer, content, rows)
    made = _byte_pairs(content) if tokenizer.byte_level else _pieces(content, metadata)
    metadata |= made.metadata
    ends = _ends(inner, tokenizer)
    metadata |= ends.metadata
    differs += [*made.differs, *ends.differs]
    if differs:
        metadata[HUGGINGFACE_KEY] = json.dumps(content, ensure_ascii=False, separators=(",", ":"))
    return Vocabulary(metadata, tuple(differs))


def _tokens(
    tokenizer: Tokenizer, content: Mapping[str, Any], rows: int
) -> tuple[Metadata, list[str]]:
    """Return texts, types and roles of all tokens, and how the tokens differ from llama.cpp's."""
    added = {token["id"]: token for token in content.get("added_tokens", [])}
    texts, types = [], []
    for token in range(rows):
        text = tokenizer.piece(token)
        texts.append(f"[PAD{token}]" if text is None else text)
        if text is None:
            types.append(UNUSED)
        elif text == content["model"].get("unk_token") and tokenizer.byte_fallback:
            types.append(UNKNOWN)
        elif token in tokenizer.special_ids:
            types.append(CONTROL)
        elif token in added:
            types.append(USER_DEFINED)
        else:
            types.append(BYTE if tokenizer.is_byte(text) else NORMAL)
    metadata: Metadata = {"tokenizer.ggml.tokens": texts, "tokenizer.ggml.token_type": types}
    ids = {text: token for token, text in enumerate(texts)}
    for role, key in _ROLES.items():
        text = tokenizer.special_tokens.get(f"{role}_token")
        if text in ids:
            metadata[f"tokenizer.ggml.{key}_token_id"] = ids[text]
    return metadata, list(_odd_tokens(added.values(), content.get("normalizer")))


def _odd_tokens(added: Any, normalizer: Any) -> Iterator[str]:
    for flag in ("single_word", "lstrip", "rstrip"):
        if found := [token["content"] for token in added if token.get(flag)]:
            yield f"{len(found)} added tokens such as {found[0]!r} are {flag}"
    changed = [token["content"] for token in added if token.get("normalized")]
    if normalizer is not None and not all(text.isascii() for text in changed):
        yield f"{len(changed)} added tokens such as {changed[0]!r} are normalized"


def _byte_pairs(content: Mapping[str, Any]) -> Vocabulary:
    """Convert a byte-level BPE: its merges, and the name of how texts are split before."""
    model = content["model"]
    merges = [" ".join(pair) for pair in _merges(model)]
    found = _splitting(content)
    names = [name for name in SPLITTINGS if name != "default"]
    equal = [name for name in names if SPLITTINGS[name]._replace(begins=False) == found]
    metadata: Metadata = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": equal[0] if equal else _nearest(content, names),
        "tokenizer.ggml.merges": merges,
    }
    differs = [] if equal else ["it splits texts into words differently"]
    odd = ("dropout", "continuing_subword_prefix", "end_of_word_suffix")
    differs += [f"its model has {name}" for name in odd if model.get(name)]
    return Vocabulary(metadata, tuple(differs))


def _splitting(content: Mapping[str, Any]) -> Splitting | None:
    """Return how texts are split; None if GGUF files cannot express it."""
    pattern, digits, ended = None, False, False
    for step in _steps(content.get("pre_tokenizer"), "pretokenizers"):
        kind = step.get("type")
        if kind == "Digits" and step.get("individual_digits") and pattern is None and not ended:
            digits = True
        elif kind == "Split" and step.get("behavior") == "Isolated" and not ended:
            if pattern is not None or step.get("invert"):
                return None
            pattern = step["pattern"].get("Regex", "")
        elif kind == "ByteLevel" and not step.get("add_prefix_space"):
            if ended or step.get("use_regex", True) == (pattern is not None):
                return None
            ended = True
        else:
            return None
    normalizers = [step.get("type") for step in _steps(content.get("normalizer"), "normalizers")]
    if not ended or normalizers not in ([], ["NFC"]):
        return None
    whole = bool(content["model"].get("ignore_merges"))
    return Splitting(() if pattern is None else (pattern,), digits, bool(normalizers), whole)


def _nearest(content: Mapping[str, Any], names: Sequence[str]) -> str:
    """Return the known splitting that agrees best on the ends of words in a short sample text."""

    def ends(step: Any) -> set[int]:
        return {end for _, (_, end) in step.pre_tokenize_str(_WORDS)}

    wanted = ends(tokenizers.Tokenizer.from_str(json.dumps(content)).pre_tokenizer)
    return min(names, key=lambda name: len(wanted ^ ends(SPLITTINGS[name].pre_tokenizer())))


def _pieces(content: Mapping[str, Any], metadata: Metadata) -> Vocabulary:
    """Convert a SentencePiece BPE: the earlier pairs make a piece, the higher its score."""
    texts, types = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"]
    merges = _merges(content["model"])
    rank = {left + right: at for at, (left, right) in reversed([*enumerate(merges)])}
    # Tokens that are not the result of a merge come last: the tokenizer has no pair for them.
    scores = [-float(rank.get(text, len(merges))) for text in texts]
    prefix = _prefix(content)
    made: Metadata = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.add_space_prefix": prefix is not False,
    }
    differs = []
    strips = "Strip" in [step.get("type") for step in _steps(content.get("decoder"), "decoders")]
    if prefix is None or strips != prefix:
        differs.append("it adds spaces before texts differently")
    if _by_piece(merges) != _by_piece(merges_of_scores(texts, types, scores)):
        differs.append("its merges do not follow from the scores of tokens")
    if content["model"].get("ignore_merges"):
        differs.append("its model has ignore_merges")
    return Vocabulary(made, tuple(differs))


def _by_piece(merges: Sequence[tuple[str, str]]) -> list[tuple[str, frozenset[tuple[str, str]]]]:
    """Return the runs of consecutive pairs that make the same piece, in order."""
    runs: list[tuple[str, set[tuple[str, str]]]] = []
    for pair in merges:
        piece = "".join(pair)
        if not runs or runs[-1][0] != piece:
            runs.append((piece, set()))
        runs[-1][1].add(pair)
    return [(piece, frozenset(pairs)) for piece, pairs in runs]


def _prefix(content: Mapping[str, Any]) -> bool | None:
    """Return whether a space is put before a text; None: not in the way of GGUF files."""
    before = list(_steps(content.get("pre_tokenizer"), "pretokenizers"))
    steps = [
        (step.get("type"), step.get("prepend") or step.get("content"))
        for step in _steps(content.get("normalizer"), "normalizers")
    ]
    if before == [] and steps == [("Prepend", SPACE), ("Replace", SPACE)]:
        return True
    if before == [] and steps == [("Replace", SPACE)]:
        return False
    (only, *more) = before or [{}]
    never = only.get("prepend_scheme") == "never" and not only.get("split", True)
    return False if steps == [] and not more and only.get("type") == "Metaspace" and never else None


def _ends(inner: tokenizers.Tokenizer, tokenizer: Tokenizer) -> Vocabulary:
    """Find the tokens that the tokenizer puts around texts."""
    inner.no_truncation()
    inner.no_padding()
    bare = inner.encode("a", add_special_tokens=False).ids
    whole = inner.encode("a", add_special_tokens=True).ids
    at = next((i for i in range(len(whole)) if whole[i : i + len(bare)] == bare), 0)
    around = {"bos": whole[:at], "eos": whole[at + len(bare) :]}
    made: Metadata = {}
    differs = []
    for role, ids in around.items():
        text = tokenizer.special_tokens.get(f"{role}_token")
        made[f"tokenizer.ggml.add_{role}_token"] = bool(ids)
        if ids and [tokenizer.piece(token) for token in ids] != [text]:
            differs.append(f"it adds the tokens {ids} around texts")
    return Vocabulary(made, tuple(differs))


def _merges(model: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the pairs of tokens to merge; older files write each pair as one text."""
    pairs = (pair.split(" ", 1) if isinstance(pair, str) else pair for pair in model["merges"])
    return [(left, right) for left, right in pairs]


def _steps(step: Mapping[str, Any] | None, name: str) -> Iterator[Mapping[str, Any]]:
    """Yield the steps of a normalizer, pre-tokenizer or decoder, with sequences flattened."""
    if step is None:
        return
    if step.get("type") == "Sequence":
        for inner in step.get(name, []):
            yield from _steps(inner, name)
    else:
        yield step
