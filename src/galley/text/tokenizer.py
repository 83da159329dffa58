"""A checkpoint's tokenizer: text to ids, ids to text, and the bytes of single tokens."""

import json
import re
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Final, NamedTuple, Self

import tokenizers
from tokenizers import decoders

from galley.errors import CheckpointError, ContextExceeded, RequestError, UnsupportedModel
from galley.formats.gguf_file import is_gguf
from galley.text.byte_alphabet import BYTE_OF_CHAR
from galley.text.tokenizer_files import TOKENIZER_FILE, TokenizerParts, read_tokenizer
from galley.text.tokenizer_library import (
    library_errors,
    replace_surrogates,
)

CERTAINLY_LONG: Final = 16
"""Characters per token of the context; tokens of almost all texts are shorter on average."""

MOST_TOKEN_CHARS: Final = 4096
"""Longest token, in characters, whose text is streamed.

Known vocabularies have runs of some hundred spaces.
"""


_BYTE_TOKEN: Final = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class AddedToken(NamedTuple):
    """A token that is recognized in the text before the tokenizer's model splits the rest."""

    id: int
    text: str
    special: bool


class Tokenizer:
    """A checkpoint's tokenizer, with the special tokens' roles. Safe to share between threads.

    Attributes:
        special_tokens: role -> text, such as ``{"bos_token": "<s>"}``; chat templates get them as
            variables.
        added_tokens: added tokens, sorted by id.
        special_ids: ids that :meth:`decode` skips.
        vocab_size: one more than the largest id.
        byte_level: tokens are bytes written as printable characters (GPT-2's alphabet).
        byte_fallback: tokens ``<0x00>`` to ``<0xFF>`` spell characters that the vocabulary lacks
            (SentencePiece).
        not_streamable: why generated text cannot be streamed; empty if it can.
        own_steps: see ``own`` of :class:`galley.text.tokenizer_steps.Steps`.
    """

    def __init__(self, parts: TokenizerParts) -> None:
        inner = self._inner = parts.inner
        self._model = inner.model
        self._normalizer = inner.normalizer
        self._pre_tokenizer = inner.pre_tokenizer
        self._decoder: decoders.Decoder = inner.decoder
        self._token_bytes: dict[int, bytes] = {}
        self.not_streamable = parts.not_streamable
        self.own_steps = parts.own_steps
        self._types_pairs = parts.types_pairs
        self.byte_level = "ByteLevel" in parts.decoder_steps
        self.byte_fallback = "ByteFallback" in parts.decoder_steps
        self.special_tokens = dict(parts.special_tokens)
        self.added_tokens = tuple(
            AddedToken(number, token.content, token.special)
            for number, token in sorted(inner.get_added_tokens_decoder().items())
        )
        self.special_ids = frozenset(token.id for token in self.added_tokens if token.special)
        last_added = self.added_tokens[-1].id if self.added_tokens else -1
        self.vocab_size = max(inner.get_vocab_size(), last_added + 1)

    def __repr__(self) -> str:
        return f"Tokenizer({self.vocab_size} tokens)"

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Load the tokenizer of a checkpoint's folder, or of a GGUF file's metadata.

        Raises:
            CheckpointError: ``tokenizer.json`` is missing, or one of the files is damaged.
            UnsupportedModel: a GGUF file's tokenizer is of an unsupported type.
        """
        return cls(read_tokenizer(folder))

    @staticmethod
    def is_there(model: Path) -> bool:
        """Return whether there is a tokenizer to load."""
        return is_gguf(model) or (model / TOKENIZER_FILE).exists()

    def check_streamable(self, folder: Path) -> None:
        """Raise UnsupportedModel if text cannot be streamed, or a token is unreasonably long."""
        if self.not_streamable:
            raise UnsupportedModel(self.not_streamable)
        if self._longest_token > MOST_TOKEN_CHARS:
            raise UnsupportedModel(
                f"{folder}: a token of its tokenizer has {self._longest_token} characters; streaming "
                f"supports at most {MOST_TOKEN_CHARS}"
            )

    def check_plain(self, folder: Path) -> None:
        """Raise UnsupportedModel if the time or memory to encode a short text may be unbounded."""
        if self.own_steps:
            raise UnsupportedModel(
                f"{folder}: its tokenizer has custom steps ({', '.join(self.own_steps)}); for speech "
                "models, Galley supports only Whisper's normalizer and pre-tokenizer"
            )

    def check_vocabulary(self, vocab_size: int, folder: Path) -> None:
        """Raise CheckpointError if the vocabulary exceeds the embedding, of ``vocab_size`` rows.

        Added tokens may exceed it: Gemma 3's text models have the tokenizer of those that read
        images. A request that contains such a token is refused.
        """
        text, last = self.last_token
        if last >= vocab_size:
            raise CheckpointError(
                f"has id {last}, but vocab_size in config.json is {vocab_size}; use the tokenizer of this "
                "model",
                file=str(folder if is_gguf(folder) else folder / TOKENIZER_FILE),
                field=f"token {text!r}",
            )

    @property
    def last_token(self) -> tuple[str, int]:
        """Text and id of the token with the largest id, excluding added tokens.

        Takes 50 ms for 150,000 tokens, once.
        """
        return self._extremes[0]

    @property
    def _longest_token(self) -> int:
        return self._extremes[1]

    @cached_property
    def _extremes(self) -> tuple[tuple[str, int], int]:
        added = {token.id for token in self.added_tokens}
        vocabulary = self._inner.get_vocab()
        own = (item for item in vocabulary.items() if item[1] not in added)
        last = max(own, key=lambda item: item[1], default=("", -1))
        return last, max(map(len, vocabulary), default=0)

    def as_json(self, rows: int | None = None) -> str:
        """Return ``tokenizer.json``, including what the other files declare.

        Args:
            rows: rows of the embedding; tokens beyond it are left out. None: all tokens.
        """
        text: str = self._inner.to_str()
        if rows is None or all(token.id < rows for token in self.added_tokens):
            return text
        content = json.loads(text)
        content["added_tokens"] = [t for t in content["added_tokens"] if t["id"] < rows]
        vocabulary = content["model"].get("vocab")
        if isinstance(vocabulary, dict):
            content["model"]["vocab"] = {t: i for t, i in vocabulary.items() if i < rows}
        return json.dumps(content)

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Encode ``text`` to ids; the text of a special token becomes that token.

        Args:
            text: any string; lone surrogates are read as U+FFFD.
            add_special_tokens: add the special tokens that ``tokenizer.json`` prescribes, such as a
                BOS token (``add_bos_token`` in ``tokenizer_config.json`` is ignored, as in
                transformers).

        Raises:
            RequestError: a step of the tokenizer fails on the text. All methods that encode may
                raise this.
        """
        return self._encoded(text, add_special_tokens).ids

    def check_length(self, text: str, context: int, *, param: str) -> None:
        """Refuse a text that is far too long by encoding its beginning only.

        Encoding all of such a text would take seconds. A text that passes may still be too long.

        Raises:
            ContextExceeded: ``text`` has more than ``context`` tokens; the error names ``param``.
        """
        beginning = text[: CERTAINLY_LONG * context]
        # Twice as many, because cutting can change the tokens at the cut.
        if len(beginning) < len(text) and len(self.encode(beginning)) > 2 * context:
            raise certainly_longer(context, param=param)

    def encode_all(
        self, texts: Sequence[str], *, add_special_tokens: bool = True, context: int | None = None
    ) -> list[list[int]]:
        """Encode each text as :meth:`encode` does.

        Raises:
            ContextExceeded: as :meth:`check_length`, if ``context`` is given; the error names
                ``prompt``.
        """
        if context is not None:
            for text in texts:
                self.check_length(text, context, param="prompt")
        return [self.encode(text, add_special_tokens=add_special_tokens) for text in texts]

    def encode_cut(self, texts: Sequence[str], most: int) -> list[list[int]]:
        """Encode the beginning of each text, at most ``most`` tokens including special tokens.

        Raises:
            RequestError: ``most`` leaves no room for text next to the special tokens.
        """
        room = self._room(most, pair=False)
        cut = []
        for text in texts:
            encoding = self._encoded(text, False)
            if len(encoding) > room:
                encoding.truncate(room)
            with library_errors():
                cut.append(self._inner.post_process(encoding, None, True).ids)
        return cut

    def encode_pairs(
        self,
        first: str,
        seconds: Sequence[str],
        most: int | None = None,
        most_second: int | None = None,
    ) -> list[tuple[list[int], int]]:
        """Encode one text with each of others, as a reranker reads them.

        Args:
            first: the first text of every pair.
            seconds: the second text of each pair.
            most: maximum number of tokens of a pair; the longer text is cut first, and then both.
                None: nothing is cut.
            most_second: maximum number of tokens of each second text, which is cut before ``most``
                is applied; None: no limit.

        Returns:
            For each pair its ids, and the index of the first token of type 1, or 0 if all are of
                type 0.

        Raises:
            RequestError: ``most`` leaves no room for text next to the special tokens.
        """
        room = None if most is None else self._room(most, pair=True)
        whole = self._encoded(first, False)
        pairs = []
        for text in seconds:
            left, right = whole, self._encoded(text, False)
            if most_second is not None and len(right) > most_second:
                right.truncate(most_second)
            if room is not None and len(left) + len(right) > room:
                lengths = _longest_first(len(left), len(right), room)
                left = self._encoded(first, False)  # truncating changes it
                left.truncate(lengths[0])
                right.truncate(lengths[1])
            with library_errors():
                both = self._inner.post_process(left, right, True)
            typed = self._types_pairs and 1 in both.type_ids
            pairs.append((both.ids, both.type_ids.index(1) if typed else 0))
        return pairs

    def _encoded(self, text: str, add_special_tokens: bool) -> tokenizers.Encoding:
        texts = [replace_surrogates(text)]
        with library_errors():
            # Unlike encode and decode, the batched calls release the GIL.
            return self._inner.encode_batch_fast(texts, add_special_tokens=add_special_tokens)[0]

    def _room(self, most: int, *, pair: bool) -> int:
        special = self._inner.num_special_tokens_to_add(pair)
        if most <= special:
            raise RequestError(
                f"truncate_prompt_tokens is {most}, but {special} special tokens are added, which "
                "leaves no text",
                param="truncate_prompt_tokens",
            )
        return most - special

    def encode_plain(self, text: str) -> list[int]:
        """Encode ``text`` with no token added or recognized: ``<s>`` is three characters here."""
        text = replace_surrogates(text)
        with library_errors():
            if self._normalizer is not None:
                text = self._normalizer.normalize_str(text)
            words = [text]
            if self._pre_tokenizer is not None:
                words = [word for word, _ in self._pre_tokenizer.pre_tokenize_str(text)]
            return [token for word in words for token in self._spell(word)]

    def _spell(self, word: str) -> list[int]:
        """Encode one pre-tokenized word; special tokens that are also in the vocabulary are broken up."""
        ids: list[int] = []
        for token in self._model.tokenize(word):
            if token.id in self.special_ids and len(token.value) > 1 and token.value in word:
                ids += self._spell(token.value[0]) + self._spell(token.value[1:])
            else:
                ids.append(token.id)
        return ids

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Decode ``ids``; unknown ids have no text, bytes that are not UTF-8 become U+FFFD."""
        with library_errors():
            return self._inner.decode_batch([list(ids)], skip_special_tokens=skip_special_tokens)[0]

    def piece(self, token: int) -> str | None:
        """Return the token as the vocabulary spells it; ``None`` for an unknown id."""
        return self._inner.id_to_token(token)

    def join(self, pieces: Sequence[str], *, at_start: bool) -> str:
        """Return the text of ``pieces``, at the start of a text or in the middle of one.

        The two differ for tokenizers that put a space before a text and remove it when decoding.
        """
        if at_start:
            return self._decoder.decode(pieces)
        return self._decoder.decode(["x", *pieces])[1:]

    def token_bytes(self, token: int) -> bytes:
        """Return the UTF-8 bytes that the token adds to a text; may end or begin within a character."""
        known = self._token_bytes.get(token)
        if known is None:
            known = self._token_bytes[token] = self._bytes_of(self.piece(token))
        return known

    def token_text(self, token: int) -> str:
        """Return :meth:`token_bytes` as text, with U+FFFD for a part of a character."""
        return self.token_bytes(token).decode("utf-8", "replace")

    def is_byte(self, piece: str) -> bool:
        """Return whether ``piece`` is a byte-fallback token, which stands for one byte of a character."""
        return self.byte_fallback and _BYTE_TOKEN.fullmatch(piece) is not None

    def _bytes_of(self, piece: str | None) -> bytes:
        if piece is None:
            return b""
        if self.byte_level:
            # As in the library: a token with a character outside the alphabet, which is an added
            # one, is literal text.
            values = [BYTE_OF_CHAR.get(char) for char in piece]
            known = [value for value in values if value is not None]
            return bytes(known) if len(known) == len(values) else piece.encode()
        if self.is_byte(piece):
            return bytes([int(piece[3:5], 16)])
        return self.join([piece], at_start=False).encode()


def certainly_longer(context: int, *, param: str) -> ContextExceeded:
    """Return the error for a prompt that is too long and whose tokens were not all counted."""
    return ContextExceeded(
        f"the prompt has at least {context + 1} tokens; the context is {context}, output included",
        param=param,
    )


def _longest_first(a: int, b: int, room: int) -> tuple[int, int]:
    """Return how many tokens to keep of two texts.

    The longer text is cut to the room that the other leaves, but at least to half of ``room``.
    """
    short, long = min(a, b), max(a, b)
    long = max(short, room - short)
    if short + long > room:
        short, long = room // 2, room - room // 2
    return (long, short) if a > b else (short, long)
