"""The vocabulary of speech models: the audio a request carries, what their checkpoints say of decoding."""

from typing import Final, Literal

import msgspec

from galley.errors import RequestError

FLOAT_BYTES: Final = 4


class EncoderInput(msgspec.Struct, frozen=True, kw_only=True):
    """One stretch of audio as log-mel features, which an encoder reads as a whole.

    Attributes:
        frames, mels: rows and columns.
        data: float32, little-endian, row-major; finite.

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

    They come in pairs and never go back, the first token is one, and one is chosen whenever all of them
    together are likelier than any other token.

    Attributes:
        begin: id of ``<|0.00|>``; all ids from here on are timestamps, and the one before is
            ``<|notimestamps|>``.
        text_end: ids below it are text; the id of ``<|endoftext|>``.
        max_initial: the first timestamp is at most this many steps after ``begin``; None: any.
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


class Alignment(msgspec.Struct, frozen=True, kw_only=True):
    """Where a decoder's alignment heads look while it writes a text.

    Attributes:
        tokens, heads, rows: of the prompt and of its window.
        data: float32, little-endian, [tokens, heads, rows]: the weight that a head at a token gives to a
            row of what was heard. Over the rows they add up to 1.
    """

    tokens: int
    heads: int
    rows: int
    data: bytes


class SpeechInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What a speech model's checkpoint says of its input and its special tokens.

    Attributes:
        mels: values in a frame.
        max_frames: the longest window.
        stride: frames for each row that the encoder makes.
        start_token: ``<|startoftranscript|>``, where every transcript begins.
        previous_token: ``<|startofprev|>``, in front of earlier text; None if the checkpoint is silent.
        no_timestamps_token: ``<|notimestamps|>``; None if the checkpoint is silent.
        languages: ``<|en|>`` and its like -> id; empty for a model of one language.
        tasks: ``transcribe`` and ``translate`` -> id; empty for a model of one task.
        suppress_tokens, begin_suppress_tokens: never chosen, or not as the first token.
        max_initial_timestamp: see :class:`TimestampRules`.
        alignment_heads: (decoder layer, head) whose cross-attention follows the speech; empty for a large
            model whose checkpoint names none.
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

    @property
    def max_rows(self) -> int:
        """Positions in the KV cache that the longest window takes."""
        return self.rows_of(self.max_frames)

    def rows_of(self, frames: int) -> int:
        """Positions in the KV cache that a window takes."""
        return -(-frames // self.stride)

    @property
    def tasks_done(self) -> tuple[Literal["transcribe", "translate", "align"], ...]:
        """What the model does (see ``types.Task``)."""
        done: list[Literal["transcribe", "translate", "align"]] = ["transcribe"]
        if "translate" in self.tasks:
            done.append("translate")
        if self.alignment_heads:
            done.append("align")
        return tuple(done)

    @property
    def timestamp_begin(self) -> int | None:
        """``<|0.00|>``."""
        return None if self.no_timestamps_token is None else self.no_timestamps_token + 1

    @property
    def no_speech_token(self) -> int | None:
        """``<|nospeech|>``, the one before ``<|notimestamps|>``."""
        return None if self.no_timestamps_token is None else self.no_timestamps_token - 1
