"""Shared types of speech models: encoder inputs of requests, alignments, a checkpoint's special tokens."""

from typing import Final, Literal, TypeAlias

import msgspec

from galley.errors import RequestError

FLOAT_BYTES: Final = 4

SampleType: TypeAlias = Literal["s16le", "s24le", "s32le", "f32le", "u8", "mulaw", "alaw"]
"""FFmpeg's names of headerless sample formats."""


class EncoderInput(msgspec.Struct, frozen=True, kw_only=True):
    """Audio as log-mel features, which the encoder reads as a whole.

    Attributes:
        frames, mels: rows and columns of ``data``.
        data: ``[frames, mels]``, float32, little-endian, row-major; finite.

    Raises:
        RequestError: ``data`` has another size.
    """

    frames: int
    mels: int
    data: bytes

    def __post_init__(self) -> None:
        needed = self.frames * self.mels * FLOAT_BYTES
        if self.frames < 1 or self.mels < 1 or len(self.data) != needed:
            raise RequestError(
                f"the encoder input's data has {len(self.data)} bytes; {self.frames} frames of {self.mels} "
                f"float32 values have {needed}",
                param="encoder_input",
            )


class TimestampRules(msgspec.Struct, frozen=True, kw_only=True):
    """Whisper's grammar of timestamp tokens (arXiv:2212.04356, section 2.3).

    Timestamps come in pairs and never decrease. The first token is a timestamp. A timestamp is chosen
    whenever all timestamps together are likelier than any other token.

    Attributes:
        begin: id of ``<|0.00|>``; all ids from this one on are timestamps, and the id before is
            ``<|notimestamps|>``.
        text_end: id of ``<|endoftext|>``; all ids below are text.
        max_initial: the first timestamp is at most this many steps after ``begin``; None: no limit.
    """

    begin: int
    text_end: int
    max_initial: int | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.text_end < self.begin or (self.max_initial or 0) < 0:
            raise RequestError(
                f"timestamps need 0 <= text_end < begin and max_initial >= 0, got {self}",
                param="timestamps",
            )


class SpeechRules(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Restrictions on a transcript's tokens, and values to report about its audio.

    Attributes:
        suppress_tokens: never chosen.
        begin_suppress_tokens: not chosen as the output's first token.
        allowed_tokens: no others are chosen; empty: any.
        timestamps: Whisper's rules for timestamp tokens.
        no_speech: (index in the prompt, token): report that token's probability right after that prompt
            token. Whisper's probability of no speech is that of ``<|nospeech|>`` after
            ``<|startoftranscript|>``.
    """

    suppress_tokens: tuple[int, ...] = ()
    begin_suppress_tokens: tuple[int, ...] = ()
    allowed_tokens: tuple[int, ...] = ()
    timestamps: TimestampRules | None = None
    no_speech: tuple[int, int] | None = None


NO_RULES: Final = SpeechRules()
"""Any token may be chosen, and nothing more is reported."""


class Alignment(msgspec.Struct, frozen=True, kw_only=True, tag="alignment"):
    """Cross-attention weights of the decoder's alignment heads over a text.

    Attributes:
        tokens: number of tokens of the request's prompt, which contains the text.
        heads: number of alignment heads.
        rows: number of rows of the encoder's output.
        data: ``[tokens, heads, rows]``, float32, little-endian; the weights of a token and head sum to 1.
    """

    tokens: int
    heads: int
    rows: int
    data: bytes


class SpeechInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A speech checkpoint's input format and special tokens.

    Attributes:
        mels: mel bands of a frame.
        max_frames: frames of the longest encoder input.
        stride: input frames for each row of the encoder's output.
        start_token: ``<|startoftranscript|>``, which begins every transcript.
        previous_token: ``<|startofprev|>``, in front of earlier text; None if the checkpoint names none.
        no_timestamps_token: ``<|notimestamps|>``; None if the checkpoint names none.
        languages: ``<|en|>`` and the other language tokens -> id; empty for a model of one language.
        tasks: ``transcribe`` and ``translate`` -> id; empty for a model of one task.
        suppress_tokens: never chosen.
        begin_suppress_tokens: not chosen as the first token.
        max_initial_timestamp: see :class:`TimestampRules`.
        alignment_heads: (decoder layer, head) of the heads whose cross-attention follows the speech; empty
            for a large model whose checkpoint names none.
        low_confidence: mean token probability below which a transcript is reported as doubtful; None for a
            checkpoint that names none (Galley's own field of generation_config.json).
    """

    mels: int
    max_frames: int
    stride: int
    start_token: int
    previous_token: int | None = None
    no_timestamps_token: int | None = None
    languages: dict[str, int] = {}
    tasks: dict[str, int] = {}
    suppress_tokens: tuple[int, ...] = ()
    begin_suppress_tokens: tuple[int, ...] = ()
    max_initial_timestamp: int | None = None
    alignment_heads: tuple[tuple[int, int], ...] = ()
    low_confidence: float | None = None

    @property
    def max_rows(self) -> int:
        """Rows of the encoder's output for the longest encoder input; each takes one KV cache position."""
        return self.rows_of(self.max_frames)

    def rows_of(self, frames: int) -> int:
        """Return the rows of the encoder's output for ``frames`` input frames; each takes a KV position."""
        return -(-frames // self.stride)

    @property
    def tasks_done(self) -> tuple[Literal["transcribe", "translate", "align"], ...]:
        """Tasks that the model performs (see ``types.Task``)."""
        done: list[Literal["transcribe", "translate", "align"]] = ["transcribe"]
        if "translate" in self.tasks:
            done.append("translate")
        if self.alignment_heads:
            done.append("align")
        return tuple(done)

    @property
    def timestamp_begin(self) -> int | None:
        """Id of ``<|0.00|>``."""
        return None if self.no_timestamps_token is None else self.no_timestamps_token + 1

    @property
    def no_speech_token(self) -> int | None:
        """Id of ``<|nospeech|>``, the one before ``<|notimestamps|>``."""
        return None if self.no_timestamps_token is None else self.no_timestamps_token - 1
